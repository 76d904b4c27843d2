// Derivatives of every order, as torch::autograd::Node subclasses. All of them are partial derivatives of one form,
// linear in each of its four arguments:  F(x, y, g, s) = sum s[t] * <x o y, g>.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/real.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "autograd/node.h"
#include "common/typed_op.h"
#include "product/calls.h"
#include "product/shape.h"

namespace lacewing::products {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor conjugate(const at::Tensor& tensor) { return tensor.defined() ? tensor.conj() : tensor; }

OptionalTensor conjugate(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(tensor->conj()) : std::nullopt;
}

/// What a gradient must look like to be an operand's: its dtype, and whether it has N.
struct OperandKind {
  at::ScalarType type = at::kFloat;
  bool batched = false;
  c10::SymInt batch = 1;

  OperandKind() = default;
  OperandKind(const at::Tensor& tensor, bool is_batched)
      : type(tensor.scalar_type()), batched(is_batched), batch(is_batched ? tensor.sym_size(0) : c10::SymInt(1)) {}

  at::Tensor cast(const at::Tensor& gradient) const {
    const bool drop_imaginary = gradient.is_complex() && !c10::isComplexType(type);
    return (drop_imaginary ? at::real(gradient) : gradient).to(type);
  }
};

bool has_batch(const at::Tensor& tensor, Channels channels) { return tensor.dim() == 2 + channels.count(); }

/// dF/dx as op(y, g) or dF/dy as op(g, x), by the rule; `plans` are rotated for it already.
at::Tensor operand_gradient(const GradientRule& rule, at::Tensor first, at::Tensor second, const OptionalTensor& scale,
                            const Plans& plans, const OperandKind& operand) {
  if (rule.transpose_first) {
    first = first.transpose(-1, -2);
  }
  if (rule.transpose_second) {
    second = second.transpose(-1, -2);
  }
  const bool first_batched = has_batch(first, traits(rule.op).x);
  const bool second_batched = has_batch(second, traits(rule.op).y);
  at::Tensor gradient = rule.exchanged ? call_product(rule.op, second, first, scale, exchanged(plans), !operand.batched)
                                       : call_product(rule.op, first, second, scale, plans, !operand.batched);
  gradient = operand.cast(gradient);
  if (operand.batched && !first_batched && !second_batched) {
    c10::SymDimVector sizes(gradient.sym_sizes());
    sizes.insert(sizes.begin(), operand.batch);
    gradient = gradient.unsqueeze(0).expand_symint(sizes);
  }
  return gradient;
}

/// A product's kind, plans and the rows of its inputs: what all derivatives need beside the tensors.
struct Form {
  Kind kind = Kind::mul;
  Plans plans;
  bool accumulated = false;
  std::int64_t rows1 = 0;
  std::int64_t rows2 = 0;

  Form() = default;
  Form(Kind kind_, const at::Tensor& x, const at::Tensor& y, Plans plans_, bool accumulated_)
      : kind(kind_), plans(std::move(plans_)), accumulated(accumulated_) {
    const KindTraits& op = traits(kind);
    rows1 = x.sym_size(-1 - op.x.count()).guard_int(__FILE__, __LINE__);
    rows2 = y.defined() ? y.sym_size(-1 - op.y.count()).guard_int(__FILE__, __LINE__) : 0;
    const structure::PlanMeta forward = plans[0].description();
    if (plans[1].present()) {
      check_backward_plan(kind, unary() ? "info_bwd" : "info_bwd1", false, forward, plans[1].meta, rows1);
    }
    if (plans[2].present()) {
      check_backward_plan(kind, "info_bwd2", true, forward, plans[2].meta, rows2);
    }
  }

  bool unary() const { return kind == Kind::scale; }
  Plans full() const { return complete(plans, rows1, rows2, unary()); }

