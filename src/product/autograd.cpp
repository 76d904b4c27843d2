// Derivatives of the seven products and sparse scale, of every order: see gradients.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "autograd/linear_op.h"
#include "common/typed_op.h"
#include "product/gradients.h"
#include "product/shape.h"

namespace lacewing::products {
namespace {

using autograd::Tensors;

at::Tensor defined_or_empty(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

Tensors with(Tensors in, Place place, const at::Tensor& tensor) {
  in[place] = tensor;
  return in;
}

/// Of (x, y, s).
class Product final : public autograd::LinearOp {
 public:
  explicit Product(ProductCall call) : call_(std::move(call)) {}

  std::string name() const override { return traits(call_.kind()).name; }
  at::Tensor call(const Tensors& in) const override { return call_.value(in); }

  Tensors gradients(const Tensors& in, const at::Tensor& upstream, const std::vector<bool>& wanted) const override {
    std::vector<std::int64_t> places;
    for (const Place place : {kInput1, kInput2, kScale}) {
      if (wanted[place]) {
        places.push_back(static_cast<std::int64_t>(place));
      }
    }
    const ProductCall full = call_.completed();
    Tensors arguments = in;
    arguments.push_back(upstream);
    Tensors result(in.size());
    if (places.size() == 1) {
      // What is wanted alone is not saved.
      const auto place = static_cast<Place>(places[0]);
      result[place] = full.expanded(place, full.gradient(place, arguments));
    } else {
      const Tensors gradients = full.gradients(arguments, places);
      for (std::size_t k = 0; k < places.size(); ++k) {
        const auto place = static_cast<Place>(places[k]);
        result[place] = full.expanded(place, gradients[k]);
      }
    }
    return result;
  }

 private:
  ProductCall call_;
};

/// Of (x, y, s, g). The gradients G_u = F_u of conjugates; with their upstreams w_u, d/dg is the sum over u of the
/// value with w_u in the place of a_u, and d/da_j that of the gradients G_j with it.
class ProductBackward final : public autograd::LinearOps {
 public:
  ProductBackward(const ProductCall& call, at::IntArrayRef wanted) : call_(call.completed()), wanted_(wanted.vec()) {}

  std::string name() const override { return std::string(traits(call_.kind()).name) + "_backward"; }
  Tensors call(const Tensors& in) const override { return call_.gradients(in, wanted_); }

  Tensors gradients(const Tensors& in, const Tensors& upstream, const std::vector<bool>& wanted) const override {
    Tensors result(in.size());
    const auto add = [&](Place place, const at::Tensor& term) {
      result[place] = result[place].defined() ? result[place] + term : term;
    };
    for (std::size_t k = 0; k < wanted_.size(); ++k) {
      if (!upstream[k].defined()) {
        continue;
      }
      const auto u = static_cast<Place>(wanted_[k]);
      const Tensors arguments = with(in, u, upstream[k]);
      if (wanted[kGrad]) {
        add(kGrad, call_.value(arguments));
      }
      for (const Place j : {kInput1, kInput2, kScale}) {
        if (j != u && wanted[j]) {
          add(j, call_.expanded(j, call_.gradient(j, arguments)));
        }
      }
    }
    // What comes of no gradient that was wanted.
    for (std::size_t j = 0; j < in.size(); ++j) {
      if (wanted[j] && !result[j].defined() && in[j].defined()) {
        result[j] = at::zeros_like(in[j]);
      }
    }
    return result;
  }

  Tensors tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                  const Tensors& /*outputs*/) const override {
    const Tensors in = with(primals, static_cast<Place>(i), tangent);
    return autograd::all_but(i, wanted_, [&](at::IntArrayRef others) { return call_.gradients(in, others); });
  }

 private:
  ProductCall call_;
  std::vector<std::int64_t> wanted_;
};

/// Of (x, y, g): dF/ds. Its own derivatives are those of F with the upstream gradient in the place of s.
class ScaleGrad final : public autograd::LinearOp {
 public:
  explicit ScaleGrad(ProductCall call) : call_(std::move(call)) {}

  std::string name() const override { return "product_scale_grad"; }
  at::Tensor call(const Tensors& in) const override {
    return call_scale_grad(call_.kind(), in[0], in[1], in[2], call_.plans(), call_.accumulated());
  }

