#include "tensor/pattern.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "common/version.h"
#include "structure/index_set.h"
#include "structure/key_merge.h"
#include "structure/plan.h"

namespace lacewing::tensor {
namespace {

std::span<const std::int64_t> span_of(at::IntArrayRef sizes) { return {sizes.data(), sizes.size()}; }

const std::int64_t* data(const at::Tensor& tensor) { return tensor.const_data_ptr<std::int64_t>(); }
std::int64_t* mutable_data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int64_t>(); }

structure::IndexMatrix matrix_of(const at::Tensor& indices) {
  return {data(indices), indices.size(1), indices.stride(0), indices.stride(1)};
}

/// The stable order that sorts keys below a limit; undefined where they are sorted.
at::Tensor sorting(const at::Tensor& keys, std::int64_t limit) {
  const auto order = empty_result(keys.sizes(), keys.options());
  if (!keys.is_cpu()) {
    order.copy_(std::get<1>(at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false)));
    return order.equal(at::arange(keys.numel(), keys.options())) ? at::Tensor() : order;
  }
  const std::int64_t dim = 0;
  const structure::EntryGroups groups({data(keys), keys.numel(), 0, 1}, {&dim, 1}, {&limit, 1}, torch_executor());
  if (groups.in_order()) {
    return {};
  }
  groups.write(nullptr, nullptr, mutable_data(order), /*wide=*/true);
  return order;
}

Merged merged_on_host(const at::Tensor& a, const at::Tensor& b, structure::KeyMerge::Kept kept) {
  const structure::KeyMerge merge({data(a), a.numel()}, {data(b), b.numel()}, kept, torch_executor());
  const auto column = [&] { return empty_result({merge.count()}, a.options()); };
  Merged merged{column(), column(), column()};
  merge.write(mutable_data(merged.keys), mutable_data(merged.in_a), mutable_data(merged.in_b));
  return merged;
}

}  // namespace

std::int64_t product_of(at::IntArrayRef sizes) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    product *= size;
  }
  return product;
}

Dims sizes_at(at::IntArrayRef sizes, const Dims& dims) {
  Dims chosen;
  for (const std::int64_t d : dims) {
    chosen.push_back(sizes[at(d)]);
  }
  return chosen;
}

Dims all_dims(std::int64_t count) {
  Dims dims(static_cast<std::size_t>(count));
  for (std::int64_t d = 0; d < count; ++d) {
    dims[static_cast<std::size_t>(d)] = d;
  }
  return dims;
}

at::Tensor index_rows(const std::vector<at::Tensor>& rows, std::int64_t nse, const at::Tensor& like) {
  return rows.empty() ? at::empty({0, nse}, like.options()) : at::stack(rows);
}

at::Tensor linear_keys(const at::Tensor& indices, at::IntArrayRef sizes) {
  return linear_keys(indices, all_dims(static_cast<std::int64_t>(sizes.size())), sizes);
}

at::Tensor linear_keys(const at::Tensor& indices, const Dims& rows, at::IntArrayRef sizes) {
  if (rows.size() == 1) {
    return indices.select(0, rows[0]).contiguous();
  }
  if (indices.is_cpu()) {
    const auto keys = empty_result({indices.size(1)}, indices.options());
    structure::linear_keys(matrix_of(indices), rows, span_of(sizes), mutable_data(keys), torch_executor());
    return keys;
  }
  auto keys = at::zeros({indices.size(1)}, indices.options());
  for (std::size_t k = 0; k < rows.size(); ++k) {
    keys = keys * sizes[k] + indices.select(0, rows[k]);
  }
  return keys;
}

