// Reductions along any dims: entries are grouped by the sparse dims that stay, and what a group lacks counts as fill.
#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tensor/call.h"
#include "tensor/reduction.h"

namespace lacewing::tensor {

Reduction::Reduction(const Components& given, const Dims& dims_or_none, bool keepdim)
    : c(coalesced(given)), keepdim_(keepdim) {
  const Dims dims = dims_or_none.empty() ? all_dims(c.dim()) : dims_or_none;
  std::vector<bool> gone(static_cast<std::size_t>(c.dim()), false);
  for (const std::int64_t dim : dims) {
    const auto d = static_cast<std::size_t>(c.dim() == 0 ? 0 : wrap_dim(dim, c.dim()));
    if (c.dim() > 0) {
      TORCH_CHECK(!gone[d], "dim ", d, " appears multiple times in the list of dims");
      gone[d] = true;
    }
  }
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    const bool is_gone = gone[static_cast<std::size_t>(d)];
    if (d < c.sparse_dim()) {
      (is_gone ? reduced_ : kept_).push_back(d);
      missing_of_ *= is_gone ? c.pattern->sizes()[static_cast<std::size_t>(d)] : 1;
    } else if (is_gone) {
      dense_dims.push_back(d - c.sparse_dim() + 1);
    }
  }
  extent = missing_of_;
  for (const std::int64_t d : dense_dims) {
    extent *= c.values.size(d);
  }
  grouping = reduced_.empty() ? nullptr : &c.pattern->grouping(kept_);
}

std::int64_t Reduction::groups() const {
  if (grouping == nullptr) {
    return c.pattern->nse();
  }
  return (grouping->pattern ? *grouping->pattern : *c.pattern).nse();
}

at::Tensor Reduction::missing() const {
  if (grouping == nullptr || grouping->distinct()) {
    return at::full({groups()}, grouping == nullptr ? 0 : missing_of_ - 1, c.pattern->indices().options());
  }
  return missing_of_ - grouping->counts();
}

at::Tensor Reduction::column(const at::Tensor& per_group, std::int64_t dims) {
  Dims shape(static_cast<std::size_t>(dims), 1);
  shape[0] = per_group.numel();
  return per_group.view(shape);
}

at::Tensor Reduction::group_of() const { return grouping->group(); }

bool Reduction::give(Call& call, const std::vector<std::pair<at::Tensor, at::Tensor>>& results) const {
  std::vector<c10::IValue> given;
  for (const auto& [values, fill] : results) {
    given.emplace_back(result(values, fill));
  }
  return call.give(std::move(given));
}

at::Tensor Reduction::result(at::Tensor values, at::Tensor fill) const {
  // values (groups, *dense left or 1), fill (1, *the same)
  PatternPtr pattern = grouping == nullptr || !grouping->pattern ? c.pattern : grouping->pattern;
  const bool none_left = kept_.empty();
  if (!keepdim_) {
    const auto dropped = [&](const at::Tensor& t) { return dense_dims.empty() ? t : t.squeeze(dense_dims); };
    values = dropped(values);
    fill = fill.defined() ? dropped(fill) : fill;
  }
  if (none_left) {
    // Every sparse dim is gone: one block, with or without an entry.
    at::Tensor block = values.size(0) == 1 ? values.squeeze(0) : fill.squeeze(0).expand(values.sizes().slice(1));
    if (values.size(0) == 0 && values.requires_grad()) {
      block = block + values.sum(0);  // 0, and the way back to the values for a gradient
    }
    if (keepdim_) {
      for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
        block = block.unsqueeze(0);
      }
    }
    return block;
  }
  if (keepdim_ && !reduced_.empty()) {
    Dims sizes = c.pattern->sizes();
    std::vector<at::Tensor> rows;
    std::int64_t next = 0;
    for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
      const bool is_gone = std::find(reduced_.begin(), reduced_.end(), d) != reduced_.end();
      if (is_gone) {
        sizes[static_cast<std::size_t>(d)] = 1;
      }
      rows.push_back(is_gone ? at::zeros({pattern->nse()}, pattern->indices().options())
                             : pattern->indices().select(0, next++));
    }
    pattern = Pattern::make(at::stack(rows), std::move(sizes), /*coalesced=*/true);
  }
  if (!c.has_fill()) {
    return make_tensor({pattern, values, Fill::undefined()});
  }
  const bool scalar = c.fill.kind == FillKind::scalar && fill.numel() == 1;
  return make_tensor({pattern, values,
                      scalar ? Fill{FillKind::scalar, fill.reshape(at::IntArrayRef{})}
                             : Fill{values.dim() == 1 ? FillKind::scalar : FillKind::array,
                                    fill.squeeze(0).expand(values.sizes().slice(1))}});
}

