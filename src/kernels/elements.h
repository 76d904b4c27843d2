// Elements of two sets of entries that meet. Torch-free, host and device.
#pragma once

#include <array>
#include <cstddef>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels {

/// Elements of a set's entries, and what stands where the set has no entry.
struct Elements {
  const void* values = nullptr;
  const void* fill = nullptr;
};

/// What is made of two elements that meet.
enum class Combine : int { add, subtract, multiply };

/// An element of so many bytes, whatever its type.
template <std::size_t Bytes>
struct alignas(Bytes) Element {
  std::array<char, Bytes> bytes;
};

/// Calls f(Element<bytes>{}): 1, 2, 4, 8 or 16.
template <typename F>
void visit_element(std::int64_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(Element<1>{});
    case 2: return f(Element<2>{});
    case 4: return f(Element<4>{});
    case 8: return f(Element<8>{});
    default: return f(Element<16>{});
  }
}

template <typename Number>
LACEWING_HOST_DEVICE Number combined(Combine combine, Number x, Number y) {
  return combine == Combine::add ? x + y : combine == Combine::subtract ? x - y : x * y;
}

}  // namespace lacewing::kernels
