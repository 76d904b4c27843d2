// A group of lanes owns a row, or a chunk of a long one: each vector that it gathers is added to the row's sum, and
// multiplied with the row that the lanes hold. Slices of channels run one after the other: a slice of the gathered rows
// stays in the L2 cache, and each adds its share to the dots. Numbers and dots lie in the order of the terms meanwhile.
//
// The sums have the order of gathered_rows.h, the dots that of row_dots.h: the bits of the two kernels that this one
// stands for.
#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/gathered_rows.h"
#include "kernels/cuda/row_dots.h"
#include "kernels/gather_sum_dots.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kBlocks = 8;  ///< of a processor, at least

template <typename T, typename Index>
struct GatherSumDots {
  GatherSum<T, Index> sum;
  const T* numbers;  ///< in the order of the terms
  const T* rows;
  std::int64_t row_stride;
  accumulate_t<T>* dots;  ///< in the order of the terms
  std::int64_t slice;
};

/// A group of lanes with a piece of work, over one slice of channels.
template <int Width, int Packs, int LaneBits, typename T, typename Index>
struct SumsAndDots {
  using Count = count_t<Index>;
  static constexpr int kLanes = 1 << LaneBits;
  static constexpr int kAhead = kDotsAhead<Packs>;

  const GatherSumDots<T, Index>& d;
  const char* from;   ///< where this lane's channels begin in each gathered row
  std::int64_t left;  ///< channels from this lane's first one on
  int lane;
  unsigned group;
  Row<Width, Packs, T> own;
  Sums<T, Width> sums[Packs];

  /// The first `valid` of a few terms.
  __device__ __forceinline__ void add_terms(Count first, int valid) {
    Index gathered[kAhead];
    T number[kAhead];
    Row<Width, Packs, T> row[kAhead];
    read_places</*Given=*/false, 1>(d.sum.terms.index1, first, valid, gathered);
    read_each<1>(d.numbers, first, valid, number);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k < valid) {
        row[k].read(row_at<T>(from, gathered[k], d.sum.row_bytes()), kLanes, left);
      }
    }
    accumulate_t<T> dots[kAhead] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k < valid) {
#pragma unroll
        for (int p = 0; p < Packs; ++p) {
          if (own.has(p, kLanes, left)) {
            sums[p].add(widen(number[k]), row[k].pack[p], /*conjugate=*/false);
          }
        }
        dots[k] = dot(own, row[k], false, false, kLanes, left);
      }
    }
    sum_dots(dots, lane, kLanes, group, [&](int k, accumulate_t<T> sum) {
      if (k < valid) {
        accumulate_t<T>* const place = d.dots + first + k;
        *place = d.slice == 0 ? sum : *place + sum;
      }
    });
  }

  __device__ __forceinline__ void add_piece(const Piece<Count>& piece) {
    Count term = piece.begin;
#pragma unroll 1
    for (; piece.end - term >= kAhead; term += kAhead) {
      add_terms(term, kAhead);
    }
    if (term < piece.end) {
      add_terms(term, static_cast<int>(piece.end - term));
    }
  }
};

