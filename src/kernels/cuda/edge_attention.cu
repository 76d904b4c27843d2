// Attention over edges, forward: a running softmax. Four edges at a time may raise the largest logit, and then what was
// summed before decays. Chunks of a long row leave (largest, total, sums), which are put together in the end.
#include "kernels/cuda/device/workspace.h"
#include "kernels/cuda/edge_walk.h"

namespace lacewing::kernels::cuda {
namespace {

using std::exp;
using std::log;

/// What the chunks of long rows leave.
template <typename Acc>
struct ChunkParts {
  Slot<Acc> largest, total;  ///< (spans, heads)
  Slot<Acc> sums;            ///< (spans, heads, channels)
  std::int64_t bytes = 0;

  explicit ChunkParts(const EdgeAttentionArgs& args) {
    WorkspaceLayout layout;
    const std::int64_t items = spans_of(args.edges) * args.heads;
    largest = layout.add<Acc>(items);
    total = layout.add<Acc>(items);
    sums = layout.add<Acc>(items * args.channels);
    bytes = layout.bytes();
  }
};

template <typename T, typename Index>
struct Attend {
  using Acc = accumulate_t<T>;
  EdgeWalk<T, Index> walk;
  TeamRows<T> v;
  std::int64_t channels;
  T* out;
  Acc* lse;
  Acc *largest, *total, *sums;  ///< of chunks
};

/// The largest logit so far, the sum of exponents beside it, and what both are where nothing was seen.
template <typename Acc>
struct Running {
  static constexpr Acc kNothing = -std::numeric_limits<Acc>::infinity();
  Acc largest = kNothing;
  Acc total{};

  /// What to multiply earlier sums with; logits become weights.
  __device__ __forceinline__ Acc add(Acc (&logit)[kWays]) {
    Acc next = largest;
#pragma unroll
    for (int k = 0; k < kWays; ++k) {
      next = logit[k] > next ? logit[k] : next;
    }
    const Acc decay = largest == kNothing ? Acc{0} : exp(largest - next);
    const Acc shift = next == kNothing ? Acc{0} : next;
#pragma unroll
    for (int k = 0; k < kWays; ++k) {
      logit[k] = exp(logit[k] - shift);
    }
    total = total * decay + ((logit[0] + logit[1]) + (logit[2] + logit[3]));
    largest = next;
    return decay;
  }
  __device__ Acc inverse() const { return total == 0 ? Acc{0} : 1 / total; }
  __device__ Acc lse() const { return total == 0 ? kNothing : largest + log(total); }
};

template <int Width, int Packs, typename T, typename Index>
__global__ void __launch_bounds__(kRowThreads) attend_kernel(const __grid_constant__ Attend<T, Index> a) {
  using Acc = accumulate_t<T>;
  const EdgeWalk<T, Index>& walk = a.walk;
  const Team team = Team::of(walk.lane_bits);
  walk.each_item([&](const TeamItem& item) {
    const std::int64_t first = item.block * walk.block_channels;
    Running<Acc> running;
    TeamSums<Width, Packs, T> sums;
#pragma unroll 1
    for (std::int64_t t = item.piece.begin; t < item.piece.end; t += kWays) {
      const FourEdges four = walk.edges_at(t, item.piece.end);
      Acc pair[kWays], weight[kWays];
      walk.template logits<Width>(team, item, four, pair, weight);
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        weight[k] = k < four.count ? walk.leaky(weight[k]) : running.kNothing;
      }
      sums.multiply(running.add(weight));
      if (walk.drop_below > 0) {
        Acc keep[kWays];
        walk.keep(team, item, four, keep);
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          weight[k] *= keep[k];
        }
      }
      sums.add(team, a.v, item.head, a.channels, first, four, weight);
    }
    const bool one = team.lane == 0 && item.block == 0;
    if (walk.is_chunk(item)) {
      const std::int64_t place = item.number * walk.heads + item.head;
      sums.write_part(team, a.channels, first, a.sums + place * a.channels);
      if (one) {
        a.largest[place] = running.largest;
        a.total[place] = running.total;
      }
    } else {
      const std::int64_t place = item.piece.row * walk.heads + item.head;
      sums.multiply(running.inverse());
      sums.write(team, a.channels, first, a.out + place * a.channels);
      if (one) {
        a.lse[place] = running.lse();
      }
    }
  });
}

