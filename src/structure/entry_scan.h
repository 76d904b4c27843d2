// One reading of the entries of an index set, when it is made. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "structure/index_set.h"

namespace lacewing::structure {

/// What one reading of all entries tells.
struct EntryScan {
  std::int64_t first_outside = 0;    ///< the first entry with an index outside [0, sizes[dim]), or the count
  bool in_order = false;             ///< by all dims, the first the most significant; false where one lies outside
  std::vector<std::int64_t> groups;  ///< where in order: the groups that begin in each fixed part of the entries
};
EntryScan scan_entries(const IndexMatrix& indices, std::span<const std::int64_t> sizes, const CpuExecutor& executor);

}  // namespace lacewing::structure
