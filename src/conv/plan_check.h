// Whether a plan that comes from a file is one. Torch-free.
#pragma once

#include <string>

#include "conv/geometry.h"
#include "conv/plan.h"

namespace lacewing::conv {

/// What is wrong with a plan's array in host memory, as the end of a sentence, or nothing: rows and tiles are in range
/// and in order, and every pair obeys the relation of the kernel. `meta` must have passed PlanMeta::valid, and the
/// array and the coordinates have the sizes that it says.
std::string plan_flaw(const PlanMeta& meta, const std::int32_t* array, const Coordinates& source,
                      const Coordinates& target, const Geometry& geometry);

}  // namespace lacewing::conv