bool widened(Call& call, Rule rule, at::ScalarType (*wider)(at::ScalarType)) {
  const bool named = call.has("dtype") && !call.arg("dtype").isNone();
  const auto own = call.tensor(0).scalar_type();
  const auto type = named ? call.arg("dtype").toScalarType() : own;
  const auto wide = wider(type);
  const bool wider_result = call.has("half_to_float") && call.flag("half_to_float");
  if (wide == type || wider_result || !call.is_sparse_at(0)) {
    return rule(call);
  }
  Call inner = call;
  inner.args[0] = (type == own ? call.tensor(0) : call.tensor(0).to(type)).to(wide);
  if (named) {
    inner.args[static_cast<std::size_t>(call.find("dtype"))] = c10::IValue();
  }
  if (!rule(inner)) {
    return Call::decline();
  }
  std::vector<c10::IValue> results;
  for (const c10::IValue& result : inner.results()) {
    const at::Tensor t = result.toTensor();
    const bool real = t.scalar_type() == c10::toRealValueType(wide);
    results.emplace_back(t.scalar_type() == wide ? t.to(type) : real ? t.to(c10::toRealValueType(type)) : t);
  }
  return call.give(std::move(results));
}

namespace {

Dims dims_of(const c10::IValue& value) {
  if (value.isNone()) {
    return {};
  }
  return value.isInt() ? Dims{value.toInt()} : value.toIntVector();
}

Reduction reduction_of(const Call& call) {
  const Dims dims = call.has("dim") ? dims_of(call.arg("dim")) : Dims{};
  return {call.sparse(), dims, call.has("keepdim") && call.flag("keepdim")};
}

/// Whether a reduction over an array fill or none is not this file's: an undefined fill has no sum of its own.
bool unfit(const Call& call) { return !call.sparse().has_fill() || call.sparse().dim() == 0; }

at::Tensor cast(const Call& call, const at::Tensor& t) {
  if (call.has("dtype") && !call.arg("dtype").isNone()) {
    return t.to(call.arg("dtype").toScalarType());
  }
  return t;
}

at::ScalarType sum_type(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true) ? at::kLong : type;
}

/// Sum over the reduction of rows (nse, ...) and of the fill row: both with dims kept as 1.
std::pair<at::Tensor, at::Tensor> summed(const Reduction& r, const at::Tensor& rows, const at::Tensor& fill) {
  at::Tensor values = r.dense_dims.empty() ? rows : rows.sum(r.dense_dims, /*keepdim=*/true, rows.scalar_type());
  Dims one = rows.sizes().vec();
  one[0] = 1;
  at::Tensor block =
      r.dense_dims.empty() ? fill : fill.expand(one).sum(r.dense_dims, /*keepdim=*/true, rows.scalar_type());
  if (r.grouping != nullptr) {
    const auto missing = Reduction::column(r.missing(), values.dim());
    values = sum_groups(values, *r.grouping);
    if (r.c.pattern->nse() < r.c.pattern->numel()) {
      values = values + r.fill_share(missing, block);
    }
    block = r.fill_share(
        at::full({1}, r.sparse_extent(), missing.options()).view(Dims(static_cast<std::size_t>(values.dim()), 1)),
        block);
  }
  return {values, block};
}

bool sum(Call& call) {
  if (unfit(call)) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  auto rows = cast(call, r.c.values);
  rows = rows.to(rows.scalar_type() == r.c.values.scalar_type() && call.arg("dtype").isNone()
                     ? sum_type(rows.scalar_type())
                     : rows.scalar_type());
  return r.give(call, {summed(r, rows, fill_row(r.c).to(rows.scalar_type()))});
}

bool nansum(Call& call) {
  if (unfit(call)) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  const auto plain = [&](const at::Tensor& t) {
    const auto u = cast(call, t);
    return at::where(t.isnan(), at::zeros({}, u.options()), u);
  };
  const auto type = call.arg("dtype").isNone() ? sum_type(r.c.values.scalar_type()) : call.arg("dtype").toScalarType();
  return r.give(call, {summed(r, plain(r.c.values).to(type), plain(fill_row(r.c)).to(type))});
}

bool mean(Call& call) {
  if (unfit(call)) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  const auto rows = cast(call, r.c.values);
  if (!at::isFloatingType(rows.scalar_type()) && !at::isComplexType(rows.scalar_type())) {
    return Call::decline();
  }
  auto [values, fill] = summed(r, rows, fill_row(r.c).to(rows.scalar_type()));
  return r.give(call, {{values / r.extent, fill / r.extent}});
}

