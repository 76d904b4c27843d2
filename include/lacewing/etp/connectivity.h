// Builders of sparse patterns. Threads may call every function here at once.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/pattern.h>
#include <lacewing/export.h>

namespace lacewing::etp {

/// Every output has `degree` distinct random inputs (every input `degree` distinct outputs with `fan_out`). Sorted by
/// column (by row). Without `self`, entry (i, i) is left out. The same seed gives the same pattern everywhere.
LACEWING_API SparsePattern fixed_degree(std::int64_t inputs, std::int64_t outputs, std::int64_t degree,
                                        std::uint64_t seed, bool fan_out = false, bool self = true);

/// Watts-Strogatz: a ring on which every neuron hears its `degree` (even) nearest, and each connection moves to a
/// random distinct source with probability `rewire`. No neuron hears itself.
LACEWING_API SparsePattern small_world(std::int64_t neurons, std::int64_t degree, double rewire, std::uint64_t seed);

/// A pattern with the values of its file; 1 where it has none.
struct LoadedMatrix {
  SparsePattern pattern;
  at::Tensor values;  ///< (nse,) float64
};

/// A Matrix Market file (coordinate; real, integer or pattern; general): rows are inputs, columns are outputs.
LACEWING_API LoadedMatrix read_mtx(const std::string& path);

}  // namespace lacewing::etp
