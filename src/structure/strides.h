// Strides of strided arrays. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lacewing::structure {

/// The dims, outermost first, in whose order an array is C-contiguous: one of the N! contiguous orders, or none. Dims
/// of size 1 stay at their places, and an array without elements is contiguous as it is.
std::optional<std::vector<std::int64_t>> contiguous_order(std::span<const std::int64_t> shape,
                                                          std::span<const std::int64_t> strides);

}  // namespace lacewing::structure