template <int Width, int Packs, int LaneBits, typename T, typename Index>
__global__ void __launch_bounds__(kRowThreads, Packs* Width <= 8 ? kBlocks : kBlocks / 2)
    sum_dots_kernel(const __grid_constant__ GatherSumDots<T, Index> d) {
  using Count = count_t<Index>;
  using Work = SumsAndDots<Width, Packs, LaneBits, T, Index>;
  constexpr int kGroups = kRowThreads >> LaneBits;
  const GatherSum<T, Index>& g = d.sum;
  const int lane = static_cast<int>(threadIdx.x) & (Work::kLanes - 1);
  const unsigned group = group_mask(LaneBits);
  const std::int64_t channel = ((d.slice * Packs << LaneBits) + lane) * Width;
  const std::int64_t blocks = (g.pieces() + kGroups - 1) / kGroups;
#pragma unroll 1
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const std::int64_t number = block * kGroups + (threadIdx.x >> LaneBits);
    if (number >= g.pieces()) {
      continue;
    }
    const bool is_chunk = number < g.choice.spans;
    const auto span = static_cast<Count>(number);
    Piece<Count> piece;
    if (is_chunk) {
      const bool found = g.find_chunk(span, lane, Work::kLanes, group, piece);
      if (lane == 0) {
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
    Work work{d, reinterpret_cast<const char*>(g.vectors(0) + channel), g.channels - channel, lane, group, {}, {}};
    work.own.read(d.rows + static_cast<std::int64_t>(piece.row) * d.row_stride + channel, Work::kLanes, work.left);
    work.add_piece(piece);
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t of_pack = channel + p * Work::kLanes * Width;
      if (of_pack >= g.channels) {
        continue;
      }
      if (is_chunk) {
#pragma unroll
        for (int c = 0; c < Width; ++c) {
          g.part(0, span, of_pack)[c] = work.sums[p].at[c];
        }
      } else {
        store_once(g.destination(0, piece.row, of_pack), narrowed(work.sums[p]));
      }
    }
  }
}

constexpr int kDotsAtOnce = 4;

/// Dots from the order of the terms to their places.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    place_dots_kernel(const accumulate_t<T>* in_order, const Index* places, T* dots, std::int64_t count) {
  constexpr std::int64_t kBlock = kThreads * kDotsAtOnce;
  for (std::int64_t first = blockIdx.x * kBlock + threadIdx.x; first < count; first += gridDim.x * kBlock) {
    const std::int64_t left = (count - first + kThreads - 1) / kThreads;
    const int valid = left < kDotsAtOnce ? static_cast<int>(left) : kDotsAtOnce;
    Index place[kDotsAtOnce];
    accumulate_t<T> dot[kDotsAtOnce];
    read_places</*Given=*/false, kThreads>(places, static_cast<count_t<Index>>(first), valid, place);
    read_each<kThreads>(in_order, static_cast<count_t<Index>>(first), valid, dot);
#pragma unroll
    for (int k = 0; k < kDotsAtOnce; ++k) {
      if (k < valid) {
        dots[place[k]] = narrow<T>(dot[k]);
      }
    }
  }
}

template <typename T>
int width_of(const GatherSumDotsArgs& args) {
  const ProductArgs& sum = args.sum;
  const std::int64_t channels = sum.extent_a;
  const bool vectors =
      is_aligned<T>(sum.x.data, 0, sum.x.stride_m, channels) && is_aligned<T>(args.rows, 0, args.row_stride, channels);
  return vectors ? kVectorWidth<T> : 1;
}

/// How a call runs, and what it needs of workspace.
template <typename T, typename Index>
struct Plan {
  int width;
  DotShape shape;
  GatherSumChoice choice;
  GatherSumSpace<T, Index> space;
  Slot<T> numbers;
  Slot<accumulate_t<T>> dots;
  bool orders_numbers, places_dots;

  explicit Plan(const GatherSumDotsArgs& args)
      : width(width_of<T>(args)),
        shape(DotShape::of((args.sum.extent_a + width - 1) / width)),
        choice(choice_of(args)),
        space(choice, args.sum),
        orders_numbers(args.sum.terms.index2 != nullptr),
        places_dots(args.sum.terms.index2 != nullptr || sizeof(T) != sizeof(accumulate_t<T>)) {
    numbers = space.layout.template add<T>(orders_numbers ? args.sum.terms.terms : 0);
    dots = space.layout.template add<accumulate_t<T>>(places_dots ? args.sum.terms.terms : 0);
  }

 private:
  GatherSumChoice choice_of(const GatherSumDotsArgs& args) const {
    constexpr int kMostPartLaneBits = 5;
    GatherSumChoice choice;
    choice.width = width;
    choice.lane_bits = shape.lane_bits;
    choice.part_lane_bits = bits_for(args.sum.extent_a, kMostPartLaneBits);
    choice.spans = spans_of(args.sum.terms.terms);
    return choice;
  }
};

