// Blocks behind <lacewing/memory.h>. Torch-free.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include <lacewing/export.h>

namespace lacewing {

/// Smaller blocks go straight back to where they came from.
inline constexpr std::size_t kLeastKeptBytes = std::size_t{1} << 20;

/// Memory that is not initialised, at an address that 64 divides. Throws std::bad_alloc.
LACEWING_API void* take_memory(std::size_t bytes);
LACEWING_API void return_memory(void* data) noexcept;

struct ReturnMemory {
  void operator()(void* data) const noexcept { return_memory(data); }
};

/// An array of trivial elements in such memory.
template <typename T>
using KeptArray = std::unique_ptr<T[], ReturnMemory>;

template <typename T>
KeptArray<T> take_array(std::size_t count) {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
  return KeptArray<T>(static_cast<T*>(take_memory(count * sizeof(T))));
}

}  // namespace lacewing
