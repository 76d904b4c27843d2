// Sums of gathered numbers: few channels, one at a time. A block owns a tile of so many rows and terms together, in the
// order in which they follow each other (a row, then its terms): so blocks have equal work however long the rows are.
// It reads the terms side by side and keeps their products in shared memory, where four lanes add those of a row.
//
// The rows that begin in a tile are its own, to their last terms, and so are chunks of long rows that begin there.
//
// Order of a row's sum: products are rounded; four sums of every fourth one, and a tree over them. Of a chunk: as many
// sums as a warp has lanes, and a tree over them.
#pragma once

#include "kernels/cuda/gathered_rows.h"

namespace lacewing::kernels::cuda {

inline constexpr int kTileAhead = 4;
inline constexpr int kTileWays = 4;
/// Blocks of a processor, at least: as many as registers allow without spilling.
template <typename Acc, typename Index>
inline constexpr int kTileBlocks = sizeof(Acc) + sizeof(Index) <= 8 ? 6 : 4;

/// A product that is rounded before it is added, in every kernel.
template <typename Acc>
__device__ __forceinline__ Acc rounded_product(Acc a, Acc b) {
  if constexpr (std::is_same_v<Acc, float>) {
    return __fmul_rn(a, b);
  } else if constexpr (std::is_same_v<Acc, double>) {
    return __dmul_rn(a, b);
  } else {
    return a * b;
  }
}

/// Calls use(term - begin, product) for the terms of [begin, end), side by side: a few at a time of each thread.
template <int Threads, typename Weights, typename T, typename Index, typename Use>
__device__ __forceinline__ void each_product(const GatherSum<T, Index>& g, const Weights& weights, const char* from,
                                             count_t<Index> begin, count_t<Index> end, int thread, Use&& use) {
  using Count = count_t<Index>;
  constexpr Count kStep = Threads;
#pragma unroll 1
  for (Count first = begin + thread; first < end; first += kStep * kTileAhead) {
    const Count left = (end - first + kStep - 1) / kStep;
    const int valid = left < kTileAhead ? static_cast<int>(left) : kTileAhead;
    Index gathered[kTileAhead], where[kTileAhead];
    T number[kTileAhead];
    accumulate_t<T> weight[kTileAhead];
    read_places<Weights::gathers, Threads>(g.terms.index1, first, valid, gathered);
    weights.template read_where<Threads>(first, valid, where);
#pragma unroll
    for (int k = 0; k < kTileAhead; ++k) {
      if (k < valid) {
        number[k] = *row_at<T>(from, gathered[k], g.row_bytes());
      }
    }
    weights.template read<Threads>(where, valid, weight);
#pragma unroll
    for (int k = 0; k < kTileAhead; ++k) {
      if (k < valid) {
        const accumulate_t<T> value = widen(number[k]);
        use(first - begin + k * kStep, rounded_product(weight[k], weights.conjugates ? conj(value) : value));
      }
    }
  }
}

/// The sum of every fourth of a row's products, from the one of a lane of four.
template <typename Acc, typename Count>
__device__ __forceinline__ Acc sum_of_lane(const Acc* products, Count begin, Count end, int lane) {
  Acc sum{};
#pragma unroll 4
  for (Count i = begin + lane; i < end; i += kTileWays) {
    sum += products[i];
  }
  return sum;
}

/// Whose chunk begins in each span whose last term lies in a tile, where the tile's rows begin at `begins`.
template <typename T, typename Index>
__device__ __forceinline__ void note_chunks(const GatherSum<T, Index>& g, count_t<Index> first_row,
                                            const count_t<Index>* begins, int rows) {
  using Count = count_t<Index>;
  const Count spans = begins[rows] == g.term_count ? static_cast<Count>(g.choice.spans) : begins[rows] / g.kChunk;
  for (Count span = begins[0] / g.kChunk + threadIdx.x; span < spans; span += kThreads) {
    const Count last = g.last_of(span);
    int low = 0;
    int high = rows;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (begins[middle] <= last ? low : high) = middle;
    }
    Piece<Count> piece{first_row + low, begins[low], begins[low + 1]};
    g.chunk_rows[span] = g.cut_to_chunk(span, piece) ? static_cast<Index>(piece.row) : g.kNone;
  }
}

