#include "index/groups.h"

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/host_read.h"
#include "index/key_order.h"
#include "kernels/device_index.h"

namespace lacewing::index {
namespace {

using structure::PlanMeta;

/// Segments and order as a plan over so many entries, and its array.
EntryGrouping described(std::int64_t entries, std::int64_t groups, bool in_order, const at::TensorOptions& options) {
  EntryGrouping grouping;
  PlanMeta& meta = grouping.plan;
  meta.entries = meta.terms = meta.need1 = entries;
  meta.rows = groups;
  meta.flags = (groups == entries ? 0 : PlanMeta::has_segments) | (in_order ? 0 : PlanMeta::has_index1) |
               (has_wide_places(entries) ? PlanMeta::wide : 0);
  grouping.array = empty_result({meta.length()}, options.dtype(meta.has(PlanMeta::wide) ? at::kLong : at::kInt));
  return grouping;
}

EntryGrouping group_on_host(const at::Tensor& indices, at::IntArrayRef dims, at::IntArrayRef sizes,
                            const structure::KnownEntries& known) {
  const structure::EntryGroups entries(
      {indices.const_data_ptr<std::int64_t>(), indices.size(1), indices.stride(0), indices.stride(1)},
      {dims.data(), dims.size()}, {sizes.data(), sizes.size()}, torch_executor(), known);
  EntryGrouping grouping = described(entries.count(), entries.groups(), entries.in_order(), indices.options());
  grouping.indices = empty_result({static_cast<std::int64_t>(dims.size()), entries.groups()}, indices.options());
  const kernels::Terms terms = structure::terms_of(grouping.plan, grouping.array.mutable_data_ptr());
  entries.write(grouping.indices.mutable_data_ptr<std::int64_t>(), const_cast<void*>(terms.segments),
                const_cast<void*>(terms.index1), grouping.plan.has(PlanMeta::wide));
  return grouping;
}

EntryGrouping group_on_device(const at::Tensor& keys, at::IntArrayRef sizes) {
  const DeviceCall call(keys.device());
  const std::int64_t count = keys.numel();
  const SortedKeys sorted = sort_keys(call, keys, c10::multiply_integers(sizes));
  kernels::KeyGroups groups;
  groups.count = count;
  groups.wide = has_wide_places(count);
  const at::Tensor number = call.integers(count, groups.wide);
  const at::Tensor found = call.integers(2);
  groups.sorted = sorted.keys.const_data_ptr<std::int64_t>();
  groups.order = sorted.order.const_data_ptr();
  groups.number = number.mutable_data_ptr();
  groups.found = found.mutable_data_ptr<std::int64_t>();
  const at::Tensor space = call.workspace(kernels::cuda::groups_workspace(groups));
  kernels::cuda::find_groups(groups, call.stream(), space.mutable_data_ptr());
  const std::vector<std::int64_t> numbers = read_back(found);
  groups.groups = numbers[0];
  EntryGrouping grouping = described(count, groups.groups, /*in_order=*/numbers[1] == 0, keys.options());
  if (grouping.distinct()) {
    grouping.keys = sorted.keys;
  } else {
    grouping.keys = call.integers(groups.groups);
    groups.keys = grouping.keys.mutable_data_ptr<std::int64_t>();
  }
  const kernels::Terms terms = structure::terms_of(grouping.plan, grouping.array.mutable_data_ptr());
  groups.segments = const_cast<void*>(terms.segments);
  if (groups.keys != nullptr || groups.segments != nullptr) {
    kernels::cuda::write_groups(groups, call.stream());
  }
  if (!grouping.in_order()) {
    grouping.array.narrow(0, grouping.distinct() ? 0 : groups.groups + 1, count).copy_(sorted.order);
  }
  return grouping;
}

}  // namespace

EntryGrouping group_entries(const at::Tensor& indices, at::IntArrayRef dims, at::IntArrayRef sizes,
                            const structure::KnownEntries& known, const std::function<at::Tensor()>& keys) {
  TORCH_CHECK(!indices.is_meta(), "[lacewing.SparseTensor] entries on meta have no indices to group them by");
  return is_on_host(indices) ? group_on_host(indices, dims, sizes, known) : group_on_device(keys(), sizes);
}

}  // namespace lacewing::index