at::Tensor unravel_keys(const at::Tensor& keys, at::IntArrayRef sizes) {
  if (sizes.size() == 1) {
    return keys.unsqueeze(0);
  }
  const auto out = empty_result({static_cast<std::int64_t>(sizes.size()), keys.numel()}, keys.options());
  if (keys.is_cpu()) {
    const auto contiguous = keys.contiguous();
    structure::unravel_keys(data(contiguous), keys.numel(), span_of(sizes), mutable_data(out), torch_executor());
    return out;
  }
  auto rest = keys;
  for (std::int64_t d = out.size(0) - 1; d >= 0; --d) {
    const std::int64_t size = std::max<std::int64_t>(sizes[static_cast<std::size_t>(d)], 1);
    out.select(0, d).copy_(rest.remainder(size));
    rest = rest.div(size, "floor");
  }
  return out;
}

Merged union_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return merged_on_host(a, b, structure::KeyMerge::Kept::all);
  }
  const auto keys = std::get<0>(at::_unique2(at::cat({a, b})));
  return {keys, find_keys(a, keys), find_keys(b, keys)};
}

Merged intersection_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return merged_on_host(a, b, structure::KeyMerge::Kept::common);
  }
  const auto where = find_keys(b, a);
  const auto in_a = at::nonzero(where >= 0).squeeze(1);
  return {a.index_select(0, in_a), in_a, where.index_select(0, in_a)};
}

at::Tensor find_keys(const at::Tensor& sorted, const at::Tensor& keys) {
  if (sorted.numel() == 0) {
    return at::full_like(keys, -1);
  }
  const auto place = at::searchsorted(sorted, keys).clamp_max(sorted.numel() - 1);
  return at::where(sorted.index_select(0, place.reshape(-1)).view_as(keys) == keys, place,
                   at::full({}, -1, place.options()));
}

WatchedIndices::WatchedIndices(at::Tensor tensor) : tensor_(std::move(tensor)) {
  version_ = tensor_.defined() ? version_of(tensor_) : 0;
}

const at::Tensor& WatchedIndices::get() const {
  TORCH_CHECK(
      !tensor_.defined() || version_of(tensor_) == version_,
      "[lacewing.SparseTensor] the indices of a sparse tensor were written to: it is made of them, so they must "
      "stay as they are");
  return tensor_;
}

void Pattern::check_unwritten() const {
  indices_.get();
  turned_.get();
  minor_.get();
}

PatternPtr Pattern::make(at::Tensor indices, Dims sizes, bool coalesced) {
  auto* const pattern = new Pattern(indices.size(1), indices.device(), std::move(sizes), coalesced);
  pattern->indices_ = std::move(indices);
  return PatternPtr(pattern);
}

PatternPtr Pattern::make_scanned(at::Tensor indices, Dims sizes, structure::EntryScan scan) {
  auto* const pattern = new Pattern(indices.size(1), indices.device(), std::move(sizes), /*coalesced=*/false);
  pattern->scanned_groups_ = std::move(scan.groups);
  pattern->indices_ = std::move(indices);
  return PatternPtr(pattern);
}

PatternPtr Pattern::of_keys(const at::Tensor& keys, Dims sizes) {
  auto* const pattern = new Pattern(keys.numel(), keys.device(), std::move(sizes), /*coalesced=*/true);
  pattern->keys_ = keys;
  return PatternPtr(pattern);
}

std::int64_t Pattern::numel() const { return product_of(sizes_); }

bool Pattern::known_coalesced() const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  return find_coalesced();
}

const at::Tensor& Pattern::keys() const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  if (!keys_.defined()) {
    keys_ = linear_keys(indices(), sizes_);
  }
  return keys_;
}

const Grouping& Pattern::coalescing() const { return grouping(all_dims(dim())); }

PatternPtr Pattern::coalesced() const {
  const Grouping& grouping = coalescing();
  return grouping.pattern ? grouping.pattern : shared_from_this();
}

const Grouping& Pattern::grouping(const Dims& kept) const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  auto& found = groupings_[kept];
  if (!found) {
    found = make_grouping(kept);
  }
  return *found;
}

