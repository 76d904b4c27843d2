// Groups of lanes own rows and walk over their terms; a lane owns some channels. Channel blocks are outermost, so that
// a slice of the gathered rows stays in the L2 cache. Few channels: sum_tiles.cu. The order of a row's sum:
// gathered_rows.h.
#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/gathered_rows.h"
#include "kernels/cuda/sum_tiles.h"

namespace lacewing::kernels::cuda {
namespace {

/// Terms whose rows are read at a time.
constexpr int kAhead = 4;
/// Blocks of a processor, at least: 64 registers a thread.
constexpr int kRowBlocks = 8;

/// Adds the first `valid` of a few terms over one lane's channels, which begin at `from` in each row.
template <int Width, typename Weights, typename T, typename Index>
__device__ __forceinline__ void add_terms(const GatherSum<T, Index>& g, const Weights& weights, const char* from,
                                          count_t<Index> first, int valid, Sums<T, Width>& sums) {
  Index gathered[kAhead], where[kAhead];
  Pack<T, Width> row[kAhead];
  accumulate_t<T> weight[kAhead];
  read_places<Weights::gathers, 1>(g.terms.index1, first, valid, gathered);
  weights.template read_where<1>(first, valid, where);
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    if (k < valid) {
      row[k] = load<Width>(row_at<T>(from, gathered[k], g.row_bytes()));
    }
  }
  weights.template read<1>(where, valid, weight);
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    if (k < valid) {
      sums.add(weight[k], row[k], weights.conjugates);
    }
  }
}

template <int Width, typename Weights, typename T, typename Index>
__device__ __forceinline__ Sums<T, Width> sum_piece(const GatherSum<T, Index>& g, const Weights& weights,
                                                    const char* from, const Piece<count_t<Index>>& piece) {
  Sums<T, Width> sums;
  count_t<Index> term = piece.begin;
#pragma unroll 1
  for (; piece.end - term >= kAhead; term += kAhead) {
    add_terms(g, weights, from, term, kAhead, sums);
  }
  if (term < piece.end) {
    add_terms(g, weights, from, term, static_cast<int>(piece.end - term), sums);
  }
  return sums;
}

template <int Width, typename Weights, typename T, typename Index>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    sum_rows_kernel(const __grid_constant__ GatherSum<T, Index> g, const __grid_constant__ Weights weights) {
  using Count = count_t<Index>;
  const int bits = g.choice.lane_bits;
  const int lane = static_cast<int>(threadIdx.x) & ((1 << bits) - 1);
  const int groups = kRowThreads >> bits;
  const std::int64_t blocks = (g.pieces() + groups - 1) >> (kRowThreadBits - bits);
  const std::int64_t passes = g.batch * g.choice.channel_blocks;
#pragma unroll 1
  for (std::int64_t block = blockIdx.x; block < blocks * passes; block += gridDim.x) {
    const std::int64_t pass = passes == 1 ? 0 : block / blocks;
    const std::int64_t n = g.batch == 1 ? 0 : pass / g.choice.channel_blocks;
    const std::int64_t channel = (((pass - n * g.choice.channel_blocks) << bits) + lane) * Width;
    const std::int64_t number = (block - pass * blocks) * groups + (threadIdx.x >> bits);
    if (number >= g.pieces()) {
      continue;
    }
    const bool is_chunk = number < g.choice.spans;
    const auto span = static_cast<Count>(number);
    Piece<Count> piece;
    if (is_chunk) {
      const bool found = g.find_chunk(span, lane, 1 << bits, group_mask(bits), piece);
      if (pass == 0 && lane == 0) {
        g.chunk_rows[span] = found ? static_cast<Index>(piece.row) : g.kNone;
      }
      if (!found) {
        continue;
      }
    } else {
      piece = g.whole(static_cast<Count>(number - g.choice.spans));
      if (g.is_long(piece)) {
        continue;
      }
    }
    if (channel >= g.channels) {
      continue;
    }
    const auto* const from = reinterpret_cast<const char*>(g.vectors(n) + channel);
    const Sums<T, Width> sums = sum_piece<Width>(g, weights.of(g, n), from, piece);
    if (is_chunk) {
#pragma unroll
      for (int c = 0; c < Width; ++c) {
        g.part(n, span, channel)[c] = sums.at[c];
      }
    } else {
      store_once(g.destination(n, piece.row, channel), narrowed(sums));
    }
  }
}

