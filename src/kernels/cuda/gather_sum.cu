// Groups of lanes own rows and walk over their terms; a lane owns some channels. Channel blocks are outermost, so that
// a slice of the gathered rows stays in the L2 cache. The order of a row's sum: gathered_rows.h.
#include <limits>
#include <optional>

#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/gathered_rows.h"

namespace lacewing::kernels::cuda {
namespace {

/// The four sums of a piece over one lane's channels, added.
template <int Width, typename T, typename Index>
__device__ __forceinline__ Sums<T, Width> sum_piece(const GatherSum<T, Index>& g, const T* from, const T* numbers,
                                                    const Piece& piece) {
  Sums<T, Width> ways[kWays];
  for (std::int64_t t = piece.begin; t < piece.end; t += kWays) {
    Pack<T, Width> row[kWays];
    accumulate_t<T> weight[kWays];
    if (t + kWays <= piece.end) {
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        weight[k] = g.weight(numbers, t + k);
        row[k] = load<Width>(from + g.terms.first(t + k) * g.x.stride_m);
      }
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        ways[k].add(weight[k], row[k], g.x.conjugate);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kWays - 1; ++k) {
        if (t + k < piece.end) {
          weight[k] = g.weight(numbers, t + k);
          row[k] = load<Width>(from + g.terms.first(t + k) * g.x.stride_m);
        }
      }
#pragma unroll
      for (int k = 0; k < kWays - 1; ++k) {
        if (t + k < piece.end) {
          ways[k].add(weight[k], row[k], g.x.conjugate);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < Width; ++c) {
    ways[0].at[c] = (ways[0].at[c] + ways[1].at[c]) + (ways[2].at[c] + ways[3].at[c]);
  }
  return ways[0];
}

/// A group of lanes for each row or chunk, a lane for each Width channels.
template <int Width, typename T, typename Index>
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(const __grid_constant__ GatherSum<T, Index> g) {
  const int bits = g.choice.lane_bits;
  const int lane = static_cast<int>(threadIdx.x) & ((1 << bits) - 1);
  const int groups = kThreads >> bits;
  const std::int64_t items = g.pieces() * g.batch;
  const std::int64_t blocks = (items + groups - 1) / groups;
  for (std::int64_t block = blockIdx.x; block < blocks * g.choice.channel_blocks; block += gridDim.x) {
    const std::int64_t slice = g.choice.channel_blocks == 1 ? 0 : block / blocks;
    const std::int64_t item = (block - slice * blocks) * groups + (threadIdx.x >> bits);
    const std::int64_t channel = ((slice << bits) + lane) * Width;
    if (item >= items || channel >= g.channels) {
      continue;
    }
    const std::int64_t n = g.batch == 1 ? 0 : item / g.pieces();
    const std::int64_t number = item - n * g.pieces();
    const Piece piece = g.piece(number);
    if (piece.row < 0) {
      continue;
    }
    const Sums<T, Width> sums = sum_piece<Width>(g, g.vectors(n) + channel, g.numbers(n), piece);
    if (number < g.choice.spans) {
#pragma unroll
      for (int c = 0; c < Width; ++c) {
        g.part(n, number, channel)[c] = sums.at[c];
      }
    } else {
      Pack<T, Width> out;
#pragma unroll
      for (int c = 0; c < Width; ++c) {
        out.at[c] = narrow<T>(sums.at[c]);
      }
      store_once(g.destination(n, piece.row, channel), out);
    }
  }
}

/// Weights that are one array: the numbers of y, or the scale; or none, which is 1.
template <typename T>
struct TermWeights {
  const T* data = nullptr;
  const std::int32_t* place = nullptr;  ///< null: the identity
  std::int64_t stride_n = 0;

  /// Nothing where two arrays meet, or anything is conjugated.
  static std::optional<TermWeights> of(const ProductArgs& args) {
    if (args.x.conjugate || args.y.conjugate || args.conjugate_scale) {
      return std::nullopt;
    }
    if (args.y.data == nullptr) {
      return TermWeights{static_cast<const T*>(args.scale), static_cast<const std::int32_t*>(args.terms.order), 0};
    }
    if (args.scale != nullptr || args.y.stride_m != 1) {
      return std::nullopt;
    }
    return TermWeights{static_cast<const T*>(args.y.data), static_cast<const std::int32_t*>(args.terms.index2),
                       args.y.stride_n};
  }

  __device__ __forceinline__ accumulate_t<T> operator()(std::int64_t n, std::int64_t term) const {
    return data == nullptr ? one<accumulate_t<T>>()
                           : widen(data[n * stride_n + (place != nullptr ? place[term] : term)]);
  }
};

/// Rows whose lanes read indices and weights together, one term a lane, and hand them round: one wait for so many
/// terms.
constexpr int kFewestTogether = kWays;
/// Blocks of a processor, at least: as many as registers allow without spilling.
template <int Width, typename T>
constexpr int kRowBlocks = Width * sizeof(accumulate_t<T>) > 16 ? 5
                           : sizeof(T) == 16                    ? 6
                                                                : 8;

/// Counts of 32 bits: fewer registers, so that more rows are under way.
template <int Width, typename T>
__global__ void __launch_bounds__(kRowThreads, (kRowBlocks<Width, T>))
    sum_rows_together_kernel(const __grid_constant__ GatherSum<T, std::int32_t> g,
                             const __grid_constant__ TermWeights<T> weights, int items, int blocks) {
  const int bits = g.choice.lane_bits;
  const int lanes = 1 << bits;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const unsigned group = group_mask(bits);
  const auto row_bytes = static_cast<std::uint32_t>(g.x.stride_m * static_cast<std::int64_t>(sizeof(T)));
  const int spans = static_cast<int>(g.choice.spans);
  const int total = blocks * static_cast<int>(g.choice.channel_blocks);
#pragma unroll 1
  for (int block = static_cast<int>(blockIdx.x); block < total; block += static_cast<int>(gridDim.x)) {
    const int slice = g.choice.channel_blocks == 1 ? 0 : block / blocks;
    const int item = (((block - slice * blocks) * kRowThreads) >> bits) + static_cast<int>(threadIdx.x >> bits);
    if (item >= items) {
      continue;
    }
    const int pieces = static_cast<int>(g.pieces());
    const int n = g.batch == 1 ? 0 : item / pieces;
    const int number = item - n * pieces;
    const Piece piece = g.piece(number);
    if (piece.row < 0) {
      continue;
    }
    const auto begin = static_cast<int>(piece.begin);
    const int terms = static_cast<int>(piece.end) - begin;
    const int channel = ((slice << bits) + lane) * Width;
    const bool mine = channel < g.channels;
    const auto* const from = reinterpret_cast<const char*>(g.vectors(n) + (mine ? channel : 0));
    Sums<T, Width> ways[kWays];
#pragma unroll 1
    for (int base = 0; base < terms; base += lanes) {
      std::int32_t index = 0;
      accumulate_t<T> weight{};  // 0, and the row is 0, where there is no term
      if (base + lane < terms) {
        const int term = begin + base + lane;
        index = g.terms.index1 != nullptr ? g.terms.index1[term] : term;
        weight = weights(n, term);
      }
      const int here = min(lanes, terms - base);
#pragma unroll 1
      for (int t = 0; t < here; t += kWays) {
        Pack<T, Width> row[kWays];
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          const auto gathered = static_cast<std::uint32_t>(from_lane(index, t + k, lanes, group));
          const auto* const there = reinterpret_cast<const T*>(from + static_cast<std::uint64_t>(gathered) * row_bytes);
          row[k] = t + k < here ? load<Width>(there) : Pack<T, Width>{};
        }
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          ways[k].add(from_lane(weight, t + k, lanes, group), row[k], /*conjugate=*/false);
        }
      }
    }
    if (!mine) {
      continue;
    }
    Pack<T, Width> out;
#pragma unroll
    for (int c = 0; c < Width; ++c) {
      const accumulate_t<T> total_sum = (ways[0].at[c] + ways[1].at[c]) + (ways[2].at[c] + ways[3].at[c]);
      if (number < spans) {
        g.part(n, number, channel)[c] = total_sum;
      }
      out.at[c] = narrow<T>(total_sum);
    }
    if (number >= spans) {
      store_once(g.destination(n, number - spans, channel), out);
    }
  }
}

/// Four lanes for each element, one for each of its four sums.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) sum_elements_kernel(const __grid_constant__ GatherSum<T, Index> g) {
  const int lane = static_cast<int>(threadIdx.x) % kWays;
  const std::int64_t items = g.pieces() * g.batch * g.channels;
  constexpr int kGroups = kThreads / kWays;
  const std::int64_t blocks = (items + kGroups - 1) / kGroups;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {  // equal rounds for all lanes
    const std::int64_t item = block * kGroups + threadIdx.x / kWays;
    const std::int64_t place = g.channels == 1 ? item : item / g.channels;
    const std::int64_t channel = item - place * g.channels;
    const std::int64_t n = g.batch == 1 ? 0 : place / g.pieces();
    const std::int64_t number = place - n * g.pieces();
    const Piece piece = item < items ? g.piece(number) : Piece{};
    accumulate_t<T> sum{};
    if (piece.row >= 0) {
      const T* const from = g.vectors(n) + channel;
      const T* const numbers = g.numbers(n);
      Sums<T, 1> sums;
#pragma unroll 4
      for (std::int64_t t = piece.begin + lane; t < piece.end; t += kWays) {
        sums.add(g.weight(numbers, t), load<1>(from + g.terms.first(t) * g.x.stride_m), g.x.conjugate);
      }
      sum = sums.at[0];
    }
    sum = sum_lanes(sum, kWays);
    if (lane == 0 && piece.row >= 0) {
      if (number < g.choice.spans) {
        *g.part(n, number, channel) = sum;
      } else {
        *g.destination(n, piece.row, channel) = narrow<T>(sum);
      }
    }
  }
}

