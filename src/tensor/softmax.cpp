// Extremes, softmax, log_softmax and logsumexp.
#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "common/stream.h"
#include "kernels/segment_extreme.h"
#include "kernels/segment_rows.h"
#include "tensor/densify.h"
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

/// What the device's kernels take of rows and their groups.
kernels::SegmentRows segment_rows(const at::Tensor& rows, const Grouping& grouping, std::int64_t groups) {
  const at::Tensor& any = grouping.order.defined() ? grouping.order : grouping.segments;
  const auto pointer = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; };
  return {scalar_type("softmax", "input", rows.scalar_type()),
          rows.const_data_ptr(),
          pointer(grouping.order),
          pointer(grouping.segments),
          any.defined() && any.scalar_type() == at::kLong,
          groups,
          product_of(rows.sizes().slice(1))};
}

/// Whether the device's kernels take rows of this kind.
bool is_on_device(const at::Tensor& rows) {
  const auto type = rows.scalar_type();
  return rows.is_cuda() && is_plain(rows) &&
         (type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16);
}

/// The extreme of the rows of each group.
at::Tensor entries_extreme(const at::Tensor& rows, const Grouping& grouping, std::int64_t groups, bool largest) {
  Dims shape = rows.sizes().vec();
  shape[0] = groups;
  const auto type = rows.scalar_type();
  if (is_plain_on_host(rows) && (type == at::kFloat || type == at::kDouble || type == at::kLong)) {
    const at::Tensor from = rows.contiguous();
    const at::Tensor out = empty_result(shape, rows.options());
    const std::int64_t width = product_of(rows.sizes().slice(1));
    const at::Tensor& any = grouping.order.defined() ? grouping.order : grouping.segments;
    const auto run = [&](auto scalar, auto index) {
      using T = decltype(scalar);
      using Index = decltype(index);
      const auto pointer = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<Index>() : nullptr; };
      kernels::segment_extreme(from.const_data_ptr<T>(), pointer(grouping.segments), pointer(grouping.order), groups,
                               width, largest, out.mutable_data_ptr<T>(), torch_executor());
    };
    const auto by_width = [&](auto scalar) {
      any.defined() && any.scalar_type() == at::kLong ? run(scalar, std::int64_t{}) : run(scalar, std::int32_t{});
    };
    type == at::kFloat ? by_width(float{}) : type == at::kDouble ? by_width(double{}) : by_width(std::int64_t{});
    return out;
  }
  if (is_on_device(rows) || (rows.is_cuda() && type == at::kLong)) {
    const at::Tensor from = rows.contiguous();
    const at::Tensor out = empty_result(shape, rows.options());
    const c10::DeviceGuard guard(rows.device());
    kernels::cuda::segment_extreme(segment_rows(from, grouping, groups), largest, out.mutable_data_ptr(),
                                   current_stream(rows.device()));
    return out;
  }
  const auto source = type == at::kBool ? rows.to(at::kByte) : rows;
  const auto index = Reduction::column(grouping.group().to(at::kLong), rows.dim()).expand_as(rows);
  return at::zeros(shape, source.options())
      .scatter_reduce(0, index, source, largest ? "amax" : "amin", /*include_self=*/false)
      .to(type);
}

