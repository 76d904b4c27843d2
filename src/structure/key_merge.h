// Merging two coalesced index sets, given by their linear keys. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <lacewing/executor.h>

#include "kernels/elements.h"

namespace lacewing::structure {

/// A coalesced set: keys that increase strictly.
struct KeySet {
  const std::int64_t* keys = nullptr;
  std::int64_t count = 0;
};

using kernels::Combine;
using kernels::Elements;

/// The union or the intersection of two sets, in order. It is counted first, so that its arrays have the right size.
class KeyMerge {
 public:
  enum class Kept : int { all, common };

  KeyMerge(KeySet a, KeySet b, Kept kept, const CpuExecutor& executor);

  std::int64_t count() const { return starts_.back(); }
  /// The keys, and where each lies in either set, or -1.
  void write(std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b) const;
  /// The keys, and the elements of both sets. Elements have 1, 2, 4, 8 or 16 bytes.
  void write(std::int64_t* keys, const Elements& a, const Elements& b, std::int64_t element_bytes, void* a_out,
             void* b_out) const;
  /// The keys, and what is made of each pair of elements: float, or double where they are wide.
  void write(std::int64_t* keys, const Elements& a, const Elements& b, Combine combine, bool wide, void* out) const;

 private:
  /// Places in the two parts of a key that both have.
  struct Match {
    std::int64_t in_a, in_b;
  };

  std::int64_t parts() const { return static_cast<std::int64_t>(cuts_a_.size()) - 1; }
  template <typename Make, typename Done>
  void walk_parts(const Make& make, const Done& done) const;
  template <typename Make>
  void visit_kept(const Make& make) const;
  template <typename Element>
  void write_elements(std::int64_t* keys, const Elements& a, const Elements& b, void* a_out, void* b_out) const;
  template <typename Number, typename F>
  void write_combined(std::int64_t* keys, const Elements& a, const Elements& b, void* out, const F& f) const;
  template <typename Number>
  void write_numbers(std::int64_t* keys, const Elements& a, const Elements& b, Combine combine, void* out) const;

  KeySet a_, b_;
  Kept kept_;
  CpuExecutor executor_;
  std::vector<std::int64_t> cuts_a_, cuts_b_;      ///< part p of either set holds the same range of keys
  std::vector<std::int64_t> starts_;               ///< where the merged keys of each part begin, and their number
  std::vector<std::unique_ptr<Match[]>> matches_;  ///< of each part, for an intersection
};

}  // namespace lacewing::structure
