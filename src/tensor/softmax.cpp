// Extremes, softmax, log_softmax and logsumexp.
#include <ATen/ATen.h>

#include "tensor/reduction.h"

namespace lacewing::tensor {
namespace {

Dims one_row(const at::Tensor& rows) {
  Dims shape = rows.sizes().vec();
  shape[0] = 1;
  return shape;
}

at::Tensor kept_extreme(const at::Tensor& rows, const Dims& dims, bool largest) {
  return dims.empty() ? rows : largest ? rows.amax(dims, /*keepdim=*/true) : rows.amin(dims, /*keepdim=*/true);
}

/// The extreme of each group over its entries and, where it lacks some, the fill. No gradient.
at::Tensor group_extreme(const Reduction& r, bool largest) {
  const auto rows = kept_extreme(r.c.values.detach(), r.dense_dims, largest);
  if (r.grouping == nullptr) {
    return rows;
  }
  const bool boolean = rows.scalar_type() == at::kBool;
  const auto source = boolean ? rows.to(at::kByte) : rows;
  Dims shape = rows.sizes().vec();
  shape[0] = r.groups();
  const auto index = Reduction::column(r.group_of(), rows.dim()).expand_as(rows);
  const auto found = at::zeros(shape, source.options())
                         .scatter_reduce(0, index, source, largest ? "amax" : "amin", /*include_self=*/false)
                         .to(rows.scalar_type());
  if (!r.c.has_fill()) {
    return found;
  }
  const auto fill = kept_extreme(fill_row(r.c).detach().expand(one_row(r.c.values)), r.dense_dims, largest);
  const auto with_fill = largest ? at::maximum(found, fill) : at::minimum(found, fill);
  return at::where(Reduction::column(r.missing(), rows.dim()) > 0, with_fill, found);
}

/// 0, with the gradient of t.
at::Tensor zero_with_grad(const at::Tensor& t) {
  return at::where(t.isfinite(), t - t.detach(), at::zeros({}, t.options()));
}

at::Tensor summed_dense(const at::Tensor& t, const Dims& dims) { return dims.empty() ? t : t.sum(dims, true); }

}  // namespace

std::pair<at::Tensor, at::Tensor> attained(const Reduction& r, bool largest) {
  at::Tensor found = group_extreme(r, largest);
  const auto fill = fill_row(r.c).expand(one_row(r.c.values));
  const bool grad = at::GradMode::is_enabled() && (r.c.values.requires_grad() || r.c.fill.value.requires_grad());
  if (grad) {
    const auto type = r.c.values.scalar_type();
    const auto to_rows = [&](const at::Tensor& t) {
      return r.grouping == nullptr ? t : t.index_select(0, r.group_of());
    };
    const auto to_groups = [&](const at::Tensor& t) {
      const auto dense = summed_dense(t, r.dense_dims);
      return r.grouping == nullptr ? dense : sum_groups(dense, *r.grouping);
    };
    const auto tie = (r.c.values.detach() == to_rows(found)).to(type);
    const auto fill_tie = Reduction::column(r.missing(), found.dim()).to(type) * (fill.detach() == found).to(type);
    const auto total = to_groups(tie) + summed_dense(fill_tie, r.dense_dims);
    found = found + to_groups(tie / to_rows(total) * zero_with_grad(r.c.values)) +
            summed_dense(fill_tie / total * zero_with_grad(fill), r.dense_dims);
  }
  return {found, kept_extreme(fill, r.dense_dims, largest)};
}

namespace {

/// What softmax and its kin share: exponents against each group's maximum, and their sums.
struct Exponents {
  Reduction r;
  at::Tensor largest;       ///< (groups, ...), finite
  at::Tensor sum;           ///< (groups, ...)
  at::Tensor shifted;       ///< values - largest of their group
  at::Tensor fill_shifted;  ///< (groups, ...): fill - largest; undefined without a fill

