// Entries grouped by their indices in some dims, on any device: the sort behind coalescing and reductions.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "structure/entry_groups.h"
#include "structure/plan.h"

namespace lacewing::index {

/// Groups in the order of their indices, and the plan that adds up the rows of each: one array holds the segments and
/// the order (see structure/plan.h).
struct EntryGrouping {
  at::Tensor array;
  structure::PlanMeta plan;
  at::Tensor indices;  ///< (dims, groups); or, on a device,
  at::Tensor keys;     ///< (groups,): linear keys

  bool distinct() const { return !plan.has(structure::PlanMeta::has_segments); }
  bool in_order() const { return !plan.has(structure::PlanMeta::has_index1); }
};

/// The entries of indices (dims, nse) by their rows `dims`, of these sizes. On a device `keys` gives their linear keys
/// along these rows. One host read there.
EntryGrouping group_entries(const at::Tensor& indices, at::IntArrayRef dims, at::IntArrayRef sizes,
                            const structure::KnownEntries& known, const std::function<at::Tensor()>& keys);

}  // namespace lacewing::index
