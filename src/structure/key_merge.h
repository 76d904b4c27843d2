// Merging two coalesced index sets, given by their linear keys. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing::structure {

/// A coalesced set: keys that increase strictly.
struct KeySet {
  const std::int64_t* keys = nullptr;
  std::int64_t count = 0;
};

/// Elements of a set's entries, and what stands where the set has no entry; `out` gets one for each merged key.
struct Elements {
  const void* values = nullptr;
  const void* fill = nullptr;
  void* out = nullptr;
};

/// The union or the intersection of two sets, in order. It is counted first, so that its arrays have the right size.
class KeyMerge {
 public:
  enum class Kept : int { all, common };

  KeyMerge(KeySet a, KeySet b, Kept kept, const CpuExecutor& executor);

  std::int64_t count() const { return starts_.back(); }
  /// The keys, and where each lies in either set, or -1.
  void write(std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b) const;
  /// The keys, and the elements of both sets. Elements have 1, 2, 4, 8 or 16 bytes.
  void write(std::int64_t* keys, const Elements& a, const Elements& b, std::int64_t element_bytes) const;

 private:
  std::int64_t parts() const { return static_cast<std::int64_t>(cuts_a_.size()) - 1; }
  template <typename Make>
  void walk_parts(const Make& make) const;
  template <typename Element>
  void write_elements(std::int64_t* keys, const Elements& a, const Elements& b) const;

  KeySet a_, b_;
  Kept kept_;
  CpuExecutor executor_;
  std::vector<std::int64_t> cuts_a_, cuts_b_;  ///< part p of either set holds the same range of keys
  std::vector<std::int64_t> starts_;           ///< where the merged keys of each part begin, and their number
};

}  // namespace lacewing::structure
