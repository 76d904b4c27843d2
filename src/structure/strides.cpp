#include "structure/strides.h"

#include <algorithm>
#include <numeric>

namespace lacewing::structure {

std::optional<std::vector<std::int64_t>> contiguous_order(std::span<const std::int64_t> shape,
                                                          std::span<const std::int64_t> strides) {
  std::vector<std::int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return order;
  }
  std::vector<std::int64_t> dims;
  for (const std::int64_t d : order) {
    if (shape[static_cast<std::size_t>(d)] != 1) {
      dims.push_back(d);
    }
  }
  const auto stride = [&](std::int64_t d) { return strides[static_cast<std::size_t>(d)]; };
  std::stable_sort(dims.begin(), dims.end(), [&](std::int64_t a, std::int64_t b) { return stride(a) < stride(b); });
  std::int64_t expected = 1;
  for (const std::int64_t d : dims) {
    if (stride(d) != expected) {
      return std::nullopt;
    }
    expected *= shape[static_cast<std::size_t>(d)];
  }
  auto outermost = dims.rbegin();
  for (std::int64_t& d : order) {
    if (shape[static_cast<std::size_t>(d)] != 1) {
      d = *outermost++;
    }
  }
  return order;
}

}  // namespace lacewing::structure