template <typename T>
GatherSumChoice choice_of(const ProductArgs& args) {
  GatherSumSizes sizes;
  sizes.rows = args.terms.rows;
  sizes.terms = args.terms.terms;
  sizes.batch = args.batch;
  sizes.channels = args.extent_a * args.extent_b;
  sizes.gathered_rows = args.x.rows;
  sizes.element_bytes = sizeof(T);
  sizes.index_bytes = args.terms.wide ? 8 : 4;
  sizes.cache_bytes = device_facts().cache_bytes;
  const bool vectors = !is_complex_v<T> &&
                       is_aligned<T>(args.x.data, args.x.stride_n, args.x.stride_m, sizes.channels) &&
                       is_aligned<T>(args.z.data, args.z.stride_n, args.z.stride_m, sizes.channels);
  sizes.vector_width = vectors ? kVectorWidth<T> : 1;
  return choose_gather_sum(sizes);
}

/// Whether the call is one of most, and has been launched as such: several lanes a row, weights in one array, offsets
/// that are products of 32 bits.
template <typename T, typename Index>
bool run_together(const ProductArgs& args, const GatherSum<T, Index>& g, const CudaExecutor& executor) {
  if constexpr (sizeof(Index) == 4) {
    const std::optional<TermWeights<T>> weights = TermWeights<T>::of(args);
    const int lanes = 1 << g.choice.lane_bits;
    const std::int64_t items = (g.choice.spans + g.terms.rows) * g.batch;
    const std::int64_t blocks = blocks_for(items, kRowThreads / lanes);
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / (2 * kRowThreads);
    const bool narrow = args.x.stride_m >= 0 &&
                        args.x.stride_m <= std::int64_t{std::numeric_limits<std::uint32_t>::max()} /
                                               static_cast<std::int64_t>(sizeof(T)) &&
                        g.channels <= kMost && blocks * g.choice.channel_blocks <= kMost;
    if (!weights || !narrow || lanes < kFewestTogether) {
      return false;
    }
    const auto with = [&](auto* kernel) {
      launch({"sum_rows_together", blocks * g.choice.channel_blocks, kRowThreads}, executor, kernel, g, *weights,
             static_cast<int>(items), static_cast<int>(blocks));
    };
    if (g.choice.width == 1) {
      with(sum_rows_together_kernel<1, T>);
    } else if constexpr (!is_complex_v<T>) {
      with(sum_rows_together_kernel<kVectorWidth<T>, T>);
    }
    return true;
  }
  return false;
}

