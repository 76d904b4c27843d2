// Attention over edges, backward: logits and weights are made again, once as the rows of q see the edges (gradients of
// q, factor and bias) and once as those of k and v do.
#include "kernels/cuda/device/workspace.h"
#include "kernels/cuda/edge_walk.h"

namespace lacewing::kernels::cuda {
namespace {

using std::exp;

/// What the chunks of long rows of one side leave: sums of the gradients of its pairs and values.
template <typename Acc>
struct ChunkParts {
  Slot<Acc> pairs, values;  ///< (spans, heads, channels)
  std::int64_t bytes = 0;

  explicit ChunkParts(const EdgeAttentionBackward& args) {
    WorkspaceLayout layout;
    const std::int64_t items = spans_of(args.of.edges) * args.of.heads;
    const bool any_pairs = args.of_q != nullptr || args.of_k != nullptr;
    pairs = layout.add<Acc>(any_pairs ? items * (args.of.has_pair_channels() ? args.of.pair_channels : 1) : 0);
    values = layout.add<Acc>(args.of_v != nullptr ? items * args.of.channels : 0);
    bytes = layout.bytes();
  }
};

/// One side's gradients. ByRow: of q, factor and bias; else of k and v. Null is not wanted.
template <typename T, typename Index>
struct Gradients {
  using Acc = accumulate_t<T>;
  EdgeWalk<T, Index> walk;
  TeamRows<T> own, other;  ///< grad and v, or v and grad
  std::int64_t channels;
  const Acc *lse, *delta;
  T *of_pairs, *of_values, *of_factor, *of_bias;
  Acc *pair_parts, *value_parts;

  __device__ bool wants_logits() const { return of_pairs != nullptr || of_factor != nullptr || of_bias != nullptr; }
};

template <int Width, int Packs, bool ByRow, typename T, typename Index>
__global__ void __launch_bounds__(kRowThreads) gradients_kernel(const __grid_constant__ Gradients<T, Index> g) {
  using Acc = accumulate_t<T>;
  constexpr Acc kNothing = -std::numeric_limits<Acc>::infinity();
  const EdgeWalk<T, Index>& walk = g.walk;
  const bool has_channels = walk.pair_channels >= 0;
  const Team team = Team::of(walk.lane_bits);
  walk.each_item([&](const TeamItem& item) {
    const std::int64_t first = item.block * walk.block_channels;
    const bool one = team.lane == 0 && item.block == 0;
    TeamSums<Width, Packs, T> pairs, values;
    Acc pair_sum{};  // where pairs have no channels
#pragma unroll 1
    for (std::int64_t t = item.piece.begin; t < item.piece.end; t += kWays) {
      const FourEdges four = walk.edges_at(t, item.piece.end);
      Acc pair[kWays], linear[kWays], weight[kWays], keep[kWays] = {1, 1, 1, 1};
      walk.template logits<Width>(team, item, four, pair, linear);
      if (walk.drop_below > 0) {
        walk.keep(team, item, four, keep);
      }
      Acc delta[kWays];
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        const std::int64_t place = (ByRow ? item.piece.row : four.other[k]) * walk.heads + item.head;
        const Acc logit = walk.leaky(linear[k]);
        const bool any = k < four.count && logit != kNothing;
        weight[k] = any ? exp(logit - g.lse[place]) : Acc{0};
        delta[k] = g.delta[place];
      }
      if (g.wants_logits()) {
        Acc of_pair[kWays];
        walk.template dots<Width>(team, g.own.at(item.piece.row, item.head * g.channels), g.other, item.head,
                                  g.channels, four, of_pair);
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          const Acc slope = linear[k] > 0 ? Acc{1} : walk.slope;
          const Acc of_linear = weight[k] * (keep[k] * of_pair[k] - delta[k]) * slope;
          if (ByRow && one && k < four.count) {
            const std::int64_t place = four.edge[k] * walk.heads + item.head;
            if (g.of_factor != nullptr) {
              g.of_factor[place] = narrow<T>(of_linear * pair[k]);
            }
            if (g.of_bias != nullptr) {
              g.of_bias[place] = narrow<T>(of_linear);
            }
          }
          of_pair[k] = k < four.count ? of_linear * walk.number(walk.factor, four.edge[k], item.head, Acc{1}) *
                                            (has_channels ? walk.scale : Acc{1})
                                      : Acc{0};
        }
        if (has_channels && g.of_pairs != nullptr) {
          pairs.add(team, walk.other, item.head, walk.pair_channels, first, four, of_pair);
        }
        pair_sum += (of_pair[0] + of_pair[1]) + (of_pair[2] + of_pair[3]);
      }
      if (!ByRow && g.of_values != nullptr) {
#pragma unroll
        for (int k = 0; k < kWays; ++k) {
          weight[k] *= keep[k];
        }
        values.add(team, g.other, item.head, g.channels, first, four, weight);
      }
    }
    const bool chunk = walk.is_chunk(item);
    const std::int64_t place = (chunk ? item.number : item.piece.row) * walk.heads + item.head;
    if (g.of_pairs != nullptr && has_channels) {
      if (chunk) {
        pairs.write_part(team, walk.pair_channels, first, g.pair_parts + place * walk.pair_channels);
      } else {
        pairs.write(team, walk.pair_channels, first, g.of_pairs + place * walk.pair_channels);
      }
    } else if (g.of_pairs != nullptr && one) {
      if (chunk) {
        g.pair_parts[place] = pair_sum;
      } else {
        g.of_pairs[place] = narrow<T>(pair_sum);
      }
    }
    if (!ByRow && g.of_values != nullptr) {
      if (chunk) {
        values.write_part(team, g.channels, first, g.value_parts + place * g.channels);
      } else {
        values.write(team, g.channels, first, g.of_values + place * g.channels);
      }
    }
  });
}

