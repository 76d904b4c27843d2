// The edges of a product as each role sees them that has a list of batch rows: sorted once, stably, by that list.
// Torch-free.
//
// One array of int32 or int64 holds for each list role in turn: list (edges), segments (batch rows + 1), and order
// (edges) where the list is not sorted already.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/form.h"

namespace lacewing::structure {

/// Everything about the array but its integers.
struct EdgeViews {
  std::int64_t edges = 1;
  bool wide = false;
  std::vector<kernels::BatchMap> map;  ///< of each role
  std::vector<std::int64_t> batch;     ///< of each role: its batch rows
  std::int64_t sorted = 0;             ///< bit r: the list of role r is sorted, and has no order

  std::int64_t length() const;

  /// The edges as `view` sees them, and the list of each factor (factor f is role `factors[f]`).
  void read(const void* array, int view, std::span<const int> factors, kernels::FormArgs& args) const;
};

/// Fills in wide and sorted of `views`. lists[r] has `edges` entries below batch[r] where role r has a list.
void build_edge_views(const std::vector<const std::int64_t*>& lists, EdgeViews& views,
                      const std::function<void*(std::int64_t length, bool wide)>& allocate);

}  // namespace lacewing::structure