template <typename T, typename Index>
void run(const ProductArgs& args, const CudaExecutor& executor, void* workspace) {
  const GatherSum<T, Index> g{TermsView<Index>(args.terms),
                              args.x,
                              args.y,
                              static_cast<const T*>(args.scale),
                              args.conjugate_scale,
                              static_cast<T*>(args.output()),
                              args.z.stride_n,
                              args.z.stride_m,
                              args.batch,
                              args.extent_a * args.extent_b,
                              args.terms.terms,
                              choice_of<T>(args),
                              static_cast<accumulate_t<T>*>(workspace)};
  const std::int64_t pieces = (g.choice.spans + g.terms.rows) * g.batch;
  if (g.choice.over_terms) {
    launch({"sum_elements", blocks_for(pieces * g.channels, kThreads / kWays), kThreads}, executor,
           sum_elements_kernel<T, Index>, g);
  } else if (!run_together(args, g, executor)) {
    const Launch shape{"sum_rows", blocks_for(pieces, kThreads >> g.choice.lane_bits) * g.choice.channel_blocks,
                       kThreads};
    if (g.choice.width == 1) {
      launch(shape, executor, sum_rows_kernel<1, T, Index>, g);
    } else if constexpr (!is_complex_v<T>) {
      launch(shape, executor, sum_rows_kernel<kVectorWidth<T>, T, Index>, g);
    }
  }
  launch({"add_chunks", blocks_for(g.choice.spans, kThreads), kThreads}, executor, add_chunks_kernel<T, Index>, g);
}

}  // namespace

bool is_gather_sum(const ProductArgs& args) {
  const bool one_channel = args.extent_a == 1 && args.extent_b == 1;
  return !args.accumulate && (one_channel || (args.pattern == Pattern::vecsca && args.x.stride_a == 1));
}

std::int64_t gather_sum_workspace(const ProductArgs& args) {
  std::int64_t bytes = 0;
  visit_types(args.type, false, [&](auto scalar, auto) {
    bytes = spans_of(args.terms.terms) * args.batch * args.extent_a * args.extent_b *
            static_cast<std::int64_t>(sizeof(accumulate_t<decltype(scalar)>));
  });
  return bytes;
}

void gather_sum(const ProductArgs& args, const CudaExecutor& executor, void* workspace) {
  visit_types(args.type, args.terms.wide,
              [&](auto scalar, auto index) { run<decltype(scalar), decltype(index)>(args, executor, workspace); });
}

}  // namespace lacewing::kernels::cuda
