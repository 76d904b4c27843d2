// The entries inside a box, on any device.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "structure/entry_slice.h"

namespace lacewing::index {

/// Entries that lie inside, and their indices there.
struct SlicedEntries {
  at::Tensor entries;  ///< (count,)
  at::Tensor indices;  ///< (dims, count)
};

/// `sorted` promises that dim 0 of indices (dims, nse) does not decrease.
SlicedEntries slice_entries(const at::Tensor& indices, const std::vector<structure::Slice>& slices, bool sorted);

}  // namespace lacewing::index
