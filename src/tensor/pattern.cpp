#include "tensor/pattern.h"

#include <algorithm>

#include <ATen/ATen.h>

#include <lacewing/dispatch/torch.h>

#include "structure/index_set.h"

namespace lacewing::tensor {
namespace {

std::span<const std::int64_t> span_of(at::IntArrayRef sizes) { return {sizes.data(), sizes.size()}; }

const std::int64_t* data(const at::Tensor& tensor) { return tensor.const_data_ptr<std::int64_t>(); }
std::int64_t* mutable_data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int64_t>(); }

/// Sorted keys and their stable order; order is undefined where it is the identity.
struct Sorted {
  at::Tensor keys, order;
  bool distinct;
};

bool is_increasing(const at::Tensor& keys, bool strictly) {
  if (keys.numel() < 2) {
    return true;
  }
  if (keys.is_cpu()) {
    const auto found = structure::sortedness(data(keys), keys.numel(), torch_executor());
    return found == structure::Sortedness::strict || (!strictly && found == structure::Sortedness::sorted);
  }
  const auto left = keys.slice(0, 0, -1);
  const auto right = keys.slice(0, 1);
  return (strictly ? left < right : left <= right).all().item<bool>();
}

Sorted sorted_keys(const at::Tensor& keys, std::int64_t limit) {
  if (is_increasing(keys, /*strictly=*/false)) {
    return {keys, {}, is_increasing(keys, /*strictly=*/true)};
  }
  at::Tensor sorted, order;
  if (keys.is_cpu()) {
    sorted = at::empty_like(keys);
    order = at::empty_like(keys);
    structure::sort_keys(data(keys), keys.numel(), limit, mutable_data(order), mutable_data(sorted), torch_executor());
  } else {
    std::tie(sorted, order) = at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  }
  return {sorted, order, is_increasing(sorted, /*strictly=*/true)};
}

/// Where runs of equal keys begin, and the number of keys at the end.
at::Tensor runs_of(const at::Tensor& sorted) {
  if (sorted.is_cpu()) {
    const auto segments = at::empty({sorted.numel() + 1}, sorted.options());
    const auto runs = structure::find_runs(data(sorted), sorted.numel(), mutable_data(segments), torch_executor());
    return segments.slice(0, 0, runs + 1).clone();
  }
  const auto counts = std::get<2>(at::unique_consecutive(sorted, false, /*return_counts=*/true));
  return at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)});
}

using MergeKernel = std::int64_t (*)(const std::int64_t*, std::int64_t, const std::int64_t*, std::int64_t,
                                     std::int64_t*, std::int64_t*, std::int64_t*, const CpuExecutor&);

Merged merged_on_host(MergeKernel kernel, const at::Tensor& a, const at::Tensor& b, std::int64_t room) {
  const auto out = at::empty({3, room}, a.options());
  std::int64_t* const rows = mutable_data(out);
  const std::int64_t count =
      kernel(data(a), a.numel(), data(b), b.numel(), rows, rows + room, rows + 2 * room, torch_executor());
  const auto row = [&](std::int64_t k) { return out.select(0, k).slice(0, 0, count); };
  return {row(0), row(1), row(2)};
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
    chosen.push_back(sizes[static_cast<std::size_t>(d)]);
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

at::Tensor entry_groups(const Grouping& grouping, std::int64_t nse, const at::TensorOptions& options) {
  if (!grouping.distinct()) {
    return grouping.group;
  }
  const auto ids = at::arange(nse, options);
  return grouping.order.defined() ? at::empty_like(ids).index_copy_(0, grouping.order, ids) : ids;
}

at::Tensor index_rows(const std::vector<at::Tensor>& rows, std::int64_t nse, const at::Tensor& like) {
  return rows.empty() ? at::empty({0, nse}, like.options()) : at::stack(rows);
}

at::Tensor linear_keys(const at::Tensor& indices, at::IntArrayRef sizes) {
  if (sizes.size() == 1) {
    return indices.select(0, 0).contiguous();
  }
  if (indices.is_cpu()) {
    const auto keys = at::empty({indices.size(1)}, indices.options());
    structure::linear_keys({data(indices), indices.size(1), indices.stride(0), indices.stride(1)}, span_of(sizes),
                           mutable_data(keys), torch_executor());
    return keys;
  }
  auto keys = at::zeros({indices.size(1)}, indices.options());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    keys = keys * sizes[d] + indices.select(0, static_cast<std::int64_t>(d));
  }
  return keys;
}

at::Tensor unravel_keys(const at::Tensor& keys, at::IntArrayRef sizes) {
  if (sizes.size() == 1) {
    return keys.unsqueeze(0);
  }
  const auto out = at::empty({static_cast<std::int64_t>(sizes.size()), keys.numel()}, keys.options());
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
    return merged_on_host(structure::merge_keys, a, b, a.numel() + b.numel());
  }
  const auto keys = std::get<0>(at::_unique2(at::cat({a, b})));
  return {keys, find_keys(a, keys), find_keys(b, keys)};
}