/// t^exponent for t >= 0. Its gradient may be infinite at 0, where torch's norm and std have 0.
at::Tensor power(const at::Tensor& t, double exponent) {
  const auto zero = t == 0;
  return at::where(zero, at::zeros({}, t.options()), at::where(zero, at::ones({}, t.options()), t).pow(exponent));
}

/// var and std: the squares of the differences to each group's mean.
bool variance_of(Call& call) {
  const Components& c = call.sparse();
  if (unfit(call) || !at::isFloatingType(c.values.scalar_type())) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  const auto fill = fill_row(r.c);
  auto [mean, fill_mean] = summed(r, r.c.values, fill);
  mean = mean / r.extent;
  fill_mean = fill_mean / r.extent;
  const auto own_mean = r.grouping == nullptr ? mean : mean.index_select(0, r.group_of());
  const auto square = [](const at::Tensor& t) { return t * t; };
  at::Tensor values = square(r.c.values - own_mean);
  Dims one = r.c.values.sizes().vec();
  one[0] = 1;
  at::Tensor block = square(fill.expand(one) - fill_mean);
  at::Tensor lacking = square(fill - mean);
  if (!r.dense_dims.empty()) {
    Dims whole = r.c.values.sizes().vec();
    whole[0] = mean.size(0);
    values = values.sum(r.dense_dims, true);
    block = block.sum(r.dense_dims, true);
    lacking = lacking.expand(whole).sum(r.dense_dims, true);
  }
  if (r.grouping != nullptr) {
    values = sum_groups(values, *r.grouping) + Reduction::column(r.missing(), values.dim()) * lacking;
    block = block * r.sparse_extent();
  }
  const double correction = !call.has("correction")           ? (call.flag("unbiased") ? 1.0 : 0.0)
                            : call.arg("correction").isNone() ? 1.0
                                                              : call.arg("correction").toScalar().toDouble();
  const double divisor = std::max(static_cast<double>(r.extent) - correction, 0.0);
  const bool deviation = call.schema().name().find("std") != std::string::npos;
  const auto finish = [&](const at::Tensor& t) { return deviation ? power(t / divisor, 0.5) : t / divisor; };
  std::vector<std::pair<at::Tensor, at::Tensor>> results{{finish(values), finish(block)}};
  if (call.schema().returns().size() == 2) {
    results.emplace_back(mean, fill_mean);
  }
  return r.give(call, results);
}

/// In double, as torch's own on the CPU: a mean is rounded, and the squares of its error would be counted once for each
/// element.
bool variance(Call& call) {
  return widened(call, variance_of, [](at::ScalarType type) { return at::isFloatingType(type) ? at::kDouble : type; });
}

/// amax and amin. The gradient is shared by all elements that attain it, the fill's included, as torch shares it.
bool extreme(Call& call) {
  const Components& c = call.sparse();
  if (unfit(call) || at::isComplexType(c.values.scalar_type())) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  if (r.extent == 0) {
    return Call::decline();
  }
  const bool largest = call.schema().name() == "aten::amax";
  return r.give(call, {attained(r, largest)});
}

/// any and all, of the truth of each element.
bool truth(Call& call) {
  if (unfit(call)) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  const bool any = call.schema().name() == "aten::any";
  // Counts of true elements: any: more than none, all: all of them.
  const auto count = summed(r, (r.c.values != 0).to(at::kLong), (fill_row(r.c) != 0).to(at::kLong));
  const auto decide = [&](const at::Tensor& t) {
    const auto met = any ? t > 0 : t == r.extent;
    return call.sparse().values.scalar_type() == at::kByte ? met.to(at::kByte) : met;
  };
  return r.give(call, {{decide(count.first), decide(count.second)}});
}

bool count_nonzero(Call& call) {
  if (unfit(call)) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  return r.give(call, {summed(r, (r.c.values != 0).to(at::kLong), (fill_row(r.c) != 0).to(at::kLong))});
}

