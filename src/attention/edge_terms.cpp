#include "attention/edge_terms.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

namespace lacewing::attention {
namespace {

OptionalTensor to(const OptionalTensor& tensor, at::ScalarType type) {
  return tensor ? OptionalTensor(tensor->to(type)) : std::nullopt;
}

Operands to(const Operands& in, at::ScalarType type) {
  return {in.q.to(type), in.k.to(type), in.v.to(type), to(in.factor, type), to(in.bias, type)};
}

}  // namespace

at::Tensor plus(const at::Tensor& sum, const at::Tensor& term) {
  return !term.defined() ? sum : sum.defined() ? sum + term : term;
}

EdgeTerms::EdgeTerms(const Operands& in, const OptionalTensor& seed, const at::Tensor& lse, const at::Tensor& edges,
                     c10::SymIntArrayRef sizes, const Options& options)
    : algebra_(edges, EdgeSizes::from("edge_attention", sizes)),
      in_(to(in, at::toOpMathType(in.q.scalar_type()))),
      options_(options),
      pair_(pair(in_.q, in_.k)) {
  const at::Tensor linear = plus(times_factor(pair_), in_.bias.value_or(at::Tensor()));
  slope_ = at::where(linear > 0, at::ones_like(linear), options.slope);
  // No logit of -inf has a weight, and in a row of them alone lse is -inf too.
  const at::Tensor logit = at::leaky_relu(linear, options.slope);
  const at::Tensor shift = algebra_.of_rows(at::where(lse.isneginf(), 0.0, lse));
  weight_ = (logit - shift).exp();
  if (options.dropout > 0) {
    keep_ = dropout_op().call(*seed, weight_.sym_size(0), weight_.sym_size(1), options.dropout, weight_.scalar_type());
  }
}

at::Tensor EdgeTerms::pair(const at::Tensor& q, const at::Tensor& k) const {
  return q.dim() == 3 ? algebra_.dots(q, k) * options_.scale : algebra_.of_rows(q) + algebra_.of_columns(k);
}

at::Tensor EdgeTerms::pair_tangent(const Gradients& tangents) const {
  const bool dot = in_.q.dim() == 3;
  at::Tensor sum;
  if (tangents.q.defined()) {
    sum = dot ? pair(tangents.q, in_.k) : algebra_.of_rows(tangents.q);
  }
  if (tangents.k.defined()) {
    sum = plus(sum, dot ? pair(in_.q, tangents.k) : algebra_.of_columns(tangents.k));
  }
  return sum;
}

at::Tensor EdgeTerms::linear_tangent(const Gradients& tangents) const {
  const at::Tensor of_pair = pair_tangent(tangents);
  at::Tensor sum = of_pair.defined() ? times_factor(of_pair) : at::Tensor();
  if (tangents.factor.defined()) {
    sum = plus(sum, tangents.factor * pair_);
  }
  return plus(sum, tangents.bias);
}

void EdgeTerms::add_pair_gradients(const at::Tensor& of_pair, const at::Tensor& q, const at::Tensor& k,
                                   Gradients& to) const {
  if (in_.q.dim() == 3) {
    const at::Tensor scaled = of_pair * options_.scale;
    to.q = k.defined() ? plus(to.q, algebra_.to_rows(scaled, k)) : to.q;
    to.k = q.defined() ? plus(to.k, algebra_.to_columns(scaled, q)) : to.k;
  } else {
    to.q = plus(to.q, algebra_.row_sums(of_pair));
    to.k = plus(to.k, algebra_.column_sums(of_pair));
  }
}

Gradients EdgeTerms::linear_gradients(const at::Tensor& of_linear, const at::Tensor& of_tangent,
                                      const Gradients& tangents) const {
  Gradients to;
  to.bias = of_linear;
  to.factor = of_linear * pair_;
  at::Tensor of_pair = times_factor(of_linear);
  if (of_tangent.defined()) {
    if (const at::Tensor tangent = pair_tangent(tangents); tangent.defined()) {
      to.factor = to.factor + of_tangent * tangent;
    }
    if (tangents.factor.defined()) {
      of_pair = of_pair + of_tangent * tangents.factor;
    }
    if (in_.q.dim() == 3) {
      add_pair_gradients(times_factor(of_tangent), tangents.q, tangents.k, to);
    }
  }
  add_pair_gradients(of_pair, in_.q, in_.k, to);
  return to;
}

}  // namespace lacewing::attention