Merged intersection_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return merged_on_host(structure::intersect_keys, a, b, std::min(a.numel(), b.numel()));
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

PatternPtr Pattern::make(at::Tensor indices, Dims sizes, bool coalesced) {
  auto* const pattern = new Pattern(indices.size(1), indices.device(), std::move(sizes), coalesced);
  pattern->indices_ = std::move(indices);
  return PatternPtr(pattern);
}

PatternPtr Pattern::of_keys(const at::Tensor& keys, Dims sizes) {
  const at::Tensor indices = unravel_keys(keys, sizes);
  auto pattern = make(indices, std::move(sizes), /*coalesced=*/true);
  pattern->keys_ = keys;
  return pattern;
}

std::int64_t Pattern::numel() const { return product_of(sizes_); }

bool Pattern::known_coalesced() const {
  const std::lock_guard lock(mutex_);
  return coalesced_;
}

const at::Tensor& Pattern::keys() const {
  const std::lock_guard lock(mutex_);
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
  auto& found = groupings_[kept];
  if (!found) {
    found = make_grouping(kept);
  }
  return *found;
}

std::unique_ptr<Grouping> Pattern::make_grouping(const Dims& kept) const {
  auto grouping = std::make_unique<Grouping>();
  const bool whole = kept == all_dims(dim());
  Dims kept_sizes = sizes_at(sizes_, kept);
  const at::Tensor by = whole ? keys() : reduced(kept);
  if (whole && (coalesced_ || is_increasing(by, /*strictly=*/true))) {
    coalesced_ = true;
    return grouping;
  }
  const Sorted sorted = sorted_keys(by, product_of(kept_sizes));
  grouping->order = sorted.order;
  if (sorted.distinct) {
    grouping->pattern = of_keys(sorted.keys, std::move(kept_sizes));
    return grouping;
  }
  grouping->segments = runs_of(sorted.keys);
  const std::int64_t groups = grouping->segments.numel() - 1;
  const auto starts = grouping->segments.slice(0, 0, groups);
  grouping->counts = grouping->segments.diff();
  grouping->pattern = of_keys(sorted.keys.index_select(0, starts), std::move(kept_sizes));
  const auto ids = at::repeat_interleave(at::arange(groups, by.options()), grouping->counts, 0, by.numel());
  grouping->group = sorted.order.defined() ? at::empty_like(ids).index_copy_(0, sorted.order, ids) : ids;
  SparseScaleInfo::Fields fields;
  if (sorted.order.defined()) {
    fields.index = sorted.order;
  }
  fields.seg_out = grouping->segments;
  grouping->sum = SparseScaleInfo(fields);
  return grouping;
}

const SparseProductInfos& Pattern::matrix_infos(const Dims& row_dims, const Dims& column_dims) const {
  const std::lock_guard lock(mutex_);
  auto& found = matrices_[{row_dims, column_dims}];
  if (!found) {
    const std::int64_t rows = product_of(sizes_at(sizes_, row_dims));
    const std::int64_t columns = product_of(sizes_at(sizes_, column_dims));
    found = std::make_unique<SparseProductInfos>(sparse_product_infos(
        std::nullopt, reduced(column_dims), reduced(row_dims), std::nullopt, rows, nse(), columns));
  }
  return *found;
}

PatternPtr Pattern::recompressed(const Layout& layout, at::Tensor& order) const {
  const std::lock_guard lock(mutex_);
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
  const Sorted sorted = sorted_keys(reduced(layout.major()), rows);
  order = sorted.order;
  const at::Tensor minor = reduced(layout.minor());
  auto* const made = new Pattern(nse_, device_, sizes_, layout.order() == all_dims(dim()));
  const PatternPtr pattern(made);
  made->layout_ = layout;
  made->distinct_ = true;
  if (!order.defined()) {
    made->indices_ = indices_;
  }
  made->major_ = sorted.keys;
  made->minor_ = order.defined() ? minor.index_select(0, order) : minor;
  return pattern;
}

at::Tensor Pattern::reduced(const Dims& dims) const {
  if (layout_ && major_.defined() && dims == layout_->major()) {
    return major_;
  }
  if (layout_ && minor_.defined() && dims == layout_->minor()) {
    return minor_.to(at::kLong);
  }
  if (dims.size() == 1) {
    return indices().select(0, dims[0]).contiguous();
  }
  return linear_keys(indices().index_select(0, at::tensor(at::IntArrayRef(dims), indices().options())),
                     sizes_at(sizes_, dims));
}

PatternPtr Pattern::to(at::Device device) const {
  if (device == this->device()) {
    return shared_from_this();
  }
  const std::lock_guard lock(mutex_);
  auto* const moved = new Pattern(nse_, device, sizes_, coalesced_);
  const PatternPtr pattern(moved);
  const auto to_device = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; };
  moved->layout_ = layout_;
  moved->distinct_ = distinct_;
  moved->indices_ = to_device(indices_);
  moved->starts_ = to_device(starts_);
  moved->minor_ = to_device(minor_);
  moved->major_ = to_device(major_);
  return pattern;
}

}  // namespace lacewing::tensor
