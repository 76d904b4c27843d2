// vmap: the batch joins N where every operand can carry it, and is walked through where it cannot.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "common/batched.h"
#include "product/calls.h"
#include "product/shape.h"

namespace lacewing::products {
namespace {

OptionalTensor optional(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

/// The batch as N, or as a part of it: (B, M, ...) or (B * N, M, ...).
at::Tensor joined(const Batched& operand, bool has_n, const c10::SymInt& batch) {
  if (!has_n) {
    return operand.value;
  }
  c10::SymDimVector sizes(operand.value.sym_sizes());
  at::Tensor value = operand.value;
  if (!operand.batched) {
    sizes.insert(sizes.begin(), batch);
    value = value.unsqueeze(0).expand_symint(sizes);
  }
  return value.flatten(0, 1);
}

template <Kind kind>
at::Tensor product(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale, at::TensorList plan,
                   c10::SymIntArrayRef plan_sizes, bool out_accumulated) {
  const BatchScope scope{input1, input2, scale.value_or(at::Tensor())};
  const Plans plans = read_plans(traits(kind).name, plan, plan_sizes);
  check_operands(kind, traits(kind).name, input1, input2, out_accumulated);
  const Batched x = scope.unwrap(input1);
  const Batched y = scope.unwrap(input2);
  const Batched s = scope.unwrap(scale.value_or(at::Tensor()));
  if (!x.batched && !y.batched && !s.batched) {
    return call_product(kind, input1, input2, scale, plans, out_accumulated);
  }
  const c10::SymInt batch = (x.batched ? x.value : y.batched ? y.value : s.value).sym_size(0);
  const bool x_has_n = x.value.dim() - x.batched == 2 + traits(kind).x.count();
  const bool y_has_n = y.value.dim() - y.batched == 2 + traits(kind).y.count();
  const bool any_n = x_has_n || y_has_n;
  const bool can_join = !s.batched && !(out_accumulated && any_n) && !(x.batched && !x_has_n && any_n) &&
                        !(y.batched && !y_has_n && any_n);
  if (!can_join) {
    return scope.wrap(each_of_batch(batch, [&](std::int64_t i) {
      return call_product(kind, x.at(i), y.at(i), optional(s.at(i)), plans, out_accumulated);
    }));
  }
  const at::Tensor z = call_product(kind, joined(x, x_has_n, batch), joined(y, y_has_n, batch), scale, plans, false);
  if (!any_n) {
    return scope.wrap(z);
  }
  c10::SymDimVector sizes(z.sym_sizes());
  sizes[0] = (x_has_n ? x.value.sym_size(x.batched) : y.value.sym_size(y.batched));
  sizes.insert(sizes.begin(), batch);
  return scope.wrap(z.view_symint(sizes));
}

at::Tensor scale_op(const at::Tensor& input, const OptionalTensor& scale, at::TensorList plan,
                    c10::SymIntArrayRef sizes) {
  const BatchScope scope{input, scale.value_or(at::Tensor())};
  const Plans plans = read_plans(traits(Kind::scale).name, plan, sizes);
  check_operands(Kind::scale, traits(Kind::scale).name, input, {}, false);
  const Batched x = scope.unwrap(input);
  const Batched s = scope.unwrap(scale.value_or(at::Tensor()));
  if (s.batched) {
    return scope.wrap(each_of_batch(s.value.sym_size(0), [&](std::int64_t i) {
      return call_product(Kind::scale, x.at(i), {}, s.at(i), plans, false);
    }));
  }
  const at::Tensor z = call_product(Kind::scale, x.value, {}, scale, plans, false);
  return x.batched ? scope.wrap(z) : z;
}

at::Tensor scale_grad(std::int64_t kind, const at::Tensor& input1, const OptionalTensor& input2, const at::Tensor& grad,
                      at::TensorList plan, c10::SymIntArrayRef sizes, bool out_accumulated) {
  const BatchScope scope{input1, input2.value_or(at::Tensor()), grad};
  const Plans plans = read_plans("product_scale_grad", plan, sizes);
  const Kind of = kind_of("product_scale_grad", kind);
  check_operands(of, traits(of).name, input1, input2.value_or(at::Tensor()), out_accumulated);
  const Batched x = scope.unwrap(input1);
  const Batched y = scope.unwrap(input2.value_or(at::Tensor()));
  const Batched g = scope.unwrap(grad);
  const auto call = [&](const at::Tensor& first, const at::Tensor& second, const at::Tensor& upstream) {
    return call_scale_grad(of, first, second, upstream, plans, out_accumulated);
  };
  if (!x.batched && !y.batched && !g.batched) {
    return call(x.value, y.value, g.value);
  }
  const c10::SymInt batch = (x.batched ? x.value : y.batched ? y.value : g.value).sym_size(0);
  return scope.wrap(each_of_batch(batch, [&](std::int64_t i) { return call(x.at(i), y.at(i), g.at(i)); }));
}

template <std::size_t... Kinds>
void register_products(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(traits(static_cast<Kind>(Kinds)).name, product<static_cast<Kind>(Kinds)>), ...);
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) {
  register_products(m, std::make_index_sequence<kProducts>{});
  m.impl("sparse_scale", scale_op);
  m.impl("product_scale_grad", scale_grad);
}

}  // namespace lacewing::products
