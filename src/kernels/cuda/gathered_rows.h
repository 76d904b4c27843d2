// Sums of gathered rows: how rows are cut into pieces, and how the pieces of a long row are added.
//
// Order of a row's sum: its terms in order; of few channels that of sum_tiles.h. A long row is cut into chunks (see
// gather_sum_choose.h), each summed so; their sums are added in the wider type, several sums of every so-many-th chunk
// and a tree over them, where how many follows from the channels alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/workspace.h"
#include "kernels/cuda/row_pieces.h"
#include "kernels/terms.h"
#include "kernels/wider.h"

namespace lacewing::kernels::cuda {

/// Counts of rows and terms, as wide as the indices: 32 bits leave more registers, so that more rows are under way.
template <typename Index>
using count_t = std::make_unsigned_t<Index>;

/// The numbers of the first `valid` of some terms: `first`, and each Step after the one before.
template <int Step, int N, typename V, typename Count>
__device__ __forceinline__ void read_each(const V* numbers, Count first, int valid, V (&number)[N]) {
  const V* const from = numbers + first;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k < valid) {
      number[k] = from[k * Step];
    }
  }
}

/// The places that terms name. Null, unless Given, names the terms themselves.
template <bool Given, int Step, int N, typename Index>
__device__ __forceinline__ void read_places(const Index* places, count_t<Index> first, int valid, Index (&place)[N]) {
  if (Given || places != nullptr) {
    read_each<Step>(places, first, valid, place);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      place[k] = static_cast<Index>(first + k * Step);
    }
  }
}

/// What a group of lanes sums: terms of one row, a whole one or a chunk.
template <typename Count>
struct Piece {
  Count row = 0;
  Count begin = 0;
  Count end = 0;
};

template <typename T, typename Index>
struct GatherSum {
  using Count = count_t<Index>;
  static constexpr Index kNone = -1;
  static constexpr auto kChunk = static_cast<Count>(kChunkTerms);

  TermsView<Index> terms;
  Operand x, y;
  const T* scale;
  bool conjugate_scale;
  T* z;
  std::int64_t z_stride_n, z_stride_m;
  std::int64_t batch, channels;
  Count rows, term_count;
  GatherSumChoice choice;
  accumulate_t<T>* parts;  ///< (batch, spans, channels): sums of chunks
  Index* chunk_rows;       ///< (spans): the row of the chunk that begins in a span, or kNone
  Index* tile_rows;        ///< (tiles + 1), see sum_tiles.h

  __device__ std::int64_t pieces() const { return choice.spans + static_cast<std::int64_t>(rows); }
  __device__ Count begin(Count row) const {
    return terms.segments != nullptr ? static_cast<Count>(terms.segments[row]) : row;
  }
  __device__ Piece<Count> whole(Count row) const { return {row, begin(row), begin(row + 1)}; }
  static __device__ bool is_long(const Piece<Count>& piece) { return piece.end - piece.begin >= 2 * kChunk; }

  /// The last term of a span: a chunk that begins in a span holds it.
  __device__ Count last_of(Count span) const {
    const Count end = (span + 1) * kChunk;
    return (end < term_count ? end : term_count) - 1;
  }
  /// The chunk of a row, whole so far, that begins in a span; false where there is none.
  __device__ bool cut_to_chunk(Count span, Piece<Count>& piece) const {
    const Count chunks = (piece.end - piece.begin) / kChunk;
    const Count first = span * kChunk;
    const Count chunk = piece.begin >= first ? 0 : (first - piece.begin + kChunk - 1) / kChunk;
    const Count begin = piece.begin + chunk * kChunk;
    if (chunks < 2 || begin > last_of(span) || chunk >= chunks) {
      return false;
    }
    piece.begin = begin;
    piece.end = chunk + 1 == chunks ? piece.end : begin + kChunk;
    return true;
  }
  /// The piece of a span whose chunk_rows is known, and not kNone.
  __device__ Piece<Count> chunk_in(Count span) const {
    Piece<Count> piece = whole(static_cast<Count>(chunk_rows[span]));
    cut_to_chunk(span, piece);
    return piece;
  }
  /// Whether a row, which may be kNone, has its first chunk in a span.
  __device__ bool begins_in(std::int64_t span, Index row) const {
    return row != kNone && static_cast<std::int64_t>(begin(static_cast<Count>(row))) >= span * kChunkTerms;
  }
  /// The chunk that begins in a span, found by all lanes of a group together; false where there is none.
  __device__ bool find_chunk(Count span, int lane, int lanes, unsigned group, Piece<Count>& piece) const {
    const Count last = last_of(span);
    piece = whole(last_where(Count{0}, rows, lane, lanes, group, [&](Count row) { return begin(row) <= last; }));
    return cut_to_chunk(span, piece);
  }

  __device__ T* destination(std::int64_t n, Count row, std::int64_t channel) const {
    return z + n * z_stride_n + static_cast<std::int64_t>(row) * z_stride_m + channel;
  }
  __device__ accumulate_t<T>* part(std::int64_t n, Count span, std::int64_t channel) const {
    return parts + (n * choice.spans + static_cast<std::int64_t>(span)) * channels + channel;
  }