/// The first row of each tile, and of the one after the last. A row's place is how many rows and terms come before it,
/// and its terms follow it.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) cut_tiles_kernel(const __grid_constant__ GatherSum<T, Index> g) {
  using Count = count_t<Index>;
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; tile <= g.choice.tiles;
       tile += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t place = tile * g.choice.tile;
    const Count rows_before = last_where(Count{0}, g.rows + 1, lane, kWarp, kWholeWarp, [&](Count i) {
      return i == 0 || static_cast<std::int64_t>(i - 1) + static_cast<std::int64_t>(g.begin(i - 1)) < place;
    });
    if (lane == 0) {
      g.tile_rows[tile] = static_cast<Index>(rows_before);
    }
  }
}

/// A chunk, summed by a warp.
template <typename Weights, typename T, typename Index>
__device__ __forceinline__ void sum_chunk(const GatherSum<T, Index>& g, const Weights& weights, std::int64_t n,
                                          std::int64_t channel, count_t<Index> span, count_t<Index> begin,
                                          count_t<Index> end) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  accumulate_t<T> sum{};
  each_product<kWarp>(g, weights, reinterpret_cast<const char*>(g.vectors(n) + channel), begin, end, lane,
                      [&](count_t<Index>, accumulate_t<T> product) { sum += product; });
  sum = sum_lanes(sum, kWarp);
  if (lane == 0) {
    *g.part(n, span, channel) = sum;
  }
}

/// The chunks of a long row that begin in a tile.
template <typename Weights, typename T, typename Index>
__device__ __forceinline__ void sum_chunks(const GatherSum<T, Index>& g, const Weights& weights, std::int64_t n,
                                           std::int64_t channel, std::int64_t place, const Piece<count_t<Index>>& row) {
  using Count = count_t<Index>;
  constexpr int kWarps = kThreads / kWarp;
  const Count chunks = (row.end - row.begin) / g.kChunk;
  const std::int64_t before = place - static_cast<std::int64_t>(row.begin) - static_cast<std::int64_t>(row.row) - 1;
  const auto first = before > 0 ? static_cast<Count>((before + kChunkTerms - 1) / kChunkTerms) : Count{0};
  const std::int64_t last = before + g.choice.tile;  // terms of the row before the tile's end
  for (Count chunk = first + threadIdx.x / kWarp;
       chunk < chunks && static_cast<std::int64_t>(chunk) * kChunkTerms < last; chunk += kWarps) {
    const Count begin = row.begin + chunk * g.kChunk;
    sum_chunk(g, weights, n, channel, begin / g.kChunk, begin, chunk + 1 == chunks ? row.end : begin + g.kChunk);
  }
}

