// Hints about memory. Torch-free.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lacewing {

/// Asks for huge pages behind a large new allocation: its first touch then costs one page fault in 512. A hint: where
/// the system has none to give, nothing changes.
inline void prefer_huge_pages(void* data, std::int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;
  constexpr std::int64_t kSmallest = std::int64_t{1} << 23;
  if (bytes < kSmallest) {
    return;
  }
  const auto start = (reinterpret_cast<std::uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(bytes)) & ~(kHugePage - 1);
  if (start < end) {
    madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
  }
#else
  (void)data;
  (void)bytes;
#endif
}

}  // namespace lacewing
