// The relation between fine and coarse voxels:  fine = stride*coarse + dilation*(tap - (kernel-1)/2), per axis.
// Torch-free.
#pragma once

#include <array>
#include <cstdint>

#include "conv/voxels.h"

namespace lacewing::conv {

struct Geometry {
  using PerAxis = std::array<std::int64_t, kMaxAxes>;

  int axes = 0;
  PerAxis kernel{1, 1, 1, 1};
  PerAxis stride{1, 1, 1, 1};
  PerAxis dilation{1, 1, 1, 1};

  std::int64_t taps() const {
    std::int64_t product = 1;
    for (int a = 0; a < axes; ++a) {
      product *= kernel[static_cast<std::size_t>(a)];
    }
    return product;
  }

  /// fine - stride*coarse along one axis, for the tap's index along that axis.
  std::int64_t offset(int axis, std::int64_t tap) const {
    const auto a = static_cast<std::size_t>(axis);
    return dilation[a] * (tap - (kernel[a] - 1) / 2);
  }

  bool unit_stride() const {
    for (int a = 0; a < axes; ++a) {
      if (stride[static_cast<std::size_t>(a)] != 1) {
        return false;
      }
    }
    return true;
  }

  /// Whether taps come in pairs of opposite offsets around a middle one.
  bool symmetric() const {
    for (int a = 0; a < axes; ++a) {
      if (kernel[static_cast<std::size_t>(a)] % 2 == 0) {
        return false;
      }
    }
    return unit_stride();
  }
};

/// The unique floor(fine / stride), sorted.
OwnedCoordinates strided_targets(const Coordinates& fine, const Geometry& geometry, const CpuExecutor& executor);

/// Every coarse voxel that some fine voxel reaches, sorted. Throws where one does not fit int32.
OwnedCoordinates reachable_coarse(const Coordinates& fine, const Geometry& geometry, const CpuExecutor& executor);

/// Every fine voxel that some coarse voxel reaches, sorted. Throws where one does not fit int32.
OwnedCoordinates reachable_fine(const Coordinates& coarse, const Geometry& geometry, const CpuExecutor& executor);

}  // namespace lacewing::conv