/// The chunks of long rows, put together: a warp owns a row's head.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) join_chunks_kernel(const __grid_constant__ Attend<T, Index> a) {
  using Acc = accumulate_t<T>;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  each_long_row(a.walk.cut, [&](std::int64_t row, std::int64_t span) {
    const std::int64_t chunks = a.walk.cut.chunks(row);
    for (std::int64_t head = warp; head < a.walk.heads; head += kThreads / kWarp) {
      const auto place = [&](std::int64_t chunk) { return (span + chunk) * a.walk.heads + head; };
      Running<wider_t<T>> all;
      for (std::int64_t chunk = lane; chunk < chunks; chunk += kWarp) {
        const auto here = static_cast<wider_t<T>>(a.largest[place(chunk)]);
        all.largest = here > all.largest ? here : all.largest;
      }
      for (int mask = 1; mask < kWarp; mask *= 2) {
        const auto there = from_lane_xor(all.largest, mask);
        all.largest = there > all.largest ? there : all.largest;
      }
      const auto weight = [&](std::int64_t chunk) -> wider_t<T> {
        const auto here = static_cast<wider_t<T>>(a.largest[place(chunk)]);
        return here == all.kNothing ? 0 : exp(here - all.largest);
      };
      for (std::int64_t chunk = lane; chunk < chunks; chunk += kWarp) {
        all.total += weight(chunk) * static_cast<wider_t<T>>(a.total[place(chunk)]);
      }
      // A chunk whose logits are all -inf has a total of 0; one that is no number makes the row none.
      all.total = sum_lanes(all.total, kWarp);
      for (std::int64_t c = 0; c < a.channels; ++c) {
        wider_t<T> sum{};
        for (std::int64_t chunk = lane; chunk < chunks; chunk += kWarp) {
          sum += weight(chunk) * static_cast<wider_t<T>>(a.sums[place(chunk) * a.channels + c]);
        }
        sum = sum_lanes(sum, kWarp) * all.inverse();
        if (lane == 0) {
          a.out[(row * a.walk.heads + head) * a.channels + c] = narrow<T>(static_cast<Acc>(sum));
        }
      }
      if (lane == 0) {
        a.lse[row * a.walk.heads + head] = static_cast<Acc>(all.lse());
      }
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const EdgeDropout args, T* out) {
  const std::int64_t count = args.edges * args.heads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < count;
       at += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::int64_t edge = at / args.heads;
    const bool dropped =
        edge_random(static_cast<std::uint64_t>(*args.seed), edge, at - edge * args.heads) < args.drop_below;
    out[at] = narrow<T>(dropped ? accumulate_t<T>{0} : static_cast<accumulate_t<T>>(args.keep_scale));
  }
}

}  // namespace

void edge_dropout(const EdgeDropout& args, void* out, const CudaExecutor& executor) {
  visit_types(args.type, /*wide=*/false, [&](auto scalar, auto) {
    using T = decltype(scalar);
    if constexpr (!is_complex_v<T>) {
      launch({"edge_dropout", blocks_for(args.edges * args.heads, kThreads), kThreads}, executor, dropout_kernel<T>,
             args, static_cast<T*>(out));
    }
  });
}

std::int64_t edge_attention_workspace(const EdgeAttentionArgs& args) {
  return args.type == ScalarType::f64 ? ChunkParts<double>(args).bytes : ChunkParts<float>(args).bytes;
}

void edge_attention(const EdgeAttentionForward& args, const CudaExecutor& executor, void* workspace) {
  visit_floats(args.of, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    using Index = decltype(index);
    using Acc = accumulate_t<T>;
    visit_team<T>(args.of, reads_vectors<T>(args.of), [&](auto width, auto packs, const TeamChoice& choice) {
      const ChunkParts<Acc> parts(args.of);
      const Attend<T, Index> a{
          EdgeWalk<T, Index>(args.of, /*by_row=*/true, choice.lane_bits, choice.block_channels, choice.channel_blocks),
          TeamRows<T>(args.of.v),
          args.of.channels,
          static_cast<T*>(args.out),
          static_cast<Acc*>(args.lse),
          parts.largest.at(workspace),
          parts.total.at(workspace),
          parts.sums.at(workspace)};
      launch({"attend", team_blocks(args.of, args.of.row.rows, choice), kRowThreads}, executor,
             attend_kernel<decltype(width)::value, decltype(packs)::value, T, Index>, a);
      launch({"join_chunks", blocks_for(a.walk.cut.spans, kThreads), kThreads}, executor, join_chunks_kernel<T, Index>,
             a);
    });
  });
}

}  // namespace lacewing::kernels::cuda