/// What is known of the entries that make_grouping reads.
structure::KnownEntries Pattern::known_entries(const Dims& kept) const {
  structure::KnownEntries known;
  known.distinct = (distinct_ || coalesced_) && static_cast<std::int64_t>(kept.size()) == dim();
  known.rows_in_order = turned_.defined() ? turned_in_order_ : coalesced_;
  if (kept == all_dims(dim())) {
    known.groups = scanned_groups_;
  }
  return known;
}

bool Pattern::find_coalesced() const {
  if (!coalesced_ && !scanned_groups_.empty()) {
    coalesced_ = std::reduce(scanned_groups_.begin(), scanned_groups_.end()) == nse_;
  }
  return coalesced_;
}

std::unique_ptr<Grouping> Pattern::make_grouping(const Dims& kept) const {
  const bool whole = kept == all_dims(dim());
  if (find_coalesced() && whole) {
    return std::make_unique<Grouping>();
  }
  if (device_ != at::kCPU) {
    return make_grouping_on_device(kept);
  }
  auto grouping = std::make_unique<Grouping>();
  grouping->nse = nse_;
  Dims kept_sizes = sizes_at(sizes_, kept);
  const bool turned = turned_.defined();
  const at::Tensor given = turned ? turned_.get() : indices();
  const structure::EntryGroups entries(matrix_of(given), turned ? sizes_at(turned_rows_, kept) : kept, kept_sizes,
                                       torch_executor(), known_entries(kept));
  if (whole && entries.in_order() && entries.distinct()) {
    coalesced_ = true;
    return grouping;
  }
  structure::PlanMeta meta;
  meta.entries = meta.terms = meta.need1 = nse_;
  meta.rows = entries.groups();
  meta.flags = (entries.distinct() ? 0 : structure::PlanMeta::has_segments) |
               (entries.in_order() ? 0 : structure::PlanMeta::has_index1) |
               (nse_ < std::numeric_limits<std::int32_t>::max() ? 0 : structure::PlanMeta::wide);
  const bool wide = meta.has(structure::PlanMeta::wide);
  const auto array = empty_result({meta.length()}, at::dtype(wide ? at::kLong : at::kInt));
  const auto groups = empty_result({static_cast<std::int64_t>(kept.size()), meta.rows}, at::dtype(at::kLong));
  const kernels::Terms terms = structure::terms_of(meta, array.mutable_data_ptr());
  entries.write(mutable_data(groups), const_cast<void*>(terms.segments), const_cast<void*>(terms.index1), wide);
  grouping->pattern = make(groups, std::move(kept_sizes), /*coalesced=*/true);
  const std::int64_t bounds = entries.distinct() ? 0 : meta.rows + 1;
  if (!entries.in_order()) {
    grouping->order = array.narrow(0, bounds, nse_);
  }
  if (!entries.distinct()) {
    grouping->segments = array.narrow(0, 0, bounds);
    grouping->sum = SparseScaleInfo(std::nullopt, InfoPlan{array, meta.to_vector()});
  }
  return grouping;
}

/// By torch's own sort.
std::unique_ptr<Grouping> Pattern::make_grouping_on_device(const Dims& kept) const {
  auto grouping = std::make_unique<Grouping>();
  grouping->nse = nse_;
  const bool whole = kept == all_dims(dim());
  const auto [sorted, order] =
      at::sort(whole ? keys() : reduced(kept), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const bool in_order = order.equal(at::arange(nse_, order.options()));
  auto [groups, inverse, counts] = at::unique_consecutive(sorted, false, /*return_counts=*/true);
  const bool distinct = groups.numel() == nse_;
  if (whole && in_order && distinct) {
    coalesced_ = true;
    return grouping;
  }
  grouping->pattern = of_keys(groups, sizes_at(sizes_, kept));
  if (!in_order) {
    grouping->order = order;
  }
  if (!distinct) {
    grouping->made_counts = counts;
    grouping->segments = at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)});
    SparseScaleInfo::Fields fields;
    if (!in_order) {
      fields.index = order;
    }
    fields.seg_out = grouping->segments;
    grouping->sum = SparseScaleInfo(fields);
  }
  return grouping;
}