/// (sum |x|^p)^(1/p), and its limits at 0 and infinity.
bool vector_norm(Call& call) {
  const Components& c = call.sparse();
  const double p = call.arg("ord").toScalar().toDouble();
  if (unfit(call) || (!at::isFloatingType(c.values.scalar_type()) && !at::isComplexType(c.values.scalar_type()))) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  if (r.extent == 0) {
    return Call::decline();
  }
  const auto size = [&](const at::Tensor& t) { return cast(call, t).abs(); };
  if (std::isinf(p)) {
    Reduction sizes = r;
    sizes.c = r.c.with(size(r.c.values), size(r.c.fill.value));
    return sizes.give(call, {attained(sizes, p > 0)});
  }
  if (p == 0) {
    // Constant, but torch's has a gradient: 0.
    const auto ones = [&](const at::Tensor& t) {
      const at::Tensor sizes = size(t);
      return at::where(at::zeros({}, t.options().dtype(at::kBool).requires_grad(false)), sizes,
                       (t != 0).to(sizes.scalar_type()));
    };
    return r.give(call, {summed(r, ones(r.c.values), ones(fill_row(r.c)))});
  }
  if (p == 1) {
    return r.give(call, {summed(r, size(r.c.values), size(fill_row(r.c)))});
  }
  if (p < 0) {
    return Call::decline();
  }
  const auto raised = [&](const at::Tensor& t) {
    const at::Tensor x = cast(call, t);
    // A square of the number itself: its second gradient is not 0 at 0, that of a square of the size would be.
    return p != 2 ? power(x.abs(), p) : x.is_complex() ? at::real(x * x.conj()) : x * x;
  };
  auto [values, fill] = summed(r, raised(r.c.values), raised(fill_row(r.c)));
  return r.give(call, {{power(values, 1 / p), power(fill, 1 / p)}});
}

/// t to a whole power. An odd one has the sign of t, and a float cannot tell odd from even beyond its digits.
at::Tensor whole_power(const at::Tensor& t, const at::Tensor& count) {
  const auto odd = count.remainder(2) != 0;
  return (t * t).pow(count.div(2, "floor")) * at::where(odd, t, at::ones({}, t.options()));
}

bool prod(Call& call) {
  const Components& c = call.sparse();
  // scatter_reduce has no tangent of products.
  if (unfit(call) || at::isComplexType(c.values.scalar_type()) || has_tangent(c.values) || has_tangent(c.fill.value)) {
    return Call::decline();
  }
  const Reduction r = reduction_of(call);
  auto rows = cast(call, r.c.values);
  const auto type = call.arg("dtype").isNone() ? sum_type(rows.scalar_type()) : rows.scalar_type();
  rows = rows.to(type);
  Dims one = rows.sizes().vec();
  one[0] = 1;
  at::Tensor values = rows;
  at::Tensor block = fill_row(r.c).to(type).expand(one);
  for (const std::int64_t d : r.dense_dims) {
    values = values.prod(d, /*keepdim=*/true, type);
    block = block.prod(d, /*keepdim=*/true, type);
  }
  if (r.grouping != nullptr) {
    Dims shape = values.sizes().vec();
    shape[0] = r.groups();
    const auto index = Reduction::column(r.group_of().to(at::kLong), values.dim()).expand_as(values);
    const auto missing = Reduction::column(r.missing(), values.dim());
    const auto in_group = at::ones(shape, values.options()).scatter_reduce(0, index, values, "prod");
    // pow(0, 0) = 1: a group that lacks nothing is not touched by the fill.
    values = in_group * at::where(missing == 0, at::ones({}, values.options()), whole_power(block, missing));
    block = whole_power(block, at::full({}, r.sparse_extent(), missing.options()));
  }
  return r.give(call, {{values, block}});
}

constexpr RuleEntry kRules[] = {
    {"aten::sum", accumulated<sum>},
    {"aten::sum.dim_IntList", accumulated<sum>},
    {"aten::nansum", accumulated<nansum>},
    {"aten::mean", accumulated<mean>},
    {"aten::mean.dim", accumulated<mean>},
    {"aten::var", variance},
    {"aten::var.dim", variance},
    {"aten::var.correction", variance},
    {"aten::std", variance},
    {"aten::std.dim", variance},
    {"aten::std.correction", variance},
    {"aten::var_mean.correction", variance},
    {"aten::std_mean.correction", variance},
    {"aten::amax", accumulated<extreme>},
    {"aten::amin", accumulated<extreme>},
    {"aten::any", truth},
    {"aten::any.dim", truth},
    {"aten::any.dims", truth},
    {"aten::all", truth},
    {"aten::all.dim", truth},
    {"aten::all.dims", truth},
    {"aten::count_nonzero", count_nonzero},
    {"aten::count_nonzero.dim_IntList", count_nonzero},
    {"aten::linalg_vector_norm", accumulated<vector_norm>},
    {"aten::prod", accumulated<prod>},
    {"aten::prod.dim_int", accumulated<prod>},
};

}  // namespace

std::span<const RuleEntry> reduction_rules() { return kRules; }

}  // namespace lacewing::tensor