/// The extreme of each group over its entries and, where it lacks some, the fill. No gradient.
at::Tensor group_extreme(const Reduction& r, bool largest) {
  const auto rows = kept_extreme(r.c.values.detach(), r.dense_dims, largest);
  if (r.grouping == nullptr) {
    return rows;
  }
  const at::Tensor found = entries_extreme(rows, *r.grouping, r.groups(), largest);
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
  const bool grad = needs_grad(r.c.values) || needs_grad(r.c.fill.value);
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
  at::Tensor exponents;     ///< exp of it
  at::Tensor fill_shifted;  ///< (groups, ...): fill - largest; undefined without a fill

  Exponents(Reduction reduction, bool finite) : r(std::move(reduction)) {
    largest = group_extreme(r, /*largest=*/true);
    if (finite) {
      largest = at::where(largest.isfinite(), largest, at::zeros({}, largest.options()));
    }
    const auto own = to_rows(largest);
    shifted = r.c.values - own;
    exponents = shifted.exp();
    sum = summed_dense(exponents, r.dense_dims);
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

/// The fill of a fibre without an entry, as a row: all of its elements are equal.
at::Tensor even_fill(const Components& c, std::int64_t dim, bool logarithm) {
  const auto length = static_cast<double>(c.pattern->sizes()[at(dim)]);
  const auto level = fill_row(c) - fill_row(c);
  return (logarithm ? level - std::log(length) : level.exp() / length).expand(one_row(c.values));
}

/// The fill of a result whose fibres all have a finite entry, where the fill was -inf.
Fill masked_fill(const Components& c, bool logarithm) {
  return {FillKind::scalar, logarithm ? c.fill.value : at::zeros_like(c.fill.value)};
}

/// Whether the fill is the constant -inf: what has no entry counts for nothing.
bool is_masked(const Components& c) {
  return c.fill.kind == FillKind::scalar && !needs_grad(c.fill.value) &&
         fill_number(c).toDouble() == -std::numeric_limits<double>::infinity();
}

/// Fibres that differ in their fill: each fibre's fill everywhere, overwritten where there are entries.
at::Tensor strided_softmax(const Call& call, const Exponents& e, std::int64_t dim, bool logarithm) {
  const Components& c = e.r.c;
  const Dims shape = c.shape();
  const std::string why = is_masked(c) ? " with the fill -inf, which makes rows without a finite entry nan (the fill "
                                         "lacewing.undefined would leave them out),"
                                       : "";
  check_dense_result(call.schema().name() + why, shape, c.values.scalar_type());
  const auto rows = logarithm ? e.shifted - e.to_rows(e.sum).log() : e.exponents / e.to_rows(e.sum);
  const auto fills = logarithm ? e.fill_shifted - e.sum.log() : e.fill_shifted.exp() / e.sum;
  const at::Tensor fibres = e.r.result(fills, even_fill(c, dim, logarithm));
  const at::Tensor base = is_sparse(fibres) ? densified(components(fibres)) : fibres;
  Dims blocks = c.values.sizes().vec();
  blocks[0] = c.pattern->numel();
  return base.expand(shape)
      .clone(at::MemoryFormat::Contiguous)
      .view(blocks)
      .index_copy(0, c.pattern->keys(), rows)
      .view(shape);
}

/// In one pass over the rows of each group, which makes up for what is missing with nothing.
at::Tensor softmax_on_device(const at::Tensor& rows, const Grouping& grouping, std::int64_t groups, bool logarithm) {
  const at::Tensor from = rows.contiguous();
  const at::Tensor out = empty_result(rows.sizes(), rows.options());
  const c10::DeviceGuard guard(rows.device());
  kernels::cuda::segment_softmax(segment_rows(from, grouping, groups), logarithm, out.mutable_data_ptr(),
                                 current_stream(rows.device()));
  return out;
}

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
  Reduction r(c, {dim}, /*keepdim=*/true);
  const std::int64_t groups = r.groups();
  const bool one_fibre = c.sparse_dim() == 1 && groups == 1;
  // Fibres differ in their fill, but where it is -inf: then softmax has 0 (and log_softmax -inf) in every fibre with
  // a finite entry.
  const bool masked = groups > 0 && !one_fibre && is_masked(c) &&
                      groups == c.pattern->numel() / std::max<std::int64_t>(c.pattern->sizes()[at(dim)], 1) &&
                      group_extreme(r, /*largest=*/true).isfinite().all().item<bool>();
  if (is_on_device(c.values) && (masked || !c.has_fill())) {
    const at::Tensor rows = softmax_on_device(c.values, *r.grouping, groups, logarithm);
    return call.give({c.pattern, rows, masked ? masked_fill(c, logarithm) : Fill::undefined()});
  }
  const Exponents e(std::move(r), /*finite=*/false);
  Fill fill = Fill::undefined();
  if (c.has_fill() && groups == 0) {
    fill = Fill::of(even_fill(c, dim, logarithm).squeeze(0));
  } else if (c.has_fill() && !one_fibre) {
    if (!masked) {
      return call.give(strided_softmax(call, e, dim, logarithm));
    }
    fill = masked_fill(c, logarithm);
  } else if (c.has_fill()) {
    const auto row = logarithm ? e.fill_shifted - e.sum.log() : e.fill_shifted.exp() / e.sum;
    const auto block = row.squeeze(0);
    fill = {block.dim() == 0 ? FillKind::scalar : FillKind::array, block};
  }
  const auto rows = logarithm ? e.shifted - e.to_rows(e.sum).log() : e.exponents / e.to_rows(e.sum);
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

bool along_one_dim(const Call& call) { return !call.arg("dim").isNone() && call.sparse().dim() > 0; }

/// The place of the first extreme element along a dim, and the element: (places, elements), each with its fill.
std::array<std::pair<at::Tensor, at::Tensor>, 2> first_extreme(const Reduction& r, std::int64_t dim, bool largest) {
  const Components& c = r.c;
  const auto found = group_extreme(r, largest);
  const auto equal = [](const at::Tensor& a, const at::Tensor& b) {
    return at::logical_or(a == b, at::logical_and(a != a, b != b));
  };
  const auto fill = fill_row(c).expand(one_row(c.values));
  const std::int64_t dims = c.values.dim();
  const auto place = Reduction::column(c.pattern->indices().select(0, dim), dims);
  const auto group = r.group_of();
  const auto tie = equal(c.values.detach(), found.index_select(0, group));
  const auto entries = Reduction::column(at::arange(c.pattern->nse(), place.options()), dims);
  const auto least = [&](const at::Tensor& rows) {
    return entries_extreme(rows.contiguous(), *r.grouping, r.groups(), /*largest=*/false);
  };
  const auto at_entry = least(at::where(tie, place, r.sparse_extent()));
  const auto entry =
      least(at::where(tie, entries, c.pattern->nse())).clamp_max(std::max<std::int64_t>(c.pattern->nse() - 1, 0));
  // The first place without an entry: entries of a group come in order, and before it the k-th has the place k.
  at::Tensor rank = at::zeros({c.pattern->nse()}, place.options());
  at::Tensor size = at::ones({r.groups()}, place.options());
  if (!r.grouping->distinct()) {
    size = r.grouping->counts();
    const auto start = r.grouping->segments.narrow(0, 0, r.groups()).to(at::kLong);
    const auto in_order = at::arange(c.pattern->nse(), place.options());
    const at::Tensor number = r.grouping->order.defined()
                                  ? at::empty_like(in_order).index_copy_(0, r.grouping->order.to(at::kLong), in_order)
                                  : in_order;
    rank = number - start.index_select(0, group);
  }
  const auto rank_column = Reduction::column(rank, dims);
  const auto own_size = Reduction::column(size.index_select(0, group), dims);
  const auto gap = least(at::where(place != rank_column, rank_column, own_size));
  const auto lacks = at::logical_and(Reduction::column(r.missing(), dims) > 0, equal(fill.detach(), found));
  const auto by_fill = at::logical_and(lacks, gap < at_entry);
  const auto elements = at::where(by_fill, fill, c.values.gather(0, entry));
  return {std::pair{at::where(by_fill, gap, at_entry), at::zeros(one_row(c.values), place.options())},
          std::pair{elements, fill}};
}

/// argmax, argmin, and max and min along a dim with their places.
bool extreme_with_place(Call& call) {
  const std::string& name = call.schema().name();
  const bool only_places = name == "aten::argmax" || name == "aten::argmin";
  const bool largest = name == "aten::argmax" || name == "aten::max";
  const Components& c = call.sparse();
  if (!c.has_fill() || c.dim() == 0 || at::isComplexType(c.values.scalar_type()) || product_of(c.shape()) == 0) {
    return Call::decline();
  }
  if (call.arg("dim").isNone()) {
    const at::Tensor flat = call.tensor(0).reshape({-1});
    const at::Tensor place = largest ? flat.argmax(0) : flat.argmin(0);
    return call.give(call.flag("keepdim") ? place.reshape(Dims(at(c.dim()), 1)) : place);
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const bool keepdim = call.flag("keepdim");
  if (dim >= c.sparse_dim()) {
    const Components whole = coalesced(c);
    const std::int64_t d = dim - c.sparse_dim();
    const auto on = [&](const at::Tensor& t, std::int64_t at_dim) {
      return largest ? t.max(at_dim, keepdim) : t.min(at_dim, keepdim);
    };
    const auto [values, places] = on(whole.values, d + 1);
    const auto [fill, fill_place] = on(fill_block(whole), d);
    const at::Tensor extremes = make_tensor({whole.pattern, values, Fill::of(fill)});
    const at::Tensor where = make_tensor({whole.pattern, places, Fill::of(fill_place)});
    return only_places ? call.give(where) : call.give({c10::IValue(extremes), c10::IValue(where)});
  }
  const Reduction r(c, {dim}, keepdim);
  const auto [places, elements] = first_extreme(r, dim, largest);
  const at::Tensor where = r.result(places.first, places.second);
  return only_places ? call.give(where)
                     : call.give({c10::IValue(r.result(elements.first, elements.second)), c10::IValue(where)});
}

/// Of all elements: equals share the gradient, as those of amax and amin.
bool extreme_of_all(Call& call) {
  const Components& c = call.sparse();
  if (c.dim() == 0 || product_of(c.shape()) == 0) {
    return Call::decline();
  }
  return call.give(call.schema().name() == "aten::max" ? call.tensor(0).amax() : call.tensor(0).amin());
}

bool aminmax(Call& call) {
  const at::Tensor t = call.tensor(0);
  if (t.dim() == 0 || t.numel() == 0) {
    return Call::decline();
  }
  const Dims dims = along_one_dim(call) ? Dims{call.integer("dim")} : Dims{};
  const bool keepdim = call.flag("keepdim");
  return call.give({c10::IValue(t.amin(dims, keepdim)), c10::IValue(t.amax(dims, keepdim))});
}

constexpr RuleEntry kRules[] = {
    {"aten::argmax", extreme_with_place},
    {"aten::argmin", extreme_with_place},
    {"aten::max.dim", extreme_with_place},
    {"aten::min.dim", extreme_with_place},
    {"aten::max", extreme_of_all},
    {"aten::min", extreme_of_all},
    {"aten::aminmax", aminmax},
    {"aten::_softmax", accumulated<softmax>},
    {"aten::_log_softmax", accumulated<softmax>},
    {"aten::logsumexp", accumulated<logsumexp>},
};

}  // namespace

std::span<const RuleEntry> softmax_rules() { return kRules; }

}  // namespace lacewing::tensor