  __device__ const T* vectors(std::int64_t n) const { return static_cast<const T*>(x.data) + n * x.stride_n; }
  __device__ Count row_bytes() const { return static_cast<Count>(x.stride_m * static_cast<std::int64_t>(sizeof(T))); }
};

/// A row's vector among those that begin at `from`.
template <typename T, typename Index>
__device__ __forceinline__ const T* row_at(const char* from, Index row, count_t<Index> row_bytes) {
  return reinterpret_cast<const T*>(from + static_cast<std::uint64_t>(static_cast<count_t<Index>>(row)) * row_bytes);
}

// Weights are read in two steps, so that the rows are on their way meanwhile: where they stand, and what they are.

/// Weights that are one array: the numbers of y, or the scale; or none, which is 1.
template <typename T, typename Index>
struct OneWeight {
  const T* data = nullptr;
  const Index* place = nullptr;  ///< null: the identity
  std::int64_t stride_n = 0;

  /// Whether a call is such: no two arrays meet, and nothing is conjugated.
  static bool takes(const ProductArgs& args) {
    const bool conjugates = args.x.conjugate || args.y.conjugate || args.conjugate_scale;
    return !conjugates && (args.y.data == nullptr || (args.scale == nullptr && args.y.stride_m == 1));
  }
  explicit OneWeight(const ProductArgs& args)
      : data(static_cast<const T*>(args.y.data == nullptr ? args.scale : args.y.data)),
        place(static_cast<const Index*>(args.y.data == nullptr ? args.terms.order : args.terms.index2)),
        stride_n(args.y.data == nullptr ? 0 : args.y.stride_n) {}

  /// Those of one n.
  struct OfBatch {
    static constexpr bool gathers = false;  ///< whether terms name their rows for certain
    static constexpr bool conjugates = false;
    const T* data;
    const Index* place;

    template <int Step, int N>
    __device__ __forceinline__ void read_where(count_t<Index> first, int valid, Index (&where)[N]) const {
      read_places</*Given=*/false, Step>(place, first, valid, where);
    }
    template <int Step, int N>
    __device__ __forceinline__ void read(const Index (&where)[N], int valid, accumulate_t<T> (&weight)[N]) const {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (data == nullptr) {
          weight[k] = one<accumulate_t<T>>();
        } else if (k < valid) {
          weight[k] = widen(data[where[k]]);
        }
      }
    }
  };
  __device__ __forceinline__ OfBatch of(const GatherSum<T, Index>&, std::int64_t n) const {
    return {data == nullptr ? nullptr : data + n * stride_n, data == nullptr ? nullptr : place};
  }
};

/// Those of a matrix: in the order of the terms, which name their rows.
template <typename T, typename Index>
struct WeightInOrder {
  const T* data;
  std::int64_t stride_n;

  struct OfBatch {
    static constexpr bool gathers = true;
    static constexpr bool conjugates = false;
    const T* data;

    template <int Step, int N>
    __device__ __forceinline__ void read_where(count_t<Index> first, int, Index (&where)[N]) const {
      where[0] = static_cast<Index>(first);
    }
    template <int Step, int N>
    __device__ __forceinline__ void read(const Index (&where)[N], int valid, accumulate_t<T> (&weight)[N]) const {
      T number[N];
      read_each<Step>(data, static_cast<count_t<Index>>(where[0]), valid, number);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (k < valid) {
          weight[k] = widen(number[k]);
        }
      }
    }
  };
  __device__ __forceinline__ OfBatch of(const GatherSum<T, Index>&, std::int64_t n) const {
    return {data + n * stride_n};
  }
};

/// All others.
template <typename T, typename Index>
struct AnyWeight {
  struct OfBatch {
    static constexpr bool gathers = false;
    const GatherSum<T, Index>& g;
    const T* numbers;
    bool conjugates;

    template <int Step, int N>
    __device__ __forceinline__ void read_where(count_t<Index> first, int valid, Index (&where)[N]) const {
      read_places</*Given=*/false, Step>(static_cast<const Index*>(nullptr), first, valid, where);
    }
    template <int Step, int N>
    __device__ __forceinline__ void read(const Index (&where)[N], int valid, accumulate_t<T> (&weight)[N]) const {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (k < valid) {
          weight[k] = of_term(static_cast<count_t<Index>>(where[k]));
        }
      }
    }

   private:
    __device__ accumulate_t<T> of_term(count_t<Index> term) const {
      auto value = one<accumulate_t<T>>();
      if (numbers != nullptr) {
        value = widen(numbers[g.terms.second(term) * g.y.stride_m]);
        value = g.y.conjugate ? conj(value) : value;
      }
      if (g.scale != nullptr) {
        const accumulate_t<T> factor = widen(g.scale[g.terms.entry(term)]);
        value = (g.conjugate_scale ? conj(factor) : factor) * value;
      }
      return value;
    }
  };
  __device__ __forceinline__ OfBatch of(const GatherSum<T, Index>& g, std::int64_t n) const {
    return {g, g.y.data == nullptr ? nullptr : static_cast<const T*>(g.y.data) + n * g.y.stride_n, g.x.conjugate};
  }
};

