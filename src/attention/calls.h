// Attention over edges as registered ops, of heads that are all one dim: leading batch dims are more heads.
#pragma once

#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "common/typed_op.h"

namespace lacewing::attention {

using OptionalTensor = std::optional<at::Tensor>;

/// edge_attention_heads: the result and, for each row and head, the logarithm of the sum of exponents.
///   q (rows, heads, d) and k (columns, heads, d), or both without d; v (columns, heads, channels); factor and bias
///   (edges, heads); seed: one int64, where there is dropout; edges, sizes: those of Edges with two lists
using ForwardSignature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& q, const at::Tensor& k,
                                                            const at::Tensor& v, const OptionalTensor& factor,
                                                            const OptionalTensor& bias, const OptionalTensor& seed,
                                                            const at::Tensor& edges, c10::SymIntArrayRef sizes,
                                                            double scale, double slope, double dropout);

/// edge_attention_heads_backward: the gradients of the places that are wanted, 0 to 4 for q, k, v, factor and bias.
///   grad: of the result; lse: what the forward op gave; delta (rows, heads): <grad, result> less the gradient of lse
using BackwardSignature = std::vector<at::Tensor>(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                  const OptionalTensor& factor, const OptionalTensor& bias,
                                                  const OptionalTensor& seed, const at::Tensor& grad,
                                                  const at::Tensor& lse, const at::Tensor& delta,
                                                  const at::Tensor& edges, c10::SymIntArrayRef sizes, double scale,
                                                  double slope, double dropout, at::IntArrayRef wanted);

/// edge_dropout: what dropout makes of a weight, (edges, heads): 0, or 1 / (1 - dropout).
using DropoutSignature = at::Tensor(const at::Tensor& seed, c10::SymInt edges, c10::SymInt heads, double dropout,
                                    at::ScalarType dtype);

inline const auto& forward_op() { return typed_op<"edge_attention_heads", ForwardSignature>(); }
inline const auto& backward_op() { return typed_op<"edge_attention_heads_backward", BackwardSignature>(); }
inline const auto& dropout_op() { return typed_op<"edge_dropout", DropoutSignature>(); }

/// The numbers of Edges with one operand's list, the columns, and the output's, the rows.
struct EdgeSizes {
  c10::SymInt edges, wide, sorted, columns, rows;

  static EdgeSizes from(const char* op, c10::SymIntArrayRef sizes);
};

/// What a call is made with, beside its tensors.
struct Options {
  double scale = 1;
  double slope = 1;
  double dropout = 0;
};

/// The differentiable tensors of a call.
struct Operands {
  at::Tensor q, k, v;
  OptionalTensor factor, bias;
};

/// Checks a call of the ops above; throws c10::Error with one sentence.
EdgeSizes check_call(const char* op, const Operands& in, const OptionalTensor& seed, const at::Tensor& edges,
                     c10::SymIntArrayRef sizes, const Options& options);

/// An argument is floating point.
void check_float(const char* op, const char* argument, const at::Tensor& tensor);
/// 0 to 1, and a slope and a scale that are numbers.
void check_options(const char* op, const Options& options);

}  // namespace lacewing::attention
