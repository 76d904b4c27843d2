// A group of lanes owns a row, or a chunk of a long one, with all of its channels: each vector that it gathers is added
// to the row's sum, and multiplied with the row that the lanes hold. The sums have the order of gathered_rows.h, the
// dots that of row_dots.h: the bits of the two kernels that this one stands for.
#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/gathered_rows.h"
#include "kernels/cuda/row_dots.h"
#include "kernels/gather_sum_dots.h"

namespace lacewing::kernels::cuda {
namespace {

template <typename T, typename Index>
struct GatherSumDots {
  GatherSum<T, Index> sum;
  const T* rows;
  std::int64_t row_stride;
  T* dots;
};

template <int Width, int Packs, typename T, typename Index>
__global__ void __launch_bounds__(kRowThreads) sum_dots_kernel(const __grid_constant__ GatherSumDots<T, Index> d) {
  const GatherSum<T, Index>& g = d.sum;
  const int bits = g.choice.lane_bits;
  const int lanes = 1 << bits;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const unsigned group = group_mask(bits);
  const int groups = kRowThreads >> bits;
  const std::int64_t blocks = (g.pieces() + groups - 1) / groups;
  const T* const vectors = g.vectors(0);
  const T* const numbers = g.numbers(0);
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const std::int64_t number = block * groups + (threadIdx.x >> bits);
    const Piece piece = number < g.pieces() ? g.piece(number) : Piece{};
    if (piece.row < 0) {
      continue;
    }
    Row<Width, Packs, T> own;
    own.read(d.rows + piece.row * d.row_stride, lane, lanes, g.channels);
    Sums<T, Width> ways[kWays][Packs];
#pragma unroll 1
    for (std::int64_t base = piece.begin; base < piece.end; base += lanes) {
      // A lane reads the indices and the number of one term; 0 where there is none, as the row is then.
      Index first = 0;
      Index second = 0;
      accumulate_t<T> own_number{};
      if (base + lane < piece.end) {
        first = static_cast<Index>(g.terms.first(base + lane));
        second = static_cast<Index>(g.terms.second(base + lane));
        own_number = widen(numbers[second]);
      }
      const int here = piece.end - base < lanes ? static_cast<int>(piece.end - base) : lanes;
#pragma unroll 1
      for (int t = 0; t < here; t += kWays) {
        Row<Width, Packs, T> row[kWays];
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          const Index gathered = from_lane(first, t + k, lanes, group);
          row[k].read(vectors + gathered * g.x.stride_m, lane, lanes, t + k < here ? g.channels : 0);
        }
        accumulate_t<T> dots[kWays];
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          const accumulate_t<T> weight = from_lane(own_number, t + k, lanes, group);
#pragma unroll
          for (int p = 0; p < Packs; ++p) {
            ways[k][p].add(weight, row[k].pack[p], /*conjugate=*/false);
          }
          dots[k] = dot(own, row[k], false, false);
        }
        const accumulate_t<T> made = sum_four(dots, lanes, group);
        const Index place = from_lane(second, t + (lane & (kWays - 1)), lanes, group);
        if (lane < kWays && t + lane < here) {
          d.dots[place] = narrow<T>(made);
        }
      }
    }
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t channel = static_cast<std::int64_t>(p * lanes + lane) * Width;
      if (channel >= g.channels) {
        continue;
      }
      Pack<T, Width> out;
#pragma unroll
      for (int c = 0; c < Width; ++c) {
        const accumulate_t<T> total = (ways[0][p].at[c] + ways[1][p].at[c]) + (ways[2][p].at[c] + ways[3][p].at[c]);
        if (number < g.choice.spans) {
          g.part(0, number, channel)[c] = total;
        }
        out.at[c] = narrow<T>(total);
      }
      if (number >= g.choice.spans) {
        store_once(g.destination(0, piece.row, channel), out);
      }
    }
  }
}

template <typename T>
std::int64_t width_of(const GatherSumDotsArgs& args) {
  const ProductArgs& sum = args.sum;
  const std::int64_t channels = sum.extent_a;
  return is_aligned<T>(sum.x.data, 0, sum.x.stride_m, channels) &&
                 is_aligned<T>(args.rows, 0, args.row_stride, channels) && channels % kVectorWidth<T> == 0
             ? kVectorWidth<T>
             : 1;
}

