// Voxel coordinates as packed 64-bit keys, whose order is the lexicographic order of (batch, axis 0, axis 1, ...).
// Torch-free. Bad coordinates throw std::invalid_argument with the sentence's end; the caller names the op.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing::conv {

inline constexpr int kMaxAxes = 4;

/// Rows of (batch, axis 0, ..., axis axes-1), dense, int32.
struct Coordinates {
  const std::int32_t* data = nullptr;
  std::int64_t rows = 0;
  int axes = 0;
  const char* name = "coordinates";  ///< in error messages

  const std::int32_t* row(std::int64_t r) const { return data + r * (axes + 1); }
};

/// Coordinates that the builder made, in sorted order.
struct OwnedCoordinates {
  std::vector<std::int32_t> values;
  int axes = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(values.size()) / (axes + 1); }
  Coordinates view(const char* name) const { return {values.data(), rows(), axes, name}; }
};

/// "(0, 3, -1)"
std::string row_text(const Coordinates& coordinates, std::int64_t row);

/// The least and greatest value of each column (batch first), in 64 bits so that neighbours of extreme voxels fit.
struct Box {
  std::array<std::int64_t, kMaxAxes + 1> low{};
  std::array<std::int64_t, kMaxAxes + 1> high{};
  bool empty = true;

  void include(const Box& other, int axes);
};

/// Throws where a batch index is negative.
Box bounds(const Coordinates& coordinates, const CpuExecutor& executor);

/// How the columns share the bits of a key: each gets as many as its range needs.
struct Packing {
  static constexpr int kMostBits = 63;  ///< the largest 64-bit value stays free as a sentinel

  std::array<std::int64_t, kMaxAxes + 1> low{};
  std::array<int, kMaxAxes + 1> shift{};
  int bits = 0;

  /// Throws where the ranges need more than kMostBits.
  Packing(const Box& box, int axes);

  std::uint64_t field(int column, std::int64_t value) const {
    return static_cast<std::uint64_t>(value - low[static_cast<std::size_t>(column)])
           << shift[static_cast<std::size_t>(column)];
  }
};

/// Sorted keys, followed by one sentinel that exceeds every key, and the row that each came from.
struct SortedKeys {
  static constexpr std::uint64_t sentinel = ~std::uint64_t{0};

  std::unique_ptr<std::uint64_t[]> keys;
  std::unique_ptr<std::int32_t[]> rows;  ///< null where the coordinates lie sorted already
  std::int64_t count = 0;
};

/// Keys of (batch, scale[0]*axis 0, ...). Throws at the first coordinates that occur twice, where `distinct`.
SortedKeys sort_keys(const Coordinates& coordinates, const Packing& packing,
                     const std::array<std::int64_t, kMaxAxes>& scale, bool distinct, const CpuExecutor& executor);

/// Distinct coordinates in sorted order, with the row of the result that each given row went to.
struct UniqueVoxels {
  OwnedCoordinates coordinates;
  std::vector<std::int32_t> first;    ///< (unique rows): the first given row of each
  std::vector<std::int64_t> inverse;  ///< (given rows)
};
UniqueVoxels unique_voxels(const Coordinates& coordinates, const CpuExecutor& executor);

}  // namespace lacewing::conv
