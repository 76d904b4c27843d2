#include "conv/geometry.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace lacewing::conv {
namespace {

std::int64_t floor_divide(std::int64_t value, std::int64_t divisor) {
  const std::int64_t quotient = value / divisor;
  return quotient - (value % divisor < 0 ? 1 : 0);
}

/// Whether a derived coordinate exists; throws where it does not fit.
std::int32_t checked(std::int64_t value, int axis) {
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("a reachable voxel has the coordinate " + std::to_string(value) + " on axis " +
                                std::to_string(axis) + ", which does not fit int32");
  }
  return static_cast<std::int32_t>(value);
}

/// The reach of a box-shaped kernel is the product of its axes: one axis at a time, with the duplicates removed
/// between. f(value, emit) calls emit for each coordinate that a voxel reaches on the axis.
template <typename PerValue>
OwnedCoordinates along_axes(const Coordinates& from, const CpuExecutor& executor, PerValue&& f) {
  OwnedCoordinates current;
  current.axes = from.axes;
  current.values.assign(from.data, from.data + from.rows * (from.axes + 1));
  for (int axis = 0; axis < from.axes; ++axis) {
    std::vector<std::int32_t> reached;
    reached.reserve(current.values.size());
    const Coordinates view = current.view(from.name);
    for (std::int64_t r = 0; r < view.rows; ++r) {
      const std::int32_t* const row = view.row(r);
      f(axis, static_cast<std::int64_t>(row[axis + 1]), [&](std::int64_t value) {
        reached.insert(reached.end(), row, row + from.axes + 1);
        *(reached.end() - from.axes + axis) = checked(value, axis);
      });
    }
    current.values = std::move(reached);
    current = unique_voxels(current.view(from.name), executor).coordinates;
  }
  return current;
}

}  // namespace

OwnedCoordinates strided_targets(const Coordinates& fine, const Geometry& geometry, const CpuExecutor& executor) {
  OwnedCoordinates coarse;
  coarse.axes = fine.axes;
  coarse.values.resize(static_cast<std::size_t>(fine.rows * (fine.axes + 1)));
  executor.parallel_for(0, fine.rows, 16384, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int32_t* const from = fine.row(r);
      std::int32_t* const to = coarse.values.data() + r * (fine.axes + 1);
      to[0] = from[0];
      for (int a = 0; a < fine.axes; ++a) {
        to[a + 1] = static_cast<std::int32_t>(floor_divide(from[a + 1], geometry.stride[static_cast<std::size_t>(a)]));
      }
    }
  });
  return unique_voxels(coarse.view(fine.name), executor).coordinates;
}

OwnedCoordinates reachable_coarse(const Coordinates& fine, const Geometry& geometry, const CpuExecutor& executor) {
  bounds(fine, executor);
  return along_axes(fine, executor, [&](int axis, std::int64_t value, auto&& emit) {
    const auto a = static_cast<std::size_t>(axis);
    for (std::int64_t tap = 0; tap < geometry.kernel[a]; ++tap) {
      const std::int64_t scaled = value - geometry.offset(axis, tap);
      if (scaled % geometry.stride[a] == 0) {
        emit(scaled / geometry.stride[a]);
      }
    }
  });
}

OwnedCoordinates reachable_fine(const Coordinates& coarse, const Geometry& geometry, const CpuExecutor& executor) {
  bounds(coarse, executor);
  return along_axes(coarse, executor, [&](int axis, std::int64_t value, auto&& emit) {
    const auto a = static_cast<std::size_t>(axis);
    for (std::int64_t tap = 0; tap < geometry.kernel[a]; ++tap) {
      emit(geometry.stride[a] * value + geometry.offset(axis, tap));
    }
  });
}

}  // namespace lacewing::conv
