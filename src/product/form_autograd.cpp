// Derivatives of the formula. It is linear in each role, so that the gradient of a role is the same form with that role
// computed, the upstream gradient in the output's place and everything else conjugated:
//   dF/da_j = F_j(conj(a), g)
// product_backward computes several of them; its own derivatives are single ones again.
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "autograd/linear_op.h"
#include "product/form_calls.h"

namespace lacewing::products {
namespace {

using autograd::Tensors;

/// A call and where its tensors stand among the inputs of an op: operands, coefficients, what is `more`, the plan.
class Inputs {
 public:
  Inputs(FormCall call, std::size_t more) : call_(std::move(call)), read_(call_.read()), more_(more) {}

  const FormCall& call() const { return call_; }
  /// Operands and coefficients.
  std::size_t factors() const { return read_.size() + 1; }
  int role(std::size_t i) const { return i < read_.size() ? read_[i] : call_.form.scale(); }

  Tensors by_role(const Tensors& inputs) const {
    Tensors tensors(call_.form.roles.size());
    for (std::size_t i = 0; i < factors(); ++i) {
      if (role(i) != call_.role) {
        tensors[static_cast<std::size_t>(role(i))] = inputs[i];
      }
    }
    return tensors;
  }
  Tensors operands(const Tensors& inputs) const {
    return {inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(read_.size())};
  }
  std::optional<at::Tensor> scale(const Tensors& inputs) const {
    const at::Tensor& scale = inputs[read_.size()];
    return scale.defined() ? std::optional<at::Tensor>(scale) : std::nullopt;
  }
  Tensors plan(const Tensors& inputs) const {
    return {inputs.begin() + static_cast<std::ptrdiff_t>(factors() + more_), inputs.end()};
  }

  at::Tensor product(const Tensors& inputs) const {
    return form_op().call(operands(inputs), scale(inputs), plan(inputs), call_.sizes.to_vector(), call_.form.text(),
                          call_.role);
  }
  /// The gradients of the places that are wanted.
  Tensors backward(const Tensors& inputs, const at::Tensor& grad, at::IntArrayRef wanted) const {
    return form_backward_op().call(operands(inputs), scale(inputs), grad, plan(inputs), call_.sizes.to_vector(),
                                   call_.form.text(), call_.role, wanted);
  }

 private:
  FormCall call_;
  std::vector<int> read_;
  std::size_t more_;
};

class Product final : public autograd::LinearOp {
 public:
  explicit Product(FormCall call) : at_(std::move(call), 0) {}

  std::string name() const override { return "product"; }
  at::Tensor call(const Tensors& inputs) const override { return at_.product(inputs); }

  Tensors gradients(const Tensors& inputs, const at::Tensor& upstream, const std::vector<bool>& wanted) const override {
    std::vector<std::int64_t> places;
    for (std::size_t i = 0; i < at_.factors(); ++i) {
      if (wanted[i]) {
        places.push_back(static_cast<std::int64_t>(i));
      }
    }
    Tensors result(inputs.size());
    if (places.size() == 1) {
      // What is wanted alone is not saved.
      const int role = at_.role(static_cast<std::size_t>(places[0]));
      result[static_cast<std::size_t>(places[0])] =
          call_form(at_.call(), role, backward_tensors(at_.call(), at_.by_role(inputs), upstream), at_.plan(inputs));
    } else if (!places.empty()) {
      Tensors gradients = at_.backward(inputs, upstream, places);
      for (std::size_t k = 0; k < places.size(); ++k) {
        result[static_cast<std::size_t>(places[k])] = std::move(gradients[k]);
      }
    }
    return result;
  }

 private:
  Inputs at_;
};

/// G_u = F_u(conj(a), g) for the wanted u. With upstreams w_u:
///   d/dg   = sum over u of F_v(a, w_u)             v: the role that was computed first, where g stands
///   d/da_j = sum over u of F_j(conj(a), g, conj(w_u)), w_u in the place of a_u
class ProductBackward final : public autograd::LinearOps {
 public:
  ProductBackward(FormCall call, at::IntArrayRef wanted) : at_(std::move(call), 1), wanted_(wanted.vec()) {}

