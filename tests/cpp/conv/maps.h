// Clouds and their plans for the torch-free tests.
#pragma once

#include <set>

#include "../kernels/support.h"
#include "conv/kernel_map.h"
#include "kernels/conv.h"

namespace lacewing::kernels::test {

using conv::Coordinates;
using conv::Geometry;
using conv::PlanMeta;

/// Distinct voxels of two batch items around the origin, in random order.
inline std::vector<std::int32_t> random_cloud(Random& random, std::int64_t rows, int axes, std::int64_t extent) {
  std::set<std::vector<std::int32_t>> found;
  std::vector<std::int32_t> flat;
  while (static_cast<std::int64_t>(found.size()) < rows) {
    std::vector<std::int32_t> voxel{static_cast<std::int32_t>(random.below(2))};
    for (int a = 0; a < axes; ++a) {
      voxel.push_back(static_cast<std::int32_t>(random.below(2 * extent) - extent));
    }
    if (found.insert(voxel).second) {
      flat.insert(flat.end(), voxel.begin(), voxel.end());
    }
  }
  return flat;
}

struct Plan {
  PlanMeta meta;
  std::vector<std::int32_t> array;

  ConvMap map() const { return conv::map_of(meta, array.data()); }
};

inline Plan build(const Coordinates& fine, const Coordinates& coarse, const Geometry& geometry, bool same,
                  int threads) {
  Plan plan;
  const auto allocate = [&](std::int64_t length) {
    plan.array.assign(static_cast<std::size_t>(length), -1);
    return plan.array.data();
  };
  plan.meta = conv::build_map(fine, coarse, geometry, same, allocate, backwards_executor(threads));
  return plan;
}

}  // namespace lacewing::kernels::test
