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
#include "index/groups.h"
#include "index/keys.h"

namespace lacewing::tensor {

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
    keys_ = index::linear_keys(indices(), sizes_);
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
  auto grouping = std::make_unique<Grouping>();
  grouping->nse = nse_;
  Dims kept_sizes = sizes_at(sizes_, kept);
  const bool turned = turned_.defined();
  const index::EntryGrouping found =
      index::group_entries(turned ? turned_.get() : indices(), turned ? sizes_at(turned_rows_, kept) : kept, kept_sizes,
                           known_entries(kept), [&] { return whole ? keys() : reduced(kept); });
  if (whole && found.in_order() && found.distinct()) {
    coalesced_ = true;
    return grouping;
  }
  grouping->pattern = found.keys.defined() ? of_keys(found.keys, std::move(kept_sizes))
                                           : make(found.indices, std::move(kept_sizes), /*coalesced=*/true);
  const std::int64_t bounds = found.distinct() ? 0 : found.plan.rows + 1;
  if (!found.in_order()) {
    grouping->order = found.array.narrow(0, bounds, nse_);
  }
  if (!found.distinct()) {
    grouping->segments = found.array.narrow(0, 0, bounds);
    grouping->sum = SparseScaleInfo(std::nullopt, InfoPlan{found.array, found.plan.to_vector()});
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
  order = index::sorting(major, rows);
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
  return index::linear_keys(indices(), dims, sizes_at(sizes_, dims));
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