template <typename Weights, typename T, typename Index>
__global__ void __launch_bounds__(kThreads, (kTileBlocks<accumulate_t<T>, Index>))
    sum_tiles_kernel(const __grid_constant__ GatherSum<T, Index> g, const __grid_constant__ Weights weights) {
  using Count = count_t<Index>;
  constexpr int kTile = kTileOf<sizeof(accumulate_t<T>)>;
  __shared__ accumulate_t<T> products[kTile + 2 * kChunkTerms];  // no row of the tile that is not long ends later
  __shared__ Count begins[kTile + 1];
  __shared__ Count long_rows[kTile / kChunkTerms];
  __shared__ int long_count;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t tiles = g.choice.tiles;
  const std::int64_t passes = g.batch * g.channels;
  for (std::int64_t block = blockIdx.x; block < tiles * passes; block += gridDim.x) {
    const std::int64_t pass = passes == 1 ? 0 : block / tiles;
    const std::int64_t n = g.batch == 1 ? 0 : pass / g.channels;
    const std::int64_t channel = pass - n * g.channels;
    const auto weights_of_n = weights.of(g, n);
    const std::int64_t tile = block - pass * tiles;
    const auto first_row = static_cast<Count>(g.tile_rows[tile]);
    const auto rows = static_cast<int>(g.tile_rows[tile + 1] - g.tile_rows[tile]);
    if (thread == 0) {
      // The row before may reach into the tile.
      long_count = 0;
      if (g.choice.spans > 0 && first_row > 0 && g.is_long(g.whole(first_row - 1))) {
        long_rows[long_count++] = first_row - 1;
      }
    }
    for (int i = thread; i <= rows; i += kThreads) {
      begins[i] = g.begin(first_row + i);
    }
    __syncthreads();
    if (rows > 0) {
      const Count length = begins[rows] - begins[0];
      constexpr Count kMost = kTile + 2 * kChunkTerms;
      each_product<kThreads>(g, weights_of_n, reinterpret_cast<const char*>(g.vectors(n) + channel), begins[0],
                             begins[0] + (length < kMost ? length : kMost), thread,
                             [&](Count i, accumulate_t<T> product) { products[i] = product; });
      if (pass == 0 && g.choice.spans > 0) {
        note_chunks(g, first_row, begins, rows);
      }
    }
    __syncthreads();
    const int lane = thread % kTileWays;
    constexpr int kGroups = kThreads / kTileWays;
    for (int round = 0; round < rows; round += kGroups) {  // equal for all lanes
      const int i = round + thread / kTileWays;
      const Piece<Count> row = i < rows ? Piece<Count>{first_row + i, begins[i], begins[i + 1]} : Piece<Count>{};
      const bool is_long = g.is_long(row);
      accumulate_t<T> sum{};
      if (!is_long) {
        sum = sum_of_lane(products, row.begin - begins[0], row.end - begins[0], lane);
      }
      sum = sum_lanes(sum, kTileWays);
      if (lane == 0 && is_long) {
        long_rows[atomicAdd(&long_count, 1)] = row.row;
      } else if (lane == 0 && i < rows) {
        *g.destination(n, row.row, channel) = narrow<T>(sum);
      }
    }
    __syncthreads();
    for (int i = 0; i < long_count; ++i) {
      sum_chunks(g, weights_of_n, n, channel, tile * g.choice.tile, g.whole(long_rows[i]));
    }
    __syncthreads();
  }
}

/// Rows of very few terms: a thread for each, with the bits of the kernel above.
template <typename Weights, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    sum_short_rows_kernel(const __grid_constant__ GatherSum<T, Index> g, const __grid_constant__ Weights weights) {
  using Count = count_t<Index>;
  const auto rows = static_cast<std::int64_t>(g.rows);
  const std::int64_t items = rows * g.batch * g.channels;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; item < items; item += step) {
    const std::int64_t pass = item < rows ? 0 : item / rows;
    const std::int64_t n = g.batch == 1 ? 0 : pass / g.channels;
    const std::int64_t channel = pass - n * g.channels;
    const Piece<Count> row = g.whole(static_cast<Count>(item - pass * rows));
    if (g.is_long(row)) {
      continue;
    }
    accumulate_t<T> sums[kTileWays] = {};
    const auto* const from = reinterpret_cast<const char*>(g.vectors(n) + channel);
    static_assert(kTileAhead == kTileWays);
    each_product<1>(g, weights.of(g, n), from, row.begin, row.end, 0, [&](Count i, accumulate_t<T> product) {
#pragma unroll
      for (int way = 0; way < kTileWays; ++way) {
        sums[way] = static_cast<int>(i % kTileWays) == way ? sums[way] + product : sums[way];
      }
    });
    *g.destination(n, row.row, channel) = narrow<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

/// A warp for each span in which a chunk may begin.
template <typename Weights, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    sum_spans_kernel(const __grid_constant__ GatherSum<T, Index> g, const __grid_constant__ Weights weights) {
  using Count = count_t<Index>;
  constexpr int kWarps = kThreads / kWarp;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
       number < g.choice.spans; number += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const auto span = static_cast<Count>(number);
    Piece<Count> piece;
    const bool found = g.find_chunk(span, lane, kWarp, kWholeWarp, piece);
    if (lane == 0) {
      g.chunk_rows[span] = found ? static_cast<Index>(piece.row) : g.kNone;
    }
    for (std::int64_t pass = 0; found && pass < g.batch * g.channels; ++pass) {
      const std::int64_t n = pass / g.channels;
      sum_chunk(g, weights.of(g, n), n, pass - n * g.channels, span, piece.begin, piece.end);
    }
  }
}