/// Packs of two bytes an element would need more registers than there are.
template <typename T>
constexpr int kMostPacksOf = sizeof(T) == 2 ? 2 : kMostPacks;

/// 1, 2 or 4 vectors of a lane; 0: too many.
int packs_for(std::int64_t vectors) {
  const std::int64_t lanes = std::int64_t{1} << dot_lane_bits(vectors);
  return vectors <= lanes ? 1 : vectors <= 2 * lanes ? 2 : vectors <= kMostPacks * lanes ? 4 : 0;
}

template <typename F>
void visit_real_types(ScalarType type, bool wide, F&& f) {
  visit_types(type, wide, [&](auto scalar, auto index) {
    if constexpr (!is_complex_v<decltype(scalar)>) {
      f(scalar, index);
    }
  });
}

template <int Width, int Packs, typename T, typename Index>
void run(const GatherSumDotsArgs& args, const CudaExecutor& executor, void* workspace) {
  const ProductArgs& sum = args.sum;
  GatherSumChoice choice;
  choice.width = Width;
  choice.lane_bits = dot_lane_bits((sum.extent_a + Width - 1) / Width);
  choice.spans = spans_of(sum.terms.terms);
  const GatherSumDots<T, Index> d{
      {TermsView<Index>(sum.terms), sum.x, sum.y, nullptr, false, static_cast<T*>(sum.output()), sum.z.stride_n,
       sum.z.stride_m, 1, sum.extent_a, sum.terms.terms, choice, static_cast<accumulate_t<T>*>(workspace)},
      static_cast<const T*>(args.rows),
      args.row_stride,
      static_cast<T*>(args.dots)};
  launch({"gather_sum_dots", blocks_for(choice.spans + sum.terms.rows, kRowThreads >> choice.lane_bits), kRowThreads},
         executor, sum_dots_kernel<Width, Packs, T, Index>, d);
  launch({"add_chunks", blocks_for(choice.spans, kThreads), kThreads}, executor, add_chunks_kernel<T, Index>, d.sum);
}

template <int Width, typename T, typename Index>
void run_packs(int packs, const GatherSumDotsArgs& args, const CudaExecutor& executor, void* workspace) {
  if (packs == 1) {
    run<Width, 1, T, Index>(args, executor, workspace);
  } else if (packs == 2) {
    run<Width, 2, T, Index>(args, executor, workspace);
  } else if constexpr (kMostPacksOf<T> == 4) {
    run<Width, 4, T, Index>(args, executor, workspace);
  }
}

}  // namespace

bool is_gather_sum_dots(const GatherSumDotsArgs& args) {
  const ProductArgs& sum = args.sum;
  bool fits = false;
  visit_real_types(sum.type, false, [&](auto scalar, auto) {
    using T = decltype(scalar);
    const std::int64_t width = width_of<T>(args);
    const std::int64_t vectors = (sum.extent_a + width - 1) / width;
    const int packs = packs_for(vectors);
    fits = vectors >= kWays && packs > 0 && packs <= kMostPacksOf<T>;
  });
  return fits && is_gather_sum(sum) && sum.pattern == Pattern::vecsca && sum.batch == 1 && sum.scale == nullptr &&
         sum.y.data != nullptr;
}

std::int64_t gather_sum_dots_workspace(const GatherSumDotsArgs& args) { return gather_sum_workspace(args.sum); }

void gather_sum_dots(const GatherSumDotsArgs& args, const CudaExecutor& executor, void* workspace) {
  visit_real_types(args.sum.type, args.sum.terms.wide, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    using Index = decltype(index);
    const std::int64_t width = width_of<T>(args);
    const int packs = packs_for((args.sum.extent_a + width - 1) / width);
    if (width == 1) {
      run_packs<1, T, Index>(packs, args, executor, workspace);
    } else {
      run_packs<kVectorWidth<T>, T, Index>(packs, args, executor, workspace);
    }
  });
}

}  // namespace lacewing::kernels::cuda
