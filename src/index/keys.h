// Keys of entries on any device: linear indices within sizes, their order, their rows. What knows how a device does it
// is in this folder alone.
#pragma once

#include <ATen/core/Tensor.h>

#include "structure/entry_scan.h"

namespace lacewing::index {

/// Linear keys of indices (dims, nse) within sizes, row-major; of some of their rows, in the order given.
at::Tensor linear_keys(const at::Tensor& indices, at::IntArrayRef sizes);
at::Tensor linear_keys(const at::Tensor& indices, at::IntArrayRef rows, at::IntArrayRef sizes);
/// The inverse: (dims, nse).
at::Tensor unravel_keys(const at::Tensor& keys, at::IntArrayRef sizes);

/// Where each key lies in a set that increases strictly, or -1.
at::Tensor find_keys(const at::Tensor& sorted, const at::Tensor& keys);

/// int64, the stable order that sorts keys in [0, limit); undefined where they are sorted.
at::Tensor sorting(const at::Tensor& keys, std::int64_t limit);

/// (rows + 1): where each row begins in rows that do not decrease.
at::Tensor row_starts(const at::Tensor& row_of, std::int64_t rows);
/// The inverse of so many entries: starts are valid.
at::Tensor rows_of_entries(const at::Tensor& starts, std::int64_t entries);

/// One reading of indices (dims, nse).
structure::EntryScan scan_entries(const at::Tensor& indices, at::IntArrayRef sizes);

}  // namespace lacewing::index