template <typename T>
GatherSumChoice choice_of(const ProductArgs& args) {
  GatherSumSizes sizes;
  sizes.rows = args.terms.rows;
  sizes.terms = args.terms.terms;
  sizes.grouped = args.terms.segments != nullptr;
  sizes.channels = args.extent_a * args.extent_b;
  sizes.gathered_rows = args.x.rows;
  sizes.element_bytes = sizeof(T);
  sizes.tile = kTileOf<sizeof(accumulate_t<T>)>;
  sizes.index_bytes = args.terms.wide ? 8 : 4;
  sizes.cache_bytes = device_facts().cache_bytes;
  sizes.numbers_in_order = args.y.data == nullptr || args.terms.index2 == nullptr || args.batch > 1 ||
                           !OneWeight<T, std::int32_t>::takes(args);
  const bool vectors = !is_complex_v<T> &&
                       is_aligned<T>(args.x.data, args.x.stride_n, args.x.stride_m, sizes.channels) &&
                       is_aligned<T>(args.z.data, args.z.stride_n, args.z.stride_m, sizes.channels);
  sizes.vector_width = vectors ? kVectorWidth<T> : 1;
  return choose_gather_sum(sizes);
}

/// Workspace of a call: what its sums need, and room for numbers in order.
template <typename T, typename Index>
struct Space {
  GatherSumSpace<T, Index> sums;
  Slot<T> numbers;

  Space(const GatherSumChoice& choice, const ProductArgs& args)
      : sums(choice, args), numbers(sums.layout.template add<T>(choice.order_numbers ? args.terms.terms : 0)) {}
};

template <typename T, typename Index, typename Weights>
void run_with(const GatherSum<T, Index>& g, const Weights& weights, const CudaExecutor& executor) {
  if (g.choice.tiles > 0) {
    return sum_tiles(g, weights, executor);
  }
  const std::int64_t pieces = g.choice.spans + static_cast<std::int64_t>(g.rows);
  const Launch shape{"sum_rows",
                     blocks_for(pieces, kRowThreads >> g.choice.lane_bits) * g.choice.channel_blocks * g.batch,
                     kRowThreads};
  if (g.choice.width == 1) {
    launch(shape, executor, sum_rows_kernel<1, Weights, T, Index>, g, weights);
  } else if constexpr (!is_complex_v<T>) {
    launch(shape, executor, sum_rows_kernel<kVectorWidth<T>, Weights, T, Index>, g, weights);
  }
  add_chunks(g, executor);
}

template <typename T, typename Index>
void run(const ProductArgs& args, const CudaExecutor& executor, void* workspace) {
  const GatherSumChoice choice = choice_of<T>(args);
  const Space<T, Index> space(choice, args);
  const GatherSum<T, Index> g = space.sums.call(choice, args, workspace);
  if (!OneWeight<T, Index>::takes(args)) {
    return run_with(g, AnyWeight<T, Index>{}, executor);
  }
  OneWeight<T, Index> weight(args);
  if (choice.order_numbers) {
    numbers_in_order(weight.data, weight.place, space.numbers.at(workspace), args.terms.terms, executor);
    weight.data = space.numbers.at(workspace);
    weight.place = nullptr;
  }
  if (weight.data != nullptr && weight.place == nullptr && g.terms.index1 != nullptr) {
    return run_with(g, WeightInOrder<T, Index>{weight.data, weight.stride_n}, executor);
  }
  run_with(g, weight, executor);
}

}  // namespace

bool is_gather_sum(const ProductArgs& args) {
  const bool one_channel = args.extent_a == 1 && args.extent_b == 1;
  bool near = false;
  visit_types(args.type, args.terms.wide, [&](auto scalar, auto) { near = has_near_rows<decltype(scalar)>(args); });
  return near && !args.accumulate && (one_channel || (args.pattern == Pattern::vecsca && args.x.stride_a == 1));
}

std::int64_t gather_sum_workspace(const ProductArgs& args) {
  std::int64_t bytes = 0;
  visit_types(args.type, args.terms.wide, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    bytes = Space<T, decltype(index)>(choice_of<T>(args), args).sums.layout.bytes();
  });
  return bytes;
}

void gather_sum(const ProductArgs& args, const CudaExecutor& executor, void* workspace) {
  visit_types(args.type, args.terms.wide,
              [&](auto scalar, auto index) { run<decltype(scalar), decltype(index)>(args, executor, workspace); });
}

}  // namespace lacewing::kernels::cuda
