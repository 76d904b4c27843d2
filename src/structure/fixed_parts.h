// A cut of many entries into parts that depends on their number alone. Torch-free.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/deal.h"

namespace lacewing::structure {

/// Entries for which another thread pays.
inline constexpr std::int64_t kPartEntries = 1 << 14;

inline std::int64_t parts_for(std::int64_t count) { return std::clamp<std::int64_t>(count / kPartEntries, 1, 64); }

/// Calls f(part, begin, end) on fixed parts of [0, count).
template <typename F>
void for_fixed_parts(std::int64_t parts, std::int64_t count, const CpuExecutor& executor, const F& f) {
  deal_tasks(executor, parts, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      f(part, count * part / parts, count * (part + 1) / parts);
    }
  });
}

}  // namespace lacewing::structure