/// The chunks of long rows, added by a warp for a few spans.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) add_numbers_kernel(const __grid_constant__ GatherSum<T, Index> g) {
  using Count = count_t<Index>;
  constexpr int kSpans = 4;
  constexpr int kWarps = kThreads / kWarp;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kSpans;
       first < g.choice.spans; first += static_cast<std::int64_t>(gridDim.x) * kWarps * kSpans) {
    const Index row_there = lane < kSpans && first + lane < g.choice.spans ? g.chunk_rows[first + lane] : g.kNone;
    for (unsigned left = __ballot_sync(kWholeWarp, g.begins_in(first + lane, row_there)); left != 0; left &= left - 1) {
      const int place = __ffs(static_cast<int>(left)) - 1;
      const auto span = static_cast<Count>(first + place);
      const Piece<Count> row = g.whole(static_cast<Count>(from_lane(row_there, place, kWarp, kWholeWarp)));
      const Count chunks = (row.end - row.begin) / g.kChunk;
      for (std::int64_t pass = 0; pass < g.batch * g.channels; ++pass) {
        const std::int64_t n = pass / g.channels;
        const std::int64_t channel = pass - n * g.channels;
        wider_t<T> sum{};
#pragma unroll 4
        for (Count chunk = lane; chunk < chunks; chunk += kWarp) {
          sum += converted<wider_t<T>>(*g.part(n, span + chunk, channel));
        }
        sum = sum_lanes(sum, kWarp);
        if (lane == 0) {
          *g.destination(n, row.row, channel) = rounded<T>(sum);
        }
      }
    }
  }
}

template <typename Weights, typename T, typename Index>
void sum_tiles(const GatherSum<T, Index>& g, const Weights& weights, const CudaExecutor& executor) {
  constexpr std::int64_t kWarps = kThreads / kWarp;
  const std::int64_t passes = g.batch * g.channels;
  const auto rows = static_cast<std::int64_t>(g.rows);
  if (static_cast<std::int64_t>(g.term_count) < 2 * rows) {
    launch({"sum_short_rows", blocks_for(rows * passes, kThreads), kThreads}, executor,
           sum_short_rows_kernel<Weights, T, Index>, g, weights);
    launch({"sum_spans", blocks_for(g.choice.spans, kWarps), kThreads}, executor, sum_spans_kernel<Weights, T, Index>,
           g, weights);
  } else {
    launch({"cut_tiles", blocks_for(g.choice.tiles + 1, kWarps), kThreads}, executor, cut_tiles_kernel<T, Index>, g);
    launch({"sum_tiles", g.choice.tiles * passes, kThreads}, executor, sum_tiles_kernel<Weights, T, Index>, g, weights);
  }
  launch({"add_numbers", blocks_for(g.choice.spans, 4 * kWarps), kThreads}, executor, add_numbers_kernel<T, Index>, g);
}

}  // namespace lacewing::kernels::cuda