  Exponents(Reduction reduction, bool finite) : r(std::move(reduction)) {
    largest = group_extreme(r, /*largest=*/true);
    if (finite) {
      largest = at::where(largest.isfinite(), largest, at::zeros({}, largest.options()));
    }
    const auto own = to_rows(largest);
    shifted = r.c.values - own;
    sum = summed_dense(shifted.exp(), r.dense_dims);
    sum = r.grouping == nullptr ? sum : sum_groups(sum, *r.grouping);
    if (r.c.has_fill() && r.grouping != nullptr) {
      Dims whole = r.c.values.sizes().vec();
      whole[0] = r.groups();
      fill_shifted = (fill_row(r.c) - largest).expand(r.dense_dims.empty() ? largest.sizes().vec() : whole);
      sum = sum + Reduction::fill_share(Reduction::column(r.missing(), sum.dim()),
                                        summed_dense(fill_shifted.exp(), r.dense_dims));
    }
  }
  at::Tensor to_rows(const at::Tensor& t) const { return r.grouping == nullptr ? t : t.index_select(0, r.group_of()); }
};

/// softmax and log_softmax along one dim.
bool softmax(Call& call) {
  const bool logarithm = call.schema().name() == "aten::_log_softmax";
  const bool to_float = call.flag("half_to_float");
  Components c = coalesced(call.sparse());
  if (c.dim() == 0 || (!at::isFloatingType(c.values.scalar_type()))) {
    return Call::decline();
  }
  if (to_float) {
    c = c.with(c.values.to(at::kFloat), c.has_fill() ? c.fill.value.to(at::kFloat) : at::Tensor());
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const auto apply = [&](const at::Tensor& t, std::int64_t d) { return logarithm ? t.log_softmax(d) : t.softmax(d); };
  if (dim >= c.sparse_dim()) {
    const std::int64_t d = dim - c.sparse_dim();
    const Fill fill = c.has_fill() ? Fill{FillKind::array, apply(fill_block(c), d)} : c.fill;
    return call.give({c.pattern, apply(c.values, d + 1), fill});
  }
  const Exponents e(Reduction(c, {dim}, /*keepdim=*/true), /*finite=*/false);
  const std::int64_t groups = e.r.groups();
  const bool one_fibre = c.sparse_dim() == 1 && groups == 1;
  Fill fill = Fill::undefined();
  if (c.has_fill() && !one_fibre) {
    // Fibres differ in their fill, but where it is -inf: then softmax has 0 (and log_softmax -inf) in every fibre with
    // a finite entry.
    const bool masked =
        c.fill.kind == FillKind::scalar && !c.fill.value.requires_grad() &&
        fill_number(c).toDouble() == -std::numeric_limits<double>::infinity() &&
        groups == c.pattern->numel() / std::max<std::int64_t>(c.pattern->sizes()[static_cast<std::size_t>(dim)], 1) &&
        e.largest.isfinite().all().item<bool>();
    if (!masked) {
      return Call::decline();
    }
    fill = {FillKind::scalar, logarithm ? c.fill.value : at::zeros_like(c.fill.value)};
  } else if (c.has_fill()) {
    const auto row = logarithm ? e.fill_shifted - e.sum.log() : e.fill_shifted.exp() / e.sum;
    const auto block = row.squeeze(0);
    fill = {block.dim() == 0 ? FillKind::scalar : FillKind::array, block};
  }
  const auto rows = logarithm ? e.shifted - e.to_rows(e.sum).log() : e.shifted.exp() / e.to_rows(e.sum);
  return call.give({c.pattern, rows, fill});
}

bool logsumexp(Call& call) {
  const Components& c = call.sparse();
  if (!c.has_fill() || c.dim() == 0 || !at::isFloatingType(c.values.scalar_type())) {
    return Call::decline();
  }
  Reduction reduction(c, call.arg("dim").toIntVector(), call.flag("keepdim"));
  if (reduction.extent == 0) {
    return Call::decline();
  }
  const Exponents e(std::move(reduction), /*finite=*/true);
  auto fill = fill_row(e.r.c).expand(one_row(e.r.c.values));
  fill = e.r.dense_dims.empty() ? fill : fill.logsumexp(e.r.dense_dims, /*keepdim=*/true);
  fill = fill + std::log(static_cast<double>(e.r.sparse_extent()));
  return e.r.give(call, {{e.sum.log() + e.largest, fill}});
}

constexpr RuleEntry kRules[] = {
    {"aten::_softmax", softmax},
    {"aten::_log_softmax", softmax},
    {"aten::logsumexp", logsumexp},
};

}  // namespace

std::span<const RuleEntry> softmax_rules() { return kRules; }

}  // namespace lacewing::tensor
