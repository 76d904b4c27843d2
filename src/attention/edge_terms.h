// What attention computes for each edge and head, made of registered ops in the type of sums.
#pragma once

#include "attention/edge_algebra.h"

namespace lacewing::attention {

/// One tensor for each operand, undefined for none.
struct Gradients {
  at::Tensor q, k, v, factor, bias;
};

/// Terms of a call at edges: all tensors (edges, heads) unless they say otherwise.
///   pair = <q, k>;  linear = factor * pair + bias;  weight = exp(leaky(linear) - lse)
class EdgeTerms {
 public:
  EdgeTerms(const Operands& in, const OptionalTensor& seed, const at::Tensor& lse, const at::Tensor& edges,
            c10::SymIntArrayRef sizes, const Options& options);

  const EdgeAlgebra& algebra() const { return algebra_; }
  /// The operands in the type of sums.
  const Operands& in() const { return in_; }
  const at::Tensor& weight() const { return weight_; }
  /// The derivative of leaky ReLU at linear.
  const at::Tensor& slope() const { return slope_; }

  /// Weights behind dropout, or anything else of them.
  at::Tensor kept(const at::Tensor& numbers) const { return keep_ ? numbers * *keep_ : numbers; }
  /// A tangent of `linear`, of tangents of the operands; undefined where none of them has one that is read.
  at::Tensor linear_tangent(const Gradients& tangents) const;
  /// What an operand that is read gets of gradients at `linear`, and at its tangent for `tangents`, which may be
  /// undefined.
  Gradients linear_gradients(const at::Tensor& of_linear, const at::Tensor& of_tangent,
                             const Gradients& tangents) const;

 private:
  at::Tensor pair(const at::Tensor& q, const at::Tensor& k) const;
  at::Tensor pair_tangent(const Gradients& tangents) const;
  void add_pair_gradients(const at::Tensor& of_pair, const at::Tensor& q, const at::Tensor& k, Gradients& to) const;
  at::Tensor times_factor(const at::Tensor& numbers) const { return in_.factor ? numbers * *in_.factor : numbers; }

  EdgeAlgebra algebra_;
  Operands in_;
  Options options_;
  at::Tensor pair_, slope_, weight_;
  OptionalTensor keep_;
};

/// sum + term, where either may be undefined.
at::Tensor plus(const at::Tensor& sum, const at::Tensor& term);

}  // namespace lacewing::attention
