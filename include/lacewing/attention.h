// Attention over the edges of a graph, or the entries of a sparse pattern, in one pass.
//
//   logit[e, h] = leaky(factor[e, h] * pair[e, h] + bias[e, h])     e leads from column j to row i
//   pair[e, h]  = scale * <q[i, h], k[j, h]>, or q[i, h] + k[j, h] where q and k have no channels (GAT)
//   out[i, h]   = sum over the edges of row i of softmax(logit)[e, h] * v[j, h]
//
// Rows without edges, or whose logits are all -inf, give zeros. Nothing of edges x heads x channels, and forward and
// backward nothing of edges x heads but the gradients of factor and bias, is ever in memory.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>
#include <lacewing/formula.h>

namespace lacewing {

struct EdgeAttentionOptions {
  std::optional<at::Tensor> factor{};      ///< (edges,), or broadcast to ([batch], edges, heads)
  std::optional<at::Tensor> bias{};        ///< the same
  std::optional<double> scale{};           ///< of dot products; absent: 1 / sqrt(their channels)
  std::optional<double> negative_slope{};  ///< of leaky ReLU; absent: 0.2 without channels of q and k, else 1 (none)
  double dropout = 0;                      ///< of the softmax's weights
  std::optional<at::Tensor> seed{};        ///< one int64 on the device; absent: drawn from torch's generator
};

/// Attention over Edges({source}, destination): row i is where an edge ends, column j where it begins. q ([batch],
/// rows, heads, d) and k ([batch], columns, heads, d), or both without d; v ([batch], columns, heads, channels);
/// returns
/// ([batch], rows, heads, channels). Differentiable to any order for q, k, v, factor and bias; derivatives beyond the
/// first, and forward mode, hold edges x heads numbers. Deterministic: the bits do not depend on threads or on other
/// rows. Dropout depends on seed, edge and head alone. Throws c10::Error with one sentence.
[[nodiscard]] LACEWING_API at::Tensor edge_attention(const Edges& edges, const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v, const EdgeAttentionOptions& options = {});

}  // namespace lacewing
