// Derivatives of attention over edges. The first is one op (calls.h), which makes logits and weights again from lse.
// The gradient of that op, and forward mode, are made of the formula's ops over edges x heads numbers (edge_terms.h),
// so that they differentiate again. With x = linear, s the slope of leaky ReLU there, and K dropout:
//
//   w = exp(leaky(x) - lse),  y = K <grad, v>,  of_x = s w (y - delta)
//   of_q, of_k, of_factor, of_bias = what x makes of of_x,  of_v = sum over the edges of a column of K w grad
#include <utility>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "attention/edge_terms.h"
#include "autograd/linear_op.h"

namespace lacewing::attention {
namespace {

using autograd::Tensors;

/// Places among the inputs of both ops; what only the backward op has stands behind.
enum Place : std::uint8_t { kQ, kK, kV, kFactor, kBias, kSeed, kEdges, kGrad, kLse, kDelta };
constexpr std::size_t kForwardInputs = kGrad;

OptionalTensor optional(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

/// What both nodes know of their call.
struct CallOf {
  std::vector<c10::SymInt> sizes;
  Options options;

  Operands operands(const Tensors& in) const {
    return {in[kQ], in[kK], in[kV], optional(in[kFactor]), optional(in[kBias])};
  }
  EdgeTerms terms(const Tensors& in, const at::Tensor& lse) const {
    return {operands(in), optional(in[kSeed]), lse, in[kEdges], sizes, options};
  }
  Tensors backward(const Tensors& in, const at::Tensor& grad, const at::Tensor& lse, const at::Tensor& delta,
                   at::IntArrayRef wanted) const {
    return backward_op().call(in[kQ], in[kK], in[kV], optional(in[kFactor]), optional(in[kBias]), optional(in[kSeed]),
                              grad, lse, delta, in[kEdges], sizes, options.scale, options.slope, options.dropout,
                              wanted);
  }
};

/// One tangent of many, by place, in the type of sums.
Gradients tangent_of(std::size_t place, const at::Tensor& given) {
  const at::Tensor tangent = given.to(at::toOpMathType(given.scalar_type()));
  Gradients tangents;
  at::Tensor* const all[] = {&tangents.q, &tangents.k, &tangents.v, &tangents.factor, &tangents.bias};
  *all[place] = tangent;
  return tangents;
}

const at::Tensor& at_place(const Gradients& of, std::size_t place) {
  const at::Tensor* const all[] = {&of.q, &of.k, &of.v, &of.factor, &of.bias};
  return *all[place];
}

class Attention final : public autograd::LinearOps {
 public:
  explicit Attention(CallOf call) : call_(std::move(call)) {}

  std::string name() const override { return "edge_attention"; }
  bool reads(std::size_t /*i*/, std::size_t /*j*/) const override { return true; }
  bool reads_outputs() const override { return true; }

  Tensors call(const Tensors& in) const override {
    auto [out, lse] =
        forward_op().call(in[kQ], in[kK], in[kV], optional(in[kFactor]), optional(in[kBias]), optional(in[kSeed]),
                          in[kEdges], call_.sizes, call_.options.scale, call_.options.slope, call_.options.dropout);
    return {out, lse};
  }

  Tensors gradients(const Tensors& in, const Tensors& upstream, const std::vector<bool>& wanted) const override {
    const at::Tensor& out = in[kForwardInputs];
    const at::Tensor& lse = in[kForwardInputs + 1];
    const at::Tensor grad = upstream[0].defined() ? upstream[0] : at::zeros_like(out);
    const at::Tensor of_lse = upstream[1].defined() ? -upstream[1] : at::Tensor();
    const at::Tensor delta = plus((grad.to(lse.scalar_type()) * out.to(lse.scalar_type())).sum(-1), of_lse);
    std::vector<std::int64_t> places;
    for (std::size_t i = 0; i <= kBias; ++i) {
      if (wanted[i]) {
        places.push_back(static_cast<std::int64_t>(i));
      }
    }
    Tensors gradients = call_.backward(in, grad, lse, delta, places);
    Tensors result(kForwardInputs);
    for (std::size_t k = 0; k < places.size(); ++k) {
      result[static_cast<std::size_t>(places[k])] = std::move(gradients[k]);
    }
    return result;
  }

  /// out' = sum of K w (l' - lse') v + K w v',  lse' = sum of w l', where l' is a logit's tangent.
  Tensors tangent(const Tensors& in, std::size_t i, const at::Tensor& given, const Tensors& outputs) const override {
    const at::Tensor& out = outputs[0];
    const at::Tensor& lse = outputs[1];
    if (i > kBias) {
      return {at::Tensor(), at::Tensor()};
    }
    const EdgeTerms terms = call_.terms(in, lse);
    const EdgeAlgebra& algebra = terms.algebra();
    const Gradients tangents = tangent_of(i, given);
    if (i == kV) {
      return {algebra.to_rows(terms.kept(terms.weight()), tangents.v).to(out.scalar_type()), at::Tensor()};
    }
    const at::Tensor weighted = terms.weight() * terms.slope() * terms.linear_tangent(tangents);
    const at::Tensor of_lse = algebra.row_sums(weighted);
    const at::Tensor of_out =
        algebra.to_rows(terms.kept(weighted), terms.in().v) - of_lse.unsqueeze(-1) * out.to(lse.scalar_type());
    return {of_out.to(out.scalar_type()), of_lse};
  }

 private:
  CallOf call_;
};

class AttentionBackward final : public autograd::LinearOps {
 public:
  AttentionBackward(CallOf call, at::IntArrayRef wanted) : call_(std::move(call)), wanted_(wanted.vec()) {}

  std::string name() const override { return "edge_attention_backward"; }
  bool reads(std::size_t /*i*/, std::size_t /*j*/) const override { return true; }

  Tensors call(const Tensors& in) const override {
    return call_.backward(in, in[kGrad], in[kLse], in[kDelta], wanted_);
  }

  /// The op is the derivative of the forward formula in a direction u, less what moves lse and delta: with the upstream
  /// gradients as u, x' the tangent of x and y' = K <grad, u_v>, the gradients are those of the sum over all edges of
  ///   w (s x' (y - delta) + y')
  Tensors gradients(const Tensors& in, const Tensors& upstream, const std::vector<bool>& wanted) const override {
    const At at(call_, in);
    Gradients u;
    at::Tensor* const all[] = {&u.q, &u.k, &u.v, &u.factor, &u.bias};
    for (std::size_t n = 0; n < wanted_.size(); ++n) {
      if (upstream[n].defined()) {
        *all[wanted_[n]] = upstream[n].to(at.lse.scalar_type());
      }
    }
    const at::Tensor& w = at.terms.weight();
    const at::Tensor& s = at.terms.slope();
    const at::Tensor x_tangent = at.terms.linear_tangent(u);
    const at::Tensor of_y = x_tangent.defined() ? w * s * x_tangent : at::Tensor();
    at::Tensor of_w = x_tangent.defined() ? s * x_tangent * at.rest() : at::Tensor();
    if (u.v.defined()) {
      of_w = plus(of_w, at.terms.kept(at.algebra.dots(at.grad, u.v)));
    }
    Tensors result(in.size());
    if (!of_w.defined()) {
      return result;
    }
    const at::Tensor of_logit = w * of_w;
    const Gradients of_x =
        at.terms.linear_gradients(s * of_logit, x_tangent.defined() ? at.of_linear() : at::Tensor(), u);
    for (const Place place : {kQ, kK, kFactor, kBias}) {
      result[place] = in[place].defined() ? at_place(of_x, place) : at::Tensor();
    }
    if (of_y.defined()) {
      const at::Tensor kept = at.terms.kept(of_y);
      result[kV] = at.algebra.to_columns(kept, at.grad);
      result[kGrad] = at.algebra.to_rows(kept, at.terms.in().v);
      result[kDelta] = -at.algebra.row_sums(of_y);
    }
    if (u.v.defined()) {
      result[kGrad] = plus(result[kGrad], at.algebra.to_rows(at.terms.kept(w), u.v));
    }
    result[kLse] = -at.algebra.row_sums(of_logit);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = !wanted[i] ? at::Tensor() : result[i].defined() ? result[i] : at::zeros_like(in[i]);
    }
    return result;
  }

  Tensors tangent(const Tensors& in, std::size_t i, const at::Tensor& given, const Tensors& outputs) const override {
    if (i == kSeed || i == kEdges) {
      return Tensors(wanted_.size());
    }
    const At at(call_, in);
    const at::Tensor tangent = given.to(at.lse.scalar_type());
    const at::Tensor& w = at.terms.weight();
    const at::Tensor& s = at.terms.slope();
    const Gradients tangents = i <= kBias ? tangent_of(i, given) : Gradients{};
    const at::Tensor x_tangent = at.terms.linear_tangent(tangents);
    // Of w, of y - delta, and so of of_x.
    at::Tensor of_w = x_tangent.defined() ? w * s * x_tangent : at::Tensor();
    of_w = i == kLse ? -w * at.algebra.of_rows(tangent) : of_w;
    at::Tensor of_rest;
    if (i == kGrad || i == kV) {
      of_rest =
          at.terms.kept(i == kGrad ? at.algebra.dots(tangent, at.terms.in().v) : at.algebra.dots(at.grad, tangent));
    } else if (i == kDelta) {
      of_rest = -at.algebra.of_rows(tangent);
    }
    const at::Tensor of_linear = s * (of_w.defined() ? of_w * at.rest() : w * of_rest);
    const Gradients moved = at.terms.linear_gradients(of_linear, at.of_linear(), tangents);
    at::Tensor of_v = of_w.defined() ? at.algebra.to_columns(at.terms.kept(of_w), at.grad) : at::Tensor();
    of_v = i == kGrad ? at.algebra.to_columns(at.terms.kept(w), tangent) : of_v;
    Tensors result;
    for (std::size_t n = 0; n < wanted_.size(); ++n) {
      const auto place = static_cast<std::size_t>(wanted_[n]);
      const at::Tensor& of = place == kV ? of_v : at_place(moved, place);
      result.push_back(of.defined() ? of.to(outputs[n].scalar_type()) : at::Tensor());
    }
    return result;
  }

 private:
  /// The call's terms, with what the backward op alone has.
  struct At {
    EdgeTerms terms;
    const EdgeAlgebra& algebra = terms.algebra();
    at::Tensor grad, lse, delta;

    At(const CallOf& call, const Tensors& in)
        : terms(call.terms(in, in[kLse])),
          grad(in[kGrad].to(in[kLse].scalar_type())),
          lse(in[kLse]),
          delta(in[kDelta]) {}

    /// y - delta.
    at::Tensor rest() const { return terms.kept(algebra.dots(grad, terms.in().v)) - algebra.of_rows(delta); }
    at::Tensor of_linear() const { return terms.slope() * terms.weight() * rest(); }
  };

  CallOf call_;
  std::vector<std::int64_t> wanted_;
};

Tensors inputs_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& factor,
                  const OptionalTensor& bias, const OptionalTensor& seed, const at::Tensor& edges) {
  return {q, k, v, factor.value_or(at::Tensor()), bias.value_or(at::Tensor()), seed.value_or(at::Tensor()), edges};
}

std::tuple<at::Tensor, at::Tensor> forward(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const OptionalTensor& factor,
                                           const OptionalTensor& bias, const OptionalTensor& seed,
                                           const at::Tensor& edges, c10::SymIntArrayRef sizes, double scale,
                                           double slope, double dropout) {
  const Tensors results = autograd::differentiable(
      inputs_of(q, k, v, factor, bias, seed, edges),
      [&]() -> std::shared_ptr<const autograd::LinearOps> {
        return std::make_shared<Attention>(CallOf{sizes.vec(), {scale, slope, dropout}});
      },
      [&] {
        auto [out, lse] = forward_op().redispatch(keys & c10::after_autograd_keyset, q, k, v, factor, bias, seed, edges,
                                                  sizes, scale, slope, dropout);
        return Tensors{out, lse};
      });
  return {results[0], results[1]};
}

std::vector<at::Tensor> backward(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v, const OptionalTensor& factor, const OptionalTensor& bias,
                                 const OptionalTensor& seed, const at::Tensor& grad, const at::Tensor& lse,
                                 const at::Tensor& delta, const at::Tensor& edges, c10::SymIntArrayRef sizes,
                                 double scale, double slope, double dropout, at::IntArrayRef wanted) {
  Tensors inputs = inputs_of(q, k, v, factor, bias, seed, edges);
  inputs.insert(inputs.end(), {grad, lse, delta});
  return autograd::differentiable(
      inputs,
      [&]() -> std::shared_ptr<const autograd::LinearOps> {
        return std::make_shared<AttentionBackward>(CallOf{sizes.vec(), {scale, slope, dropout}}, wanted);
      },
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, q, k, v, factor, bias, seed, grad, lse,
                                        delta, edges, sizes, scale, slope, dropout, wanted);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("edge_attention_heads", forward);
  m.impl("edge_attention_heads_backward", backward);
}

}  // namespace lacewing::attention