  std::string name() const override { return "product_backward"; }
  Tensors call(const Tensors& inputs) const override { return at_.backward(inputs, inputs[grad_at()], wanted_); }

  Tensors gradients(const Tensors& inputs, const Tensors& upstream, const std::vector<bool>& wanted) const override {
    Tensors result(inputs.size());
    for (std::size_t k = 0; k < wanted_.size(); ++k) {
      const at::Tensor& w = upstream[k];
      const auto u = static_cast<std::size_t>(wanted_[k]);
      if (!w.defined()) {
        continue;
      }
      if (wanted[grad_at()]) {
        Tensors tensors = at_.by_role(inputs);
        tensors[role(u)] = w;
        add(result[grad_at()], compute(at_.call().role, tensors, inputs));
      }
      for (std::size_t j = 0; j < at_.factors(); ++j) {
        if (j != u && wanted[j]) {
          Tensors tensors = backward_tensors(at_.call(), at_.by_role(inputs), inputs[grad_at()]);
          tensors[role(u)] = w.conj();
          add(result[j], compute(at_.role(j), tensors, inputs));
        }
      }
    }
    // What comes of no gradient that was wanted.
    for (std::size_t j = 0; j < at_.factors(); ++j) {
      if (wanted[j] && !result[j].defined() && inputs[j].defined()) {
        result[j] = at::zeros_like(inputs[j]);
      }
    }
    return result;
  }

  Tensors tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                  const Tensors& /*outputs*/) const override {
    Tensors inputs = primals;
    inputs[i] = tangent;
    return autograd::all_but(i, wanted_,
                             [&](at::IntArrayRef others) { return at_.backward(inputs, inputs[grad_at()], others); });
  }

 private:
  std::size_t grad_at() const { return at_.factors(); }
  std::size_t role(std::size_t place) const { return static_cast<std::size_t>(at_.role(place)); }
  at::Tensor compute(int role, const Tensors& tensors, const Tensors& inputs) const {
    return call_form(at_.call(), role, tensors, at_.plan(inputs));
  }
  static void add(at::Tensor& sum, const at::Tensor& term) { sum = sum.defined() ? sum + term : term; }

  Inputs at_;
  std::vector<std::int64_t> wanted_;
};

Tensors inputs_of(at::TensorList operands, const std::optional<at::Tensor>& scale,
                  const std::optional<at::Tensor>& grad, at::TensorList plan) {
  Tensors inputs = operands.vec();
  inputs.push_back(scale.value_or(at::Tensor()));
  if (grad) {
    inputs.push_back(*grad);
  }
  inputs.insert(inputs.end(), plan.begin(), plan.end());
  return inputs;
}

FormCall checked(const char* op, at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                 c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  const auto r = static_cast<int>(role);
  return check_form(op, form, sizes, r, by_role(op, Form::parse(op, form), r, operands, scale), plan);
}

at::Tensor product(c10::DispatchKeySet keys, at::TensorList operands, const std::optional<at::Tensor>& scale,
                   at::TensorList plan, c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  return autograd::differentiable(
      inputs_of(operands, scale, std::nullopt, plan),
      [&]() -> std::shared_ptr<const autograd::LinearOp> {
        return std::make_shared<Product>(checked("product", operands, scale, plan, sizes, form, role));
      },
      [&] {
        return form_op().redispatch(keys & c10::after_autograd_keyset, operands, scale, plan, sizes, form, role);
      });
}

std::vector<at::Tensor> product_backward(c10::DispatchKeySet keys, at::TensorList operands,
                                         const std::optional<at::Tensor>& scale, const at::Tensor& grad,
                                         at::TensorList plan, c10::SymIntArrayRef sizes, std::string_view form,
                                         std::int64_t role, at::IntArrayRef wanted) {
  return autograd::differentiable(
      inputs_of(operands, scale, grad, plan),
      [&]() -> std::shared_ptr<const autograd::LinearOps> {
        return std::make_shared<ProductBackward>(checked("product_backward", operands, scale, plan, sizes, form, role),
                                                 wanted);
      },
      [&] {
        return form_backward_op().redispatch(keys & c10::after_autograd_keyset, operands, scale, grad, plan, sizes,
                                             form, role, wanted);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("product", product);
  m.impl("product_backward", product_backward);
}

}  // namespace lacewing::products