  Tensors gradients(const Tensors& in, const at::Tensor& upstream, const std::vector<bool>& wanted) const override {
    const ProductCall full = call_.completed();
    const Tensors arguments{in[0], in[1], upstream, in[2]};
    const auto gradient = [&](Place of) { return full.expanded(of, full.gradient(of, arguments)); };
    return {wanted[0] ? gradient(kInput1) : at::Tensor(), wanted[1] ? gradient(kInput2) : at::Tensor(),
            wanted[2] ? full.value(arguments) : at::Tensor()};
  }

 private:
  ProductCall call_;
};

template <typename Redispatch>
at::Tensor differentiable_product(Kind kind, const at::Tensor& x, const at::Tensor& y, const OptionalTensor& scale,
                                  const Plans& plans, bool accumulated, Redispatch&& redispatch) {
  return autograd::differentiable(
      {x, y, defined_or_empty(scale)},
      [&] {
        check_product(kind, x, y, scale, plans[0], accumulated);
        return std::make_shared<Product>(ProductCall(kind, x, y, plans, accumulated, scale.has_value()));
      },
      redispatch);
}

template <Kind kind>
at::Tensor product(c10::DispatchKeySet keys, const at::Tensor& input1, const at::Tensor& input2,
                   const OptionalTensor& scale, at::TensorList plan, c10::SymIntArrayRef sizes, bool out_accumulated) {
  static const auto op = find_op<ProductSignature>(traits(kind).name);
  const Plans plans = read_plans(traits(kind).name, plan, sizes);
  return differentiable_product(kind, input1, input2, scale, plans, out_accumulated, [&] {
    return op.redispatch(keys & c10::after_autograd_keyset, input1, input2, scale, plan, sizes, out_accumulated);
  });
}

at::Tensor scale_op(c10::DispatchKeySet keys, const at::Tensor& input, const OptionalTensor& scale, at::TensorList plan,
                    c10::SymIntArrayRef sizes) {
  const auto& op = typed_op<"sparse_scale", ScaleSignature>();
  const Plans plans = read_plans(traits(Kind::scale).name, plan, sizes);
  return differentiable_product(Kind::scale, input, {}, scale, plans, false, [&] {
    return op.redispatch(keys & c10::after_autograd_keyset, input, scale, plan, sizes);
  });
}

std::vector<at::Tensor> product_backward(c10::DispatchKeySet keys, std::int64_t kind, const at::Tensor& input1,
                                         const OptionalTensor& input2, const OptionalTensor& scale,
                                         const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                         bool out_accumulated, at::IntArrayRef wanted) {
  const auto& op = typed_op<"sparse_product_backward", ProductBackwardSignature>();
  const at::Tensor y = defined_or_empty(input2);
  return autograd::differentiable(
      {input1, y, defined_or_empty(scale), grad},
      [&] {
        const Plans plans = read_plans("sparse_product_backward", plan, sizes);
        return std::make_shared<ProductBackward>(
            ProductCall(kind_of("sparse_product_backward", kind), input1, y, plans, out_accumulated, scale.has_value()),
            wanted);
      },
      [&] {
        return op.redispatch(keys & c10::after_autograd_keyset, kind, input1, input2, scale, grad, plan, sizes,
                             out_accumulated, wanted);
      });
}

at::Tensor scale_grad(c10::DispatchKeySet keys, std::int64_t kind, const at::Tensor& input1,
                      const OptionalTensor& input2, const at::Tensor& grad, at::TensorList plan,
                      c10::SymIntArrayRef sizes, bool out_accumulated) {
  const auto& op = typed_op<"product_scale_grad", ScaleGradSignature>();
  const at::Tensor y = defined_or_empty(input2);
  return autograd::differentiable(
      {input1, y, grad},
      [&] {
        const Plans plans = read_plans("product_scale_grad", plan, sizes);
        return std::make_shared<ScaleGrad>(
            ProductCall(kind_of("product_scale_grad", kind), input1, y, plans, out_accumulated, /*scaled=*/true));
      },
      [&] {
        return op.redispatch(keys & c10::after_autograd_keyset, kind, input1, input2, grad, plan, sizes,
                             out_accumulated);
      });
}

template <std::size_t... Kinds>
void register_products(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(traits(static_cast<Kind>(Kinds)).name, product<static_cast<Kind>(Kinds)>), ...);
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  register_products(m, std::make_index_sequence<kProducts>{});
  m.impl("sparse_scale", scale_op);
  m.impl("sparse_product_backward", product_backward);
  m.impl("product_scale_grad", scale_grad);
  m.impl("derive_plan", torch::CppFunction::makeFallthrough());
}

}  // namespace lacewing::products