template <int Width, int Packs, int LaneBits, typename T, typename Index>
void run_slices(GatherSumDots<T, Index> d, std::int64_t slices, const CudaExecutor& executor) {
  const std::int64_t pieces = d.sum.choice.spans + static_cast<std::int64_t>(d.sum.rows);
  for (d.slice = 0; d.slice < slices; ++d.slice) {
    launch({"gather_sum_dots", blocks_for(pieces, kRowThreads >> LaneBits), kRowThreads}, executor,
           sum_dots_kernel<Width, Packs, LaneBits, T, Index>, d);
  }
}

template <int Width, typename T, typename Index>
void run_shape(const GatherSumDots<T, Index>& d, const DotShape& shape, const CudaExecutor& executor) {
  if (shape.packs == 1) {
    run_slices<Width, 1, 2>(d, shape.slices, executor);
  } else if (shape.lane_bits == 2) {
    run_slices<Width, 2, 2>(d, shape.slices, executor);
  } else {
    run_slices<Width, 2, 3>(d, shape.slices, executor);
  }
}

template <typename T, typename Index>
void run(const GatherSumDotsArgs& args, const CudaExecutor& executor, void* workspace) {
  const Plan<T, Index> plan(args);
  const auto* const places = static_cast<const Index*>(args.sum.terms.index2);
  const std::int64_t terms = args.sum.terms.terms;
  GatherSumDots<T, Index> d{plan.space.call(plan.choice, args.sum, workspace),
                            static_cast<const T*>(args.sum.y.data),
                            static_cast<const T*>(args.rows),
                            args.row_stride,
                            plan.places_dots ? plan.dots.at(workspace) : static_cast<accumulate_t<T>*>(args.dots),
                            0};
  if (plan.orders_numbers) {
    T* const in_order = plan.numbers.at(workspace);
    numbers_in_order(d.numbers, places, in_order, terms, executor);
    d.numbers = in_order;
  }
  plan.width == 1 ? run_shape<1>(d, plan.shape, executor) : run_shape<kVectorWidth<T>>(d, plan.shape, executor);
  add_chunks(d.sum, executor);
  if (plan.places_dots) {
    launch({"place_dots", blocks_for(terms, kThreads * kDotsAtOnce), kThreads}, executor, place_dots_kernel<T, Index>,
           d.dots, places, static_cast<T*>(args.dots), terms);
  }
}

template <typename F>
void visit_real_types(ScalarType type, bool wide, F&& f) {
  visit_types(type, wide, [&](auto scalar, auto index) {
    if constexpr (!is_complex_v<decltype(scalar)>) {
      f(scalar, index);
    }
  });
}

}  // namespace

bool is_gather_sum_dots(const GatherSumDotsArgs& args) {
  constexpr std::int64_t kLeastVectors = 3;  // four lanes
  const ProductArgs& sum = args.sum;
  bool fits = false;
  visit_real_types(sum.type, sum.terms.wide, [&](auto scalar, auto) {
    using T = decltype(scalar);
    const std::int64_t width = width_of<T>(args);
    fits = has_near_rows<T>(sum) && (sum.extent_a + width - 1) / width >= kLeastVectors;
  });
  return fits && sum.extent_a >= kFewChannels && is_gather_sum(sum) && sum.pattern == Pattern::vecsca &&
         sum.batch == 1 && sum.scale == nullptr && sum.y.data != nullptr && sum.y.stride_m == 1;
}

std::int64_t gather_sum_dots_workspace(const GatherSumDotsArgs& args) {
  std::int64_t bytes = 0;
  visit_real_types(args.sum.type, args.sum.terms.wide, [&](auto scalar, auto index) {
    bytes = Plan<decltype(scalar), decltype(index)>(args).space.layout.bytes();
  });
  return bytes;
}

void gather_sum_dots(const GatherSumDotsArgs& args, const CudaExecutor& executor, void* workspace) {
  visit_real_types(args.sum.type, args.sum.terms.wide,
                   [&](auto scalar, auto index) { run<decltype(scalar), decltype(index)>(args, executor, workspace); });
}

}  // namespace lacewing::kernels::cuda
