// Attention over edges, as every backend takes it. Torch-free. For edge e from column j to row i, and head h:
//
//   pair[e, h]  = scale * <q[i, h], k[j, h]>, or q[i, h] + k[j, h] where these have no channels
//   logit[e, h] = leaky(factor[e, h] * pair[e, h] + bias[e, h]),  leaky(x) = x > 0 ? x : slope * x
//   lse[i, h]   = log of the sum over the edges of row i of exp(logit[e, h])
//   out[i, h]   = sum over the edges of row i of keep[e, h] * exp(logit[e, h] - lse[i, h]) * v[j, h]
//
// A row without edges, or whose logits are all -inf, has out = 0 and lse = -inf.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

/// The edges as the rows of one side see them: those of row r are order[t] for t in [segments[r], segments[r + 1]).
struct EdgeSide {
  const void* list = nullptr;      ///< (edges): the row of an edge
  const void* segments = nullptr;  ///< (rows + 1)
  const void* order = nullptr;     ///< (edges); null is the identity
  std::int64_t rows = 0;
};

/// (rows, heads, channels) or (rows, heads); the heads and channels of a row are contiguous.
struct HeadRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// (edges, heads).
struct EdgeNumbers {
  const void* data = nullptr;  ///< null: absent
  std::int64_t edge_stride = 0;
  std::int64_t head_stride = 0;
};

struct EdgeAttentionArgs {
  ScalarType type = ScalarType::f32;  ///< a float type
  bool wide = false;                  ///< index arrays are int64, else int32
  std::int64_t edges = 0;
  std::int64_t heads = 0;
  std::int64_t pair_channels = -1;  ///< of q and k; -1 where they have none
  std::int64_t channels = 0;        ///< of v
  EdgeSide row, column;
  HeadRows q, k, v;
  EdgeNumbers factor, bias;
  double scale = 1;
  double slope = 1;
  /// Dropout: a weight goes where its random number of 32 bits is below drop_below, the others are multiplied.
  std::uint64_t drop_below = 0;
  double keep_scale = 1;
  const std::int64_t* seed = nullptr;  ///< where the device can read it

  bool has_pair_channels() const { return pair_channels >= 0; }
};

/// lse has the type that sums are kept in.
struct EdgeAttentionForward {
  EdgeAttentionArgs of;
  void* out = nullptr;  ///< (rows, heads, channels)
  void* lse = nullptr;  ///< (rows, heads)
};

/// What is wanted of the gradients, from the upstream gradient of out and, for each row and head, lse and
/// delta = <grad, out> less the upstream gradient of lse:
///
///   weight = exp(logit - lse),  of_logit = weight * (keep * <grad[i], v[j]> - delta[i])
struct EdgeAttentionBackward {
  EdgeAttentionArgs of;
  HeadRows grad;
  const void* lse = nullptr;
  const void* delta = nullptr;
  void* of_q = nullptr;  ///< null: not wanted; this and all below are contiguous
  void* of_k = nullptr;
  void* of_v = nullptr;
  void* of_factor = nullptr;
  void* of_bias = nullptr;
};

/// What dropout makes of each weight: out (edges, heads) of `type`, 0 or keep_scale.
struct EdgeDropout {
  ScalarType type = ScalarType::f32;
  std::int64_t edges = 0;
  std::int64_t heads = 0;
  std::uint64_t drop_below = 0;
  double keep_scale = 1;
  const std::int64_t* seed = nullptr;
};

namespace reference {
void edge_dropout(const EdgeDropout& args, void* out);
void edge_attention(const EdgeAttentionForward& args);
void edge_attention_backward(const EdgeAttentionBackward& args);
}  // namespace reference

namespace cpu {
/// f32 and f64.
void edge_attention(const EdgeAttentionForward& args, const CpuExecutor& executor);
void edge_attention_backward(const EdgeAttentionBackward& args, const CpuExecutor& executor);
}  // namespace cpu

namespace cuda {
void edge_dropout(const EdgeDropout& args, void* out, const CudaExecutor& executor);
std::int64_t edge_attention_workspace(const EdgeAttentionArgs& args);
void edge_attention(const EdgeAttentionForward& args, const CudaExecutor& executor, void* workspace);
std::int64_t edge_attention_backward_workspace(const EdgeAttentionBackward& args);
void edge_attention_backward(const EdgeAttentionBackward& args, const CudaExecutor& executor, void* workspace);
}  // namespace cuda

}  // namespace lacewing::kernels
