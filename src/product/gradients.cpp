#include "product/gradients.h"

#include <utility>

#include "product/shape.h"

namespace lacewing::products {
namespace {

at::Tensor conjugate(const at::Tensor& tensor) { return tensor.defined() ? tensor.conj() : tensor; }

OptionalTensor optional(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

bool has_batch(const at::Tensor& tensor, Channels channels) { return tensor.dim() == 2 + channels.count(); }

/// op(first, second) by the rule; `plans` are rotated for it already. The gradient of a shared operand is accumulated.
at::Tensor by_rule(const GradientRule& rule, at::Tensor first, at::Tensor second, const OptionalTensor& scale,
                   const Plans& plans, bool accumulated) {
  if (rule.transpose_first) {
    first = first.transpose(-1, -2);
  }
  if (rule.transpose_second) {
    second = second.transpose(-1, -2);
  }
  return rule.exchanged ? call_product(rule.op, second, first, scale, exchanged(plans), accumulated)
                        : call_product(rule.op, first, second, scale, plans, accumulated);
}

}  // namespace

ProductCall::ProductCall(Kind kind, const at::Tensor& x, const at::Tensor& y, Plans plans, bool accumulated,
                         bool scaled)
    : kind_(kind), plans_(std::move(plans)), accumulated_(accumulated) {
  const KindTraits& op = traits(kind);
  const auto rows_of = [](const at::Tensor& tensor, Channels channels) {
    return tensor.sym_size(-1 - channels.count());
  };
  const auto batch_of = [](const at::Tensor& tensor, Channels channels) {
    return has_batch(tensor, channels) ? Batch{true, tensor.sym_size(0)} : Batch{};
  };
  rows1_ = rows_of(x, op.x);
  if (!unary()) {
    rows2_ = rows_of(y, op.y);
    batch1_ = batch_of(x, op.x);
    batch2_ = batch_of(y, op.y);
  }
  for (const std::size_t view : {std::size_t{1}, std::size_t{2}}) {
    if (plans_[view].present() && !serves(plans_[0].sizes, plans_[view].sizes, view == 2, scaled)) {
      plans_[view] = Plan();
    }
  }
  if (plans_[1].present()) {
    check_backward_plan(kind, unary() ? "info_bwd" : "info_bwd1", false, plans_[0].sizes, plans_[1].sizes, rows1_);
  }
  if (plans_[2].present()) {
    check_backward_plan(kind, "info_bwd2", true, plans_[0].sizes, plans_[2].sizes, rows2_);
  }
}

ProductCall ProductCall::completed() const {
  ProductCall all = *this;
  all.plans_ = complete(plans_, rows1_, rows2_, unary());
  return all;
}

at::Tensor ProductCall::value(const Arguments& in) const {
  return call_product(kind_, in[kInput1], in[kInput2], optional(in[kScale]), plans_, accumulated_);
}

at::Tensor ProductCall::gradient(Place of, const Arguments& in) const {
  if (of == kScale) {
    return call_scale_grad(kind_, in[kInput1], in[kInput2], in[kGrad], plans_, accumulated_);
  }
  const OptionalTensor scale = optional(conjugate(in[kScale]));
  if (unary()) {
    return call_product(kind_, in[kGrad], {}, scale, {plans_[1], plans_[0], Plan{}}, false);
  }
  if (of == kInput1) {
    return by_rule(gradient_rule(kind_, /*second=*/false), conjugate(in[kInput2]), in[kGrad], scale, rotated(plans_),
                   !batch1_.has);
  }
  return by_rule(gradient_rule(kind_, /*second=*/true), in[kGrad], conjugate(in[kInput1]), scale,
                 rotated(rotated(plans_)), !batch2_.has);
}

std::vector<at::Tensor> ProductCall::gradients(const Arguments& in, at::IntArrayRef wanted) const {
  return call_product_backward(kind_, in[kInput1], in[kInput2], optional(in[kScale]), in[kGrad], plans_, accumulated_,
                               wanted);
}

at::Tensor ProductCall::expanded(Place of, const at::Tensor& gradient) const {
  const Batch& batch = of == kInput1 ? batch1_ : batch2_;
  const Channels channels = of == kInput1 ? traits(kind_).x : traits(kind_).y;
  if (of > kInput2 || !batch.has || has_batch(gradient, channels)) {
    return gradient;
  }
  c10::SymDimVector sizes(gradient.sym_sizes());
  sizes.insert(sizes.begin(), batch.size);
  return gradient.unsqueeze(0).expand_symint(sizes);
}

}  // namespace lacewing::products