const at::Tensor& Grouping::counts() const {
  const std::lock_guard lock(mutex);
  if (!made_counts.defined()) {
    made_counts = segments.diff().to(at::kLong);
  }
  return made_counts;
}

const at::Tensor& Grouping::group() const {
  const at::Tensor sizes = distinct() ? at::Tensor() : counts();
  const std::lock_guard lock(mutex);
  if (!made_group.defined()) {
    const auto options = order.defined()      ? order.options()
                         : segments.defined() ? segments.options()
                                              : at::dtype(at::kLong).device(pattern->device());
    const auto ids = sizes.defined() ? at::repeat_interleave(at::arange(sizes.numel(), options), sizes, 0, nse)
                                     : at::arange(nse, options);
    made_group = order.defined() ? at::empty_like(ids).index_copy_(0, order.to(at::kLong), ids) : ids;
  }
  return made_group;
}

const SparseProductInfo& Pattern::matrix_info(const Dims& row_dims, const Dims& column_dims) const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  auto& found = matrices_[{row_dims, column_dims}];
  if (!found) {
    const std::int64_t rows = product_of(sizes_at(sizes_, row_dims));
    found = std::make_unique<SparseProductInfo>(
        sparse_product_info(std::nullopt, reduced(column_dims), reduced(row_dims), std::nullopt, rows));
  }
  return *found;
}

PatternPtr Pattern::recompressed(const Layout& layout, at::Tensor& order) const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  const bool by_layout = layout_ && known_distinct();
  if (!by_layout && !coalesced_) {
    return nullptr;
  }
  // Entries of one major index stay in their order: it must be that of the minor dims.
  Dims rest;
  for (const std::int64_t d : by_layout ? layout_->order() : all_dims(dim())) {
    if (std::find(layout.major().begin(), layout.major().end(), d) == layout.major().end()) {
      rest.push_back(d);
    }
  }
  if (rest != layout.minor()) {
    return nullptr;
  }
  const std::int64_t rows = product_of(sizes_at(sizes_, layout.major()));
  at::Tensor major = reduced(layout.major());
  order = sorting(major, rows);
  const at::Tensor minor = reduced(layout.minor());
  auto* const made = new Pattern(nse_, device_, sizes_, layout.order() == all_dims(dim()));
  const PatternPtr pattern(made);
  made->layout_ = layout;
  made->distinct_ = true;
  if (!order.defined()) {
    made->indices_ = indices_;
  }
  made->major_ = order.defined() ? major.index_select(0, order) : major;
  made->minor_ = order.defined() ? minor.index_select(0, order) : minor;
  return pattern;
}

at::Tensor Pattern::reduced(const Dims& dims) const {
  if (layout_ && major_.defined() && dims == layout_->major()) {
    return major_;
  }
  if (layout_ && minor_.defined() && dims == layout_->minor()) {
    return minor_.get().to(at::kLong);
  }
  return linear_keys(indices(), dims, sizes_at(sizes_, dims));
}

PatternPtr Pattern::to(at::Device device) const {
  if (device == this->device()) {
    return shared_from_this();
  }
  const std::lock_guard lock(mutex_);
  check_unwritten();
  auto* const moved = new Pattern(nse_, device, sizes_, coalesced_);
  const PatternPtr pattern(moved);
  const auto to_device = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; };
  moved->layout_ = layout_;
  moved->distinct_ = distinct_;
  moved->indices_ = to_device(minor_.defined() ? indices_.unchecked() : indices());
  moved->starts_ = to_device(starts_);
  moved->minor_ = to_device(minor_.unchecked());
  moved->major_ = to_device(major_);
  return pattern;
}

}  // namespace lacewing::tensor