  at::Tensor value(const at::Tensor& x, const at::Tensor& y, const OptionalTensor& scale) const {
    return call_product(kind, x, y, scale, plans, accumulated);
  }
  at::Tensor grad_x(const at::Tensor& y, const at::Tensor& g, const OptionalTensor& scale, const OperandKind& x) const {
    const Plans all = full();
    if (unary()) {
      return x.cast(call_product(kind, g, {}, conjugate(scale), {all[1], all[0], Plan{}}, false));
    }
    const GradientRule& rule = kGradientX[static_cast<std::size_t>(kind)];
    return operand_gradient(rule, conjugate(y), g, conjugate(scale), rotated(all), x);
  }
  at::Tensor grad_y(const at::Tensor& x, const at::Tensor& g, const OptionalTensor& scale, const OperandKind& y) const {
    const GradientRule& rule = kGradientY[static_cast<std::size_t>(kind)];
    return operand_gradient(rule, g, conjugate(x), conjugate(scale), rotated(rotated(full())), y);
  }
  at::Tensor grad_scale(const at::Tensor& x, const at::Tensor& y, const at::Tensor& g) const {
    return call_scale_grad(kind, x, y, g, full(), accumulated);
  }
};

at::Tensor unpack(const SavedVariable& saved) { return saved.unpack(); }

OptionalTensor unpack_optional(const SavedVariable& saved) {
  const at::Tensor tensor = saved.unpack();
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

SavedVariable save(const at::Tensor& tensor) {
  return tensor.defined() ? SavedVariable(tensor, false) : SavedVariable();
}

struct ProductBackward : torch::autograd::Node {
  Form form;
  SavedVariable x, y, scale;
  OperandKind x_kind, y_kind, scale_kind;

  std::string name() const override { return std::string("LacewingBackward_") + traits(form.kind).name; }

  variable_list apply(variable_list&& grads) override {
    variable_list result(3);
    const at::Tensor& g = grads[0];
    if (!g.defined()) {
      return result;
    }
    const OptionalTensor s = unpack_optional(scale);
    if (task_should_compute_output(0)) {
      result[0] = form.grad_x(unpack(y), g, s, x_kind);
    }
    if (task_should_compute_output(1)) {
      result[1] = form.grad_y(unpack(x), g, s, y_kind);
    }
    if (task_should_compute_output(2)) {
      result[2] = scale_kind.cast(form.grad_scale(unpack(x), unpack(y), g));
    }
    return result;
  }

  void release_variables() override {
    x.reset_data();
    y.reset_data();
    scale.reset_data();
  }
};

/// The gradient of scale is dF/ds; its own derivatives are the gradients above with the upstream v in the place of s.
struct ScaleGradBackward : torch::autograd::Node {
  Form form;
  SavedVariable x, y, g;
  OperandKind x_kind, y_kind, g_kind;

  std::string name() const override { return "LacewingBackward_product_scale_grad"; }

  variable_list apply(variable_list&& grads) override {
    variable_list result(3);
    const at::Tensor& v = grads[0];
    if (!v.defined()) {
      return result;
    }
    if (task_should_compute_output(0)) {
      result[0] = form.grad_x(unpack(y), unpack(g), v, x_kind);
    }
    if (task_should_compute_output(1)) {
      result[1] = form.grad_y(unpack(x), unpack(g), v, y_kind);
    }
    if (task_should_compute_output(2)) {
      result[2] = g_kind.cast(form.value(unpack(x), unpack(y), v));
    }
    return result;
  }

  void release_variables() override {
    x.reset_data();
    y.reset_data();
    g.reset_data();
  }
};

at::Tensor defined_or_empty(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

Plans plans_of(const at::Tensor& plan, at::IntArrayRef meta, const OptionalTensor& plan_bwd1, at::IntArrayRef meta_bwd1,
               const OptionalTensor& plan_bwd2, at::IntArrayRef meta_bwd2) {
  return {Plan{plan, meta.vec()}, Plan{plan_bwd1, meta_bwd1.vec()}, Plan{plan_bwd2, meta_bwd2.vec()}};
}

void add_tangent(at::Tensor& sum, const at::Tensor& term) { sum = sum.defined() ? sum + term : term; }

at::Tensor primal(const at::Tensor& tensor) { return tensor.defined() ? tensor._fw_primal(0) : tensor; }

/// The node, the value below autograd by `compute`, and the forward-mode tangent of a product.
template <typename Compute>
at::Tensor differentiable_product(Kind kind, const at::Tensor& x, const at::Tensor& y, const OptionalTensor& scale,
                                  const Plans& plans, bool accumulated, Compute&& compute) {
  const at::Tensor s = defined_or_empty(scale);
  autograd::NodePtr<ProductBackward> node;
  const at::Tensor tangent_x = autograd::tangent(x);
  const at::Tensor tangent_y = autograd::tangent(y);
  const at::Tensor tangent_s = autograd::tangent(s);
  const bool forward_mode = tangent_x.defined() || tangent_y.defined() || tangent_s.defined();
  if (torch::autograd::compute_requires_grad(x, y, s)) {
    check_product(kind, x, y, scale, *plans[0].array, plans[0].meta, accumulated);
    node = autograd::make_node<ProductBackward>();
    node->form = Form(kind, x, y, plans, accumulated);
    node->set_next_edges(torch::autograd::collect_next_edges(x, y, s));
    // An operand is kept only for the gradients that read it.
    if (torch::autograd::compute_requires_grad(y, s)) {
      node->x = save(x);
    }
    if (torch::autograd::compute_requires_grad(x, s)) {
      node->y = save(y);
    }
    node->scale = save(s);
    const KindTraits& op = traits(kind);
    node->x_kind = OperandKind(x, kind == Kind::scale ? false : has_batch(x, op.x));
    if (y.defined()) {
      node->y_kind = OperandKind(y, has_batch(y, op.y));
    }
    if (s.defined()) {
      node->scale_kind = OperandKind(s, false);
    }
  }
  at::Tensor z;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    z = compute();
  }
  autograd::set_history<ProductBackward>(z, node);
  if (forward_mode) {
    const at::Tensor primal_x = primal(x);
    const at::Tensor primal_y = primal(y);
    const OptionalTensor primal_s = s.defined() ? OptionalTensor(primal(s)) : std::nullopt;
    at::Tensor tangent;
    if (tangent_x.defined()) {
      add_tangent(tangent, call_product(kind, tangent_x, primal_y, primal_s, plans, accumulated));
    }
    if (tangent_y.defined()) {
      add_tangent(tangent, call_product(kind, primal_x, tangent_y, primal_s, plans, accumulated));
    }
    if (tangent_s.defined()) {
      add_tangent(tangent, call_product(kind, primal_x, primal_y, tangent_s, plans, accumulated));
    }
    z._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
  return z;
}

template <Kind kind>
at::Tensor product(c10::DispatchKeySet keys, const at::Tensor& input1, const at::Tensor& input2,
                   const OptionalTensor& scale, const at::Tensor& plan, at::IntArrayRef meta,
                   const OptionalTensor& plan_bwd1, at::IntArrayRef meta_bwd1, const OptionalTensor& plan_bwd2,
                   at::IntArrayRef meta_bwd2, bool out_accumulated) {
  static const auto op = find_op<ProductSignature>(traits(kind).name);
  const Plans plans = plans_of(plan, meta, plan_bwd1, meta_bwd1, plan_bwd2, meta_bwd2);
  return differentiable_product(kind, input1, input2, scale, plans, out_accumulated, [&] {
    return op.redispatch(keys & c10::after_autograd_keyset, input1, input2, scale, plan, meta, plan_bwd1, meta_bwd1,
                         plan_bwd2, meta_bwd2, out_accumulated);
  });
}

at::Tensor scale_op(c10::DispatchKeySet keys, const at::Tensor& input, const OptionalTensor& scale,
                    const at::Tensor& plan, at::IntArrayRef meta, const OptionalTensor& plan_bwd,
                    at::IntArrayRef meta_bwd) {
  const auto& op = typed_op<"sparse_scale", ScaleSignature>();
  const Plans plans = plans_of(plan, meta, plan_bwd, meta_bwd, std::nullopt, {});
  return differentiable_product(Kind::scale, input, {}, scale, plans, false, [&] {
    return op.redispatch(keys & c10::after_autograd_keyset, input, scale, plan, meta, plan_bwd, meta_bwd);
  });
}

at::Tensor scale_grad(c10::DispatchKeySet keys, std::int64_t kind_number, const at::Tensor& input1,
                      const OptionalTensor& input2, const at::Tensor& grad, const at::Tensor& plan,
                      at::IntArrayRef meta, const OptionalTensor& plan_bwd1, at::IntArrayRef meta_bwd1,
                      const OptionalTensor& plan_bwd2, at::IntArrayRef meta_bwd2, bool out_accumulated) {
  const auto& op = typed_op<"product_scale_grad", ScaleGradSignature>();
  const Kind kind = kind_of("product_scale_grad", kind_number);
  const at::Tensor y = defined_or_empty(input2);
  const Plans plans = plans_of(plan, meta, plan_bwd1, meta_bwd1, plan_bwd2, meta_bwd2);
  autograd::NodePtr<ScaleGradBackward> node;
  if (torch::autograd::compute_requires_grad(input1, y, grad)) {
    const KindTraits& op_traits = traits(kind);
    node = autograd::make_node<ScaleGradBackward>();
    node->form = Form(kind, input1, y, plans, out_accumulated);
    node->set_next_edges(torch::autograd::collect_next_edges(input1, y, grad));
    node->x = save(input1);
    node->y = save(y);
    node->g = save(grad);
    node->x_kind = OperandKind(input1, kind == Kind::scale ? false : has_batch(input1, op_traits.x));
    if (y.defined()) {
      node->y_kind = OperandKind(y, has_batch(y, op_traits.y));
    }
    node->g_kind = OperandKind(grad, false);
  }
  const at::Tensor tangent_x = autograd::tangent(input1);
  const at::Tensor tangent_y = autograd::tangent(y);
  const at::Tensor tangent_g = autograd::tangent(grad);
  at::Tensor out;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    out = op.redispatch(keys & c10::after_autograd_keyset, kind_number, input1, input2, grad, plan, meta, plan_bwd1,
                        meta_bwd1, plan_bwd2, meta_bwd2, out_accumulated);
  }
  autograd::set_history<ScaleGradBackward>(out, node);
  if (tangent_x.defined() || tangent_y.defined() || tangent_g.defined()) {
    const at::Tensor primal_x = primal(input1);
    const at::Tensor primal_y = primal(y);
    const at::Tensor primal_g = primal(grad);
    at::Tensor tangent;
    if (tangent_x.defined()) {
      add_tangent(tangent, call_scale_grad(kind, tangent_x, primal_y, primal_g, plans, out_accumulated));
    }
    if (tangent_y.defined()) {
      add_tangent(tangent, call_scale_grad(kind, primal_x, tangent_y, primal_g, plans, out_accumulated));
    }
    if (tangent_g.defined()) {
      add_tangent(tangent, call_scale_grad(kind, primal_x, primal_y, tangent_g, plans, out_accumulated));
    }
    out._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
  return out;
}

template <std::size_t... Kinds>
void register_products(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(traits(static_cast<Kind>(Kinds)).name, product<static_cast<Kind>(Kinds)>), ...);
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  register_products(m, std::make_index_sequence<kProducts>{});
  m.impl("sparse_scale", scale_op);
  m.impl("product_scale_grad", scale_grad);
  m.impl("derive_plan", torch::CppFunction::makeFallthrough());
}

}  // namespace lacewing::products
