// Kernel maps by sorting and merging. Torch-free.
#pragma once

#include <functional>

#include "conv/geometry.h"
#include "conv/plan.h"

namespace lacewing::conv {

/// Gives the memory of a plan's array: so many int32.
using Allocate = std::function<std::int32_t*(std::int64_t length)>;

/// The plan of all pairs with fine = stride*coarse + dilation*(tap - (kernel-1)/2). Both sets must be distinct voxels.
/// `same` says that fine and coarse are the same rows. Throws std::invalid_argument for coordinates that repeat, are of
/// a negative batch item, or do not fit the packing.
///
/// Sorted coarse voxels give sorted queries for every tap, so a column of taps (those that differ on the last axis
/// only) is one pass of two pointers; a map that is symmetric needs half of the columns.
PlanMeta build_map(const Coordinates& fine, const Coordinates& coarse, const Geometry& geometry, bool same,
                   const Allocate& allocate, const CpuExecutor& executor);

}  // namespace lacewing::conv
