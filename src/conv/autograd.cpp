// Derivatives of sparse convolution of every order. With C(x, W) over a plan and G(x, g) the gradient of its weight:
//   C is linear in x and W: dC/dx is C over the reversed plan with W^T, dC/dW is G;
//   G is linear in x and g: dG/dx is C(g, V) over the reversed plan with V^T, dG/dg is C(x, V).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "autograd/node.h"
#include "conv/check.h"

namespace lacewing::conv {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// A plan as the ops take it; saved with a node.
struct PlanArgument {
  SavedVariable array;
  std::vector<std::int64_t> meta;

  void set(const at::Tensor& plan, at::IntArrayRef values) {
    array = SavedVariable(plan, false);
    meta = values.vec();
  }
  std::vector<std::int64_t> reversed() const { return PlanMeta::from(meta).reverse().to_vector(); }
};

/// The gradient of W, whose last two dims are exchanged where `transposed`.
at::Tensor weight_gradient(const at::Tensor& x, const at::Tensor& g, const at::Tensor& plan, const PlanArgument& saved,
                           std::int64_t groups, bool transposed) {
  return transposed ? weight_grad_op().call(g, x, plan, saved.reversed(), groups)
                    : weight_grad_op().call(x, g, plan, saved.meta, groups);
}

/// The gradient of the bias. torch cuts a sum with a single result by the number of threads: of one channel we take
/// two.
at::Tensor channel_sums(const at::Tensor& g) {
  return g.sym_size(1) == 1 ? g.expand_symint({g.sym_size(0), 2}).sum(0).narrow(0, 0, 1) : g.sum(0);
}

struct ConvBackward : torch::autograd::Node {
  SavedVariable features, weight;
  PlanArgument plan;
  std::int64_t groups = 1;
  bool transposed = false;

  std::string name() const override { return "LacewingBackward_sparse_conv"; }

  variable_list apply(variable_list&& grads) override {
    variable_list result(3);
    const at::Tensor& g = grads[0];
    if (!g.defined()) {
      return result;
    }
    const at::Tensor array = plan.array.unpack();
    if (task_should_compute_output(0)) {
      result[0] = conv_op().call(g, weight.unpack(), std::nullopt, array, plan.reversed(), !transposed);
    }
    if (task_should_compute_output(1)) {
      result[1] = weight_gradient(features.unpack(), g, array, plan, groups, transposed);
    }
    if (task_should_compute_output(2)) {
      result[2] = channel_sums(g);
    }
    return result;
  }

  void release_variables() override {
    features.reset_data();
    weight.reset_data();
    plan.array.reset_data();
  }
};

struct WeightGradBackward : torch::autograd::Node {
  SavedVariable features, grad;
  PlanArgument plan;

  std::string name() const override { return "LacewingBackward_sparse_conv_weight_grad"; }

  variable_list apply(variable_list&& grads) override {
    variable_list result(2);
    const at::Tensor& v = grads[0];
    if (!v.defined()) {
      return result;
    }
    const at::Tensor array = plan.array.unpack();
    if (task_should_compute_output(0)) {
      result[0] = conv_op().call(grad.unpack(), v, std::nullopt, array, plan.reversed(), true);
    }
    if (task_should_compute_output(1)) {
      result[1] = conv_op().call(features.unpack(), v, std::nullopt, array, plan.meta, false);
    }
    return result;
  }

  void release_variables() override {
    features.reset_data();
    grad.reset_data();
    plan.array.reset_data();
  }
};

void add_to(at::Tensor& sum, const at::Tensor& term) { sum = sum.defined() ? sum.add(term) : term; }

at::Tensor primal(const at::Tensor& tensor) { return tensor._fw_primal(/*level=*/0); }

at::Tensor conv(c10::DispatchKeySet keys, const at::Tensor& features, const at::Tensor& weight,
                const OptionalTensor& bias, const at::Tensor& plan, at::IntArrayRef meta, bool transposed) {
  const at::Tensor b = bias.value_or(at::Tensor());
  autograd::NodePtr<ConvBackward> node;
  if (torch::autograd::compute_requires_grad(features, weight, b)) {
    const ConvShape shape = check_conv(features, weight, bias, plan, meta, transposed);
    node = autograd::make_node<ConvBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(features, weight, b));
    // An operand is kept only for the gradient that reads it.
    if (torch::autograd::compute_requires_grad(weight)) {
      node->features = SavedVariable(features, false);
    }
    if (torch::autograd::compute_requires_grad(features)) {
      node->weight = SavedVariable(weight, false);
    }
    node->plan.set(plan, meta);
    node->groups = shape.groups.guard_int(__FILE__, __LINE__);
    node->transposed = transposed;
  }
  at::Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    y = conv_op().redispatch(keys & c10::after_autograd_keyset, features, weight, bias, plan, meta, transposed);
  }
  autograd::set_history(y, node);
  const at::Tensor tangent_x = autograd::tangent(features);
  const at::Tensor tangent_w = autograd::tangent(weight);
  const at::Tensor tangent_b = autograd::tangent(b);
  at::Tensor tangent;
  if (tangent_x.defined()) {
    add_to(tangent, conv_op().call(tangent_x, primal(weight), std::nullopt, plan, meta, transposed));
  }
  if (tangent_w.defined()) {
    add_to(tangent, conv_op().call(primal(features), tangent_w, std::nullopt, plan, meta, transposed));
  }
  if (tangent_b.defined()) {
    add_to(tangent, tangent_b.unsqueeze(0).expand_as(y));
  }
  if (tangent.defined()) {
    y._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
  return y;
}

at::Tensor weight_grad(c10::DispatchKeySet keys, const at::Tensor& features, const at::Tensor& grad,
                       const at::Tensor& plan, at::IntArrayRef meta, std::int64_t groups) {
  autograd::NodePtr<WeightGradBackward> node;
  if (torch::autograd::compute_requires_grad(features, grad)) {
    check_weight_grad(features, grad, plan, meta, groups);
    node = autograd::make_node<WeightGradBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(features, grad));
    if (torch::autograd::compute_requires_grad(grad)) {
      node->features = SavedVariable(features, false);
    }
    if (torch::autograd::compute_requires_grad(features)) {
      node->grad = SavedVariable(grad, false);
    }
    node->plan.set(plan, meta);
  }
  at::Tensor out;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    out = weight_grad_op().redispatch(keys & c10::after_autograd_keyset, features, grad, plan, meta, groups);
  }
  autograd::set_history(out, node);
  const at::Tensor tangent_x = autograd::tangent(features);
  const at::Tensor tangent_g = autograd::tangent(grad);
  at::Tensor tangent;
  if (tangent_x.defined()) {
    add_to(tangent, weight_grad_op().call(tangent_x, primal(grad), plan, meta, groups));
  }
  if (tangent_g.defined()) {
    add_to(tangent, weight_grad_op().call(primal(features), tangent_g, plan, meta, groups));
  }
  if (tangent.defined()) {
    out._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("sparse_conv", conv);
  m.impl("sparse_conv_weight_grad", weight_grad);
}

}  // namespace lacewing::conv
