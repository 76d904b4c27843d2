// The entries of an index set inside a box of slices. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "structure/index_set.h"

namespace lacewing::structure {

/// Indices start, start + step, ... below end, of one dim; they become 0, 1, ...
struct Slice {
  std::int64_t dim = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

/// Found by one pass, so that the arrays have the right size, and written by another.
class EntrySlice {
 public:
  /// `dims`: rows of the matrix; `sorted` promises that dim 0 does not decrease, so that its slice is found by search.
  EntrySlice(const IndexMatrix& indices, std::int64_t dims, std::vector<Slice> slices, bool sorted,
             const CpuExecutor& executor);

  std::int64_t count() const { return starts_.back(); }
  /// entries (count), and their indices inside the box (dims, count).
  void write(std::int64_t* entries, std::int64_t* indices) const;

 private:
  std::int64_t words() const { return static_cast<std::int64_t>(taken_.size()); }

  IndexMatrix indices_;
  std::int64_t dims_;
  std::vector<Slice> slices_;
  CpuExecutor executor_;
  std::int64_t first_ = 0, last_ = 0;  ///< entries that are looked at
  std::vector<std::int64_t> starts_;   ///< entries taken before each part, and all of them
  std::vector<std::uint64_t> taken_;   ///< a bit for each entry that is looked at
};

}  // namespace lacewing::structure