/// Whether offsets of gathered rows are products of two counts.
template <typename T>
bool has_near_rows(const ProductArgs& args) {
  return args.terms.wide ||
         (args.x.stride_m >= 0 && args.x.stride_m <= std::int64_t{UINT32_MAX} / static_cast<std::int64_t>(sizeof(T)));
}

/// What a call needs of workspace.
template <typename T, typename Index>
struct GatherSumSpace {
  WorkspaceLayout layout;
  Slot<accumulate_t<T>> parts;
  Slot<Index> chunk_rows, tile_rows;

  GatherSumSpace(const GatherSumChoice& choice, const ProductArgs& args)
      : parts(layout.add<accumulate_t<T>>(choice.spans * args.batch * args.extent_a * args.extent_b)),
        chunk_rows(layout.add<Index>(choice.spans)),
        tile_rows(layout.add<Index>(choice.tiles > 0 ? choice.tiles + 1 : 0)) {}

  GatherSum<T, Index> call(const GatherSumChoice& choice, const ProductArgs& args, void* workspace) const {
    using Count = count_t<Index>;
    return {TermsView<Index>(args.terms),
            args.x,
            args.y,
            static_cast<const T*>(args.scale),
            args.conjugate_scale,
            static_cast<T*>(args.output()),
            args.z.stride_n,
            args.z.stride_m,
            args.batch,
            args.extent_a * args.extent_b,
            static_cast<Count>(args.terms.rows),
            static_cast<Count>(args.terms.terms),
            choice,
            parts.at(workspace),
            chunk_rows.at(workspace),
            tile_rows.at(workspace)};
  }
};

inline constexpr int kSpansAtOnce = 16;

/// The chunks of long rows, added. A block looks at so many spans, then adds the rows that begin there: its lanes take
/// neighbouring channels, and several of each every so-many-th chunk.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) add_chunks_kernel(const __grid_constant__ GatherSum<T, Index> g) {
  using Count = count_t<Index>;
  __shared__ wider_t<T> sums[kThreads];
  const int bits = g.choice.part_lane_bits;
  const int lanes = 1 << bits;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int way = static_cast<int>(threadIdx.x) >> bits;
  const int ways = kThreads >> bits;
  const std::int64_t blocks = (g.choice.spans + kSpansAtOnce - 1) / kSpansAtOnce;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const std::int64_t place = threadIdx.x % kWarp;
    const std::int64_t looked_at = block * kSpansAtOnce + place;
    const Index row_there = place < kSpansAtOnce && looked_at < g.choice.spans ? g.chunk_rows[looked_at] : g.kNone;
    const bool begins = g.begins_in(looked_at, row_there);
    for (unsigned left = __ballot_sync(kWholeWarp, begins); left != 0; left &= left - 1) {
      const auto span = static_cast<Count>(block * kSpansAtOnce + __ffs(static_cast<int>(left)) - 1);
      const Piece<Count> row = g.whole(static_cast<Count>(g.chunk_rows[span]));
      const Count chunks = (row.end - row.begin) / g.kChunk;
      for (std::int64_t n = 0; n < g.batch; ++n) {
        for (std::int64_t first = 0; first < g.channels; first += lanes) {
          const std::int64_t channel = first + lane;
          wider_t<T> sum{};
          if (channel < g.channels) {
#pragma unroll 4
            for (Count chunk = way; chunk < chunks; chunk += ways) {
              sum += converted<wider_t<T>>(*g.part(n, span + chunk, channel));
            }
          }
          sums[threadIdx.x] = sum;
          for (int half = ways / 2; half > 0; half /= 2) {
            __syncthreads();
            if (way < half) {
              sums[threadIdx.x] += sums[threadIdx.x + half * lanes];
            }
          }
          if (way == 0 && channel < g.channels) {
            *g.destination(n, row.row, channel) = rounded<T>(sums[threadIdx.x]);
          }
          __syncthreads();
        }
      }
    }
  }
}

template <typename T, typename Index>
void add_chunks(const GatherSum<T, Index>& g, const CudaExecutor& executor) {
  launch({"add_chunks", blocks_for(g.choice.spans, kSpansAtOnce), kThreads}, executor, add_chunks_kernel<T, Index>, g);
}

template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    numbers_in_order_kernel(const T* numbers, const Index* places, T* in_order, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    in_order[i] = numbers[places[i]];
  }
}

/// The numbers that terms take, one after the other: a pass of its own is cheaper than reads here and there among those
/// of the rows, which they push out of the cache.
template <typename T, typename Index>
void numbers_in_order(const T* numbers, const Index* places, T* in_order, std::int64_t count,
                      const CudaExecutor& executor) {
  launch({"numbers_in_order", blocks_for(count, kThreads), kThreads}, executor, numbers_in_order_kernel<T, Index>,
         numbers, places, in_order, count);
}

}  // namespace lacewing::kernels::cuda
