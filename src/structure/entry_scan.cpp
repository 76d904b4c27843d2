#include "structure/entry_scan.h"

#include <atomic>
#include <numeric>

#include "structure/fixed_parts.h"
#include "structure/key_code.h"

namespace lacewing::structure {
namespace {

/// Whether all indices of entries [begin, end) lie in [0, sizes[dim]).
bool all_inside(const IndexMatrix& indices, std::span<const std::int64_t> sizes, std::int64_t begin, std::int64_t end) {
  std::uint64_t signs = 0;  // the sign of an index, or of what is left of the size above it
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const std::int64_t* const row = indices.data + static_cast<std::int64_t>(k) * indices.dim_stride;
    const std::uint64_t largest = static_cast<std::uint64_t>(sizes[k]) - 1;
    const auto add = [&](std::int64_t index) {
      signs |= static_cast<std::uint64_t>(index) | (largest - static_cast<std::uint64_t>(index));
    };
    if (indices.entry_stride == 1) {
      for (std::int64_t e = begin; e < end; ++e) {
        add(row[e]);
      }
    } else {
      for (std::int64_t e = begin; e < end; ++e) {
        add(row[e * indices.entry_stride]);
      }
    }
  }
  return static_cast<std::int64_t>(signs) >= 0;
}

std::int64_t first_outside(const IndexMatrix& indices, std::span<const std::int64_t> sizes, std::int64_t begin,
                           std::int64_t end) {
  while (begin < end && all_inside(indices, sizes, begin, begin + 1)) {
    ++begin;
  }
  return begin;
}

}  // namespace

EntryScan scan_entries(const IndexMatrix& indices, std::span<const std::int64_t> sizes, const CpuExecutor& executor) {
  std::vector<std::int64_t> dims(sizes.size());
  std::iota(dims.begin(), dims.end(), 0);
  const KeyCode code(indices, dims, sizes);
  const std::int64_t parts = parts_for(indices.count);
  EntryScan scan;
  scan.groups.assign(static_cast<std::size_t>(parts), 0);
  std::atomic<std::int64_t> outside{indices.count};
  std::atomic<bool> in_order{true};
  for_fixed_parts(parts, indices.count, executor, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    OrderCheck order(code, begin, ~std::uint64_t{0});
    for_key_blocks(code, begin, end, [&](std::int64_t first, const std::uint64_t* keys, std::int64_t length) {
      if (!all_inside(indices, sizes, first, first + length)) {
        const std::int64_t found = first_outside(indices, sizes, first, first + length);
        std::int64_t least = outside.load();
        while (found < least && !outside.compare_exchange_weak(least, found)) {
        }
        return false;
      }
      if (in_order.load(std::memory_order_relaxed) && !order.add(keys, length)) {
        in_order = false;
      }
      return true;
    });
    scan.groups[static_cast<std::size_t>(part)] = order.groups;
  });
  scan.first_outside = outside;
  scan.in_order = in_order && scan.first_outside == indices.count;
  if (!scan.in_order) {
    scan.groups.clear();
  }
  return scan;
}

}  // namespace lacewing::structure
