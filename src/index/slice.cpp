#include "index/slice.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/remainder.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/where.h"

namespace lacewing::index {
namespace {

SlicedEntries slice_on_host(const at::Tensor& indices, const std::vector<structure::Slice>& slices, bool sorted) {
  const structure::EntrySlice found(
      {indices.const_data_ptr<std::int64_t>(), indices.size(1), indices.stride(0), indices.stride(1)}, indices.size(0),
      slices, sorted, torch_executor());
  const SlicedEntries sliced{empty_result({found.count()}, indices.options()),
                             empty_result({indices.size(0), found.count()}, indices.options())};
  found.write(sliced.entries.mutable_data_ptr<std::int64_t>(), sliced.indices.mutable_data_ptr<std::int64_t>());
  return sliced;
}

/// By torch's own ops.
SlicedEntries slice_on_device(const at::Tensor& indices, const std::vector<structure::Slice>& slices) {
  at::Tensor inside = at::ones({indices.size(1)}, indices.options().dtype(at::kBool));
  for (const structure::Slice& s : slices) {
    const auto offset = indices.select(0, s.dim) - s.start;
    inside = at::logical_and(inside, at::logical_and(offset >= 0, offset < s.end - s.start));
    inside = at::logical_and(inside, at::remainder(offset, s.step) == 0);
  }
  const at::Tensor kept = at::nonzero(inside).squeeze(1);
  const at::Tensor moved = indices.index_select(1, kept);
  for (const structure::Slice& s : slices) {
    const at::Tensor row = moved.select(0, s.dim);
    row.copy_(at::div(row - s.start, s.step, "floor"));
  }
  return {kept, moved};
}

}  // namespace

SlicedEntries slice_entries(const at::Tensor& indices, const std::vector<structure::Slice>& slices, bool sorted) {
  return is_on_host(indices) ? slice_on_host(indices, slices, sorted) : slice_on_device(indices, slices);
}

}  // namespace lacewing::index
