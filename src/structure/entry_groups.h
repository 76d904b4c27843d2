// Entries of an index set grouped by their indices in some dims: the sort behind coalescing and reductions. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "structure/index_set.h"

namespace lacewing::structure {

class KeyCode;

/// What is known of entries before they are grouped.
struct KnownEntries {
  std::span<const std::int64_t> groups;  ///< as a scan by the same dims found them in order; empty: unknown
  bool distinct = false;                 ///< no two have the same indices in the dims
  bool rows_in_order = false;            ///< they are in the order of all rows of the matrix
};

/// Groups are in the order of their indices (the first dim given is the most significant), and a group's entries in the
/// order in which they are stored. Linear time: a radix sort, by the leading dims alone where the others are
/// in order already, or none where all are.
class EntryGroups {
 public:
  /// The rows `dims` of the matrix, whose indices lie in [0, sizes[k]) for dims[k]. The matrix must outlive the groups,
  /// and stay as it is.
  EntryGroups(const IndexMatrix& indices, std::span<const std::int64_t> dims, std::span<const std::int64_t> sizes,
              const CpuExecutor& executor, const KnownEntries& known = {});
  ~EntryGroups();

  std::int64_t count() const { return indices_.count; }
  std::int64_t groups() const { return starts_.back(); }
  /// Whether every entry is a group of its own.
  bool distinct() const { return groups() == count(); }
  /// Whether the entries are stored in the order of the groups.
  bool in_order() const { return sorted_ == nullptr; }

  /// Any may be null; throws where the matrix has changed. indices[k * groups + g]: the index of group g in dims[k];
  /// segments[g]: the place of its first entry, and at the end the count; order[place]: the entry. int32, or int64
  /// where wide.
  void write(std::int64_t* indices, void* segments, void* order, bool wide) const;

 private:
  class Sorted;
  template <typename Record>
  class SortedRecords;

  std::int64_t parts() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  /// Whether the entries are in the order of the dims from `first_dim` on; counts the groups of each part if so.
  bool count_in_order(std::size_t first_dim);
  /// The lowest bits of the keys that are in order already.
  int settled_bits(bool rows_in_order);
  template <typename Index>
  void write_as(std::int64_t* indices, Index* segments, Index* order) const;

  IndexMatrix indices_;
  std::vector<std::int64_t> dims_;
  CpuExecutor executor_;
  std::unique_ptr<KeyCode> code_;
  std::unique_ptr<Sorted> sorted_;
  std::vector<std::int64_t> starts_;  ///< the groups that begin before each part of the entries, and all of them
};

}  // namespace lacewing::structure