/// The chunks of long rows, added: `elements` of each row.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const __grid_constant__ RowPieces<Index> cut, std::int64_t elements, const accumulate_t<T>* parts,
                     T* out) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  each_long_row(cut, [&](std::int64_t row, std::int64_t span) {
    const std::int64_t chunks = cut.chunks(row);
    for (std::int64_t element = warp; element < elements; element += kThreads / kWarp) {
      wider_t<T> sum{};
#pragma unroll 4
      for (std::int64_t chunk = lane; chunk < chunks; chunk += kWarp) {
        sum += converted<wider_t<T>>(parts[(span + chunk) * elements + element]);
      }
      sum = sum_lanes(sum, kWarp);
      if (lane == 0) {
        out[row * elements + element] = rounded<T>(sum);
      }
    }
  });
}

template <typename T, typename Index>
void add_parts(const EdgeWalk<T, Index>& walk, std::int64_t elements, const accumulate_t<T>* parts, T* out,
               const CudaExecutor& executor) {
  if (out == nullptr) {
    return;
  }
  launch({"add_parts", blocks_for(walk.cut.spans, kThreads), kThreads}, executor, add_parts_kernel<T, Index>, walk.cut,
         elements, parts, out);
}

template <bool ByRow, typename T, typename Index>
void run_side(const EdgeAttentionBackward& args, const CudaExecutor& executor, void* workspace) {
  using Acc = accumulate_t<T>;
  void* const of_pairs = ByRow ? args.of_q : args.of_k;
  void* const of_values = ByRow ? nullptr : args.of_v;
  void* const of_factor = ByRow ? args.of_factor : nullptr;
  void* const of_bias = ByRow ? args.of_bias : nullptr;
  if (of_pairs == nullptr && of_values == nullptr && of_factor == nullptr && of_bias == nullptr) {
    return;
  }
  const bool vectors =
      reads_vectors<T>(args.of) && is_aligned<T>(args.grad.data, 0, args.grad.stride, args.of.channels);
  visit_team<T>(args.of, vectors, [&](auto width, auto packs, const TeamChoice& choice) {
    const ChunkParts<Acc> parts(args);
    const Gradients<T, Index> g{
        EdgeWalk<T, Index>(args.of, ByRow, choice.lane_bits, choice.block_channels, choice.channel_blocks),
        TeamRows<T>(ByRow ? args.grad : args.of.v),
        TeamRows<T>(ByRow ? args.of.v : args.grad),
        args.of.channels,
        static_cast<const Acc*>(args.lse),
        static_cast<const Acc*>(args.delta),
        static_cast<T*>(of_pairs),
        static_cast<T*>(of_values),
        static_cast<T*>(of_factor),
        static_cast<T*>(of_bias),
        parts.pairs.at(workspace),
        parts.values.at(workspace)};
    launch({ByRow ? "gradients_of_rows" : "gradients_of_columns", team_blocks(args.of, g.walk.cut.rows, choice),
            kRowThreads},
           executor, gradients_kernel<decltype(width)::value, decltype(packs)::value, ByRow, T, Index>, g);
    const std::int64_t pair_elements = args.of.heads * (args.of.has_pair_channels() ? args.of.pair_channels : 1);
    add_parts(g.walk, pair_elements, g.pair_parts, g.of_pairs, executor);
    add_parts(g.walk, args.of.heads * args.of.channels, g.value_parts, g.of_values, executor);
  });
}

}  // namespace

std::int64_t edge_attention_backward_workspace(const EdgeAttentionBackward& args) {
  return args.of.type == ScalarType::f64 ? ChunkParts<double>(args).bytes : ChunkParts<float>(args).bytes;
}

void edge_attention_backward(const EdgeAttentionBackward& args, const CudaExecutor& executor, void* workspace) {
  visit_floats(args.of, [&](auto scalar, auto index) {
    run_side<true, decltype(scalar), decltype(index)>(args, executor, workspace);
    run_side<false, decltype(scalar), decltype(index)>(args, executor, workspace);
  });
}

}  // namespace lacewing::kernels::cuda
