// Ops that act on values and fill alike, and the random and factory ops that only look at a tensor's form.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "tensor/call.h"

namespace lacewing::tensor {
namespace {

/// The op on the values, and on the fill.
bool on_components(Call& call) {
  const Components& c = call.sparse();
  const auto on = [&](const at::Tensor& t) {
    std::vector<c10::IValue> args = call.args;
    args[0] = t;
    return call.call(std::move(args)).front().toTensor();
  };
  return call.give(c.with(on(c.values), c.has_fill() ? on(c.fill.value) : at::Tensor()));
}

/// Copies to another dtype or device: the pattern moves too. A cast is not linear, so duplicates are added first.
bool to_copy(Call& call) {
  const c10::IValue& dtype = call.arg("dtype");
  const bool casts = !dtype.isNone() && dtype.toScalarType() != call.sparse().values.scalar_type();
  const Components c = casts ? without_duplicates(call.sparse()) : call.sparse();
  std::vector<c10::IValue> args = call.args;
  args[static_cast<std::size_t>(call.find("memory_format"))] = c10::IValue();
  const auto on = [&](const at::Tensor& t) {
    args[0] = t;
    return call.call(args).front().toTensor();
  };
  const at::Tensor values = on(c.values);
  return call.give(
      {c.pattern->to(values.device()), values, {c.fill.kind, c.has_fill() ? on(c.fill.value) : at::Tensor()}});
}

bool clone(Call& call) {
  const Components& c = call.sparse();
  return call.give(c.with(c.values.clone(), c.has_fill() ? c.fill.value.clone() : at::Tensor()));
}

/// A tensor of the same form without entries: every element is the fill.
bool constant_like(Call& call, const at::Scalar& value) {
  const Components& c = call.sparse();
  const auto option = [&](const char* name) {
    const c10::IValue& given = call.arg(name);
    return given;
  };
  auto options = c.values.options().requires_grad(false);
  if (!option("dtype").isNone()) {
    options = options.dtype(option("dtype").toScalarType());
  }
  if (!option("device").isNone()) {
    options = options.device(option("device").toDevice());
  }
  Dims rows = c.values.sizes().vec();
  rows[0] = 0;
  const auto none = at::empty({c.sparse_dim(), 0}, c.pattern->indices().options().device(options.device()));
  return call.give({Pattern::make(none, c.pattern->sizes(), /*coalesced=*/true), at::empty(rows, options),
                    Fill::of(at::scalar_tensor(value, options))});
}

bool zeros_like(Call& call) { return constant_like(call, 0); }
bool ones_like(Call& call) { return constant_like(call, 1); }
bool full_like(Call& call) { return constant_like(call, call.arg("fill_value").toScalar()); }

/// S.new_zeros(shape) and the like: strided, of the dtype and device of S. Nothing of S is read.
bool factory(Call& call) {
  std::vector<c10::IValue> args = call.args;
  args[0] = call.sparse().values.detach();
  return call.give(call.call(std::move(args)));
}

/// Dropout of a tensor with fill 0: what is not stored stays 0. The identity asks no fill.
bool dropout(Call& call) {
  const double p = call.arg("p").toDouble();
  if (p == 0 || (!call.flag("train") && p > 0 && p <= 1)) {
    return call.give(call.tensor(0));
  }
  if (!zero_fill(call.sparse())) {
    return Call::decline();
  }
  const Components c = coalesced(call.sparse());
  std::vector<c10::IValue> args = call.args;
  args[0] = c.values;
  return call.give({c.pattern, call.call(std::move(args)).front().toTensor(), c.fill});
}

bool view_as_real(Call& call) {
  const Components& c = call.sparse();
  const auto fill =
      c.has_fill() ? Fill{FillKind::array, at::view_as_real(fill_block(c).contiguous().resolve_conj())} : c.fill;
  return call.give({c.pattern, at::view_as_real(c.values.resolve_conj()), fill});
}

bool view_as_complex(Call& call) {
  const Components& c = call.sparse();
  if (c.dense_dim() == 0) {
    return Call::decline();
  }
  Fill fill = c.fill;
  if (c.has_fill()) {
    const auto block = at::view_as_complex(fill_block(c).contiguous());
    fill = {block.dim() == 0 ? FillKind::scalar : FillKind::array, block};
  }
  return call.give({c.pattern, at::view_as_complex(c.values.contiguous()), fill});
}

constexpr RuleEntry kRules[] = {
    {"aten::_conj", on_components},
    {"aten::_neg_view", on_components},
    {"aten::alias", on_components},
    {"aten::alias_copy", on_components},
    {"aten::detach", on_components},
    {"aten::detach_copy", on_components},
    {"aten::lift", on_components},
    {"aten::lift_fresh", on_components},
    {"aten::lift_fresh_copy", on_components},
    {"aten::resolve_conj", on_components},
    {"aten::resolve_neg", on_components},
    {"aten::contiguous", clone},
    {"aten::clone", clone},
    {"aten::_to_copy", to_copy},
    {"aten::zeros_like", zeros_like},
    {"aten::ones_like", ones_like},
    {"aten::full_like", full_like},
    {"aten::empty_like", zeros_like},
    {"aten::new_empty", factory},
    {"aten::new_empty_strided", factory},
    {"aten::new_full", factory},
    {"aten::new_ones", factory},
    {"aten::new_zeros", factory},
    {"aten::dropout", dropout},
    {"aten::view_as_real", view_as_real},
    {"aten::view_as_real_copy", view_as_real},
    {"aten::view_as_complex", view_as_complex},
    {"aten::view_as_complex_copy", view_as_complex},
};

}  // namespace

std::span<const RuleEntry> componentwise_rules() { return kRules; }

}  // namespace lacewing::tensor
