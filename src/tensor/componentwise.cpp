// Ops that act on values and fill alike, and the random and factory ops that only look at a tensor's form.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "tensor/call.h"
#include "tensor/densify.h"

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

/// The tensor itself, but a copy where that of a strided tensor would be one.
bool contiguous(Call& call) {
  const auto format = static_cast<at::MemoryFormat>(call.integer("memory_format"));
  const bool copied = is_permuted_view(call.tensor(0)) || format != at::MemoryFormat::Contiguous;
  return copied ? clone(call) : call.give(call.tensor(0));
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
  const Dims shape = call.arg("size").toIntVector();
  const c10::IValue& dtype = call.arg("dtype");
  check_dense_result(call.schema().name(), shape,
                     dtype.isNone() ? call.sparse().values.scalar_type() : dtype.toScalarType());
  std::vector<c10::IValue> args = call.args;
  args[0] = call.sparse().values.detach();
  return call.give(call.call(std::move(args)));
}

/// A random op that leaves 0 as it is, on the entries: the fill is 0, or none.
bool on_entries(Call& call) {
  if (call.sparse().has_fill() && !zero_fill(call.sparse())) {
    return Call::decline();
  }
  const Components c = coalesced(call.sparse());
  std::vector<c10::IValue> args = call.args;
  args[0] = c.values;
  return call.give({c.pattern, call.call(std::move(args)).front().toTensor(), c.fill});
}

/// A tensor of the same form, whose values are not set.
bool empty_like(Call& call) {
  const Components& c = call.sparse();
  std::vector<c10::IValue> args = call.args;
  args[static_cast<std::size_t>(call.find("memory_format"))] = c10::IValue();
  const auto on = [&](const at::Tensor& t) {
    args[0] = t.detach();
    return call.call(args).front().toTensor();
  };
  const at::Tensor values = on(c.values);
  const Fill fill = c.has_fill() ? Fill{c.fill.kind, on(c.fill.value).zero_()} : c.fill;
  return call.give({c.pattern->to(values.device()), values, fill});
}

/// Dropout of a tensor with fill 0 or none: what is not stored stays so. The identity asks no fill.
bool dropout(Call& call) {
  const double p = call.arg("p").toDouble();
  if (p == 0 || (!call.flag("train") && p > 0 && p <= 1)) {
    return call.give(call.tensor(0));
  }
  return on_entries(call);
}

/// A slope that is drawn for each negative element, where it is trained; otherwise one slope.
bool rrelu(Call& call) {
  if (call.flag("training")) {
    return on_entries(call);
  }
  const at::Scalar slope((call.arg("lower").toScalar().toDouble() + call.arg("upper").toScalar().toDouble()) / 2);
  return call.give(at::leaky_relu(call.tensor(0), slope));
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

/// What is asked of two tensors' forms: nothing of their elements is read.
bool is_same_size(Call& call) { return call.give({c10::IValue(call.tensor(0).sizes() == call.tensor(1).sizes())}); }
bool has_same_numel(Call& call) { return call.give({c10::IValue(call.tensor(0).numel() == call.tensor(1).numel())}); }

/// Whether two tensors are one: the same values at the same places.
bool is_set_to(Call& call) {
  if (!call.is_sparse_at(0) || !call.is_sparse_at(1)) {
    return call.give({c10::IValue(false)});
  }
  const Components& a = call.sparse(0);
  const Components& b = call.sparse(1);
  const bool fills = a.fill.kind == b.fill.kind && (!a.has_fill() || a.fill.value.is_set_to(b.fill.value));
  return call.give({c10::IValue(a.pattern == b.pattern && a.values.is_set_to(b.values) && fills)});
}

/// The bits of values and fill as another type of the same size.
bool view_dtype(Call& call) {
  const auto dtype = call.arg("dtype").toScalarType();
  if (c10::elementSize(dtype) != c10::elementSize(call.sparse().values.scalar_type())) {
    return Call::decline();
  }
  const Components c = without_duplicates(call.sparse());
  return call.give(c.with(c.values.view(dtype), c.has_fill() ? c.fill.value.view(dtype) : at::Tensor()));
}

constexpr RuleEntry kRules[] = {
    {"aten::is_same_size", is_same_size},
    {"aten::_has_same_storage_numel", has_same_numel},
    {"aten::is_set_to", is_set_to},
    {"aten::view.dtype", view_dtype},
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
    {"aten::contiguous", contiguous},
    {"aten::clone", clone},
    {"aten::_to_copy", to_copy},
    {"aten::zeros_like", zeros_like},
    {"aten::ones_like", ones_like},
    {"aten::full_like", full_like},
    {"aten::empty_like", empty_like},
    {"aten::new_empty", factory},
    {"aten::new_empty_strided", factory},
    {"aten::new_full", factory},
    {"aten::new_ones", factory},
    {"aten::new_zeros", factory},
    {"aten::dropout", dropout},
    {"aten::rrelu", rrelu},
    {"aten::view_as_real", view_as_real},
    {"aten::view_as_real_copy", view_as_real},
    {"aten::view_as_complex", view_as_complex},
    {"aten::view_as_complex_copy", view_as_complex},
};

}  // namespace

std::span<const RuleEntry> componentwise_rules() { return kRules; }

}  // namespace lacewing::tensor
