// A convolution plan: the pairs of a kernel map with their tile tables, packed into one int32 array, and its
// description. Torch-free.
//
// The array holds, one after the other:
//   fine rows (pairs), coarse rows (pairs), tap after tap;
//   the rows of the sorted fine and of the sorted coarse voxels, each only where the flags name it (else the identity);
//   the tile tables of the fine and of the coarse side, (taps, tiles + 1) each.
// A plan goes from fine to coarse voxels; a reversed one goes from coarse to fine, over the same array.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/conv.h"

namespace lacewing::conv {

enum class Algorithm : std::int64_t { automatic, tiles, gather_gemm_scatter };

/// Everything about a plan but its array. Crosses the boundary of an op as integers, in this order, with the taps + 1
/// offsets behind.
struct PlanMeta {
  static constexpr std::int64_t reversed = 1;
  static constexpr std::int64_t has_fine_order = 2;
  static constexpr std::int64_t has_coarse_order = 4;
  static constexpr std::size_t header = 7;
  static constexpr std::size_t flags_at = 3;

  std::int64_t fine_rows = 0;
  std::int64_t coarse_rows = 0;
  std::int64_t taps = 0;
  std::int64_t flags = 0;
  std::int64_t identity_tap = -1;
  std::int64_t longest_tap = 0;  ///< pairs of the tap with the most, the identity tap left out
  std::int64_t algorithm = 0;
  std::vector<std::int64_t> tap_offsets{0};

  std::vector<std::int64_t> to_vector() const {
    std::vector<std::int64_t> values{fine_rows, coarse_rows, taps, flags, identity_tap, longest_tap, algorithm};
    values.insert(values.end(), tap_offsets.begin(), tap_offsets.end());
    return values;
  }
  /// `values` must have passed valid().
  static PlanMeta from(std::span<const std::int64_t> v) {
    return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], {v.begin() + header, v.end()}};
  }
  /// Whether these integers can be a description.
  static bool valid(std::span<const std::int64_t> v) {
    constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
    constexpr std::int64_t kAllFlags = reversed | has_fine_order | has_coarse_order;
    if (v.size() <= header || v[0] < 0 || v[0] > kMostRows || v[1] < 0 || v[1] > kMostRows || v[2] < 0 ||
        v.size() - header - 1 != static_cast<std::size_t>(v[2]) || (v[3] & ~kAllFlags) != 0 || v[4] < -1 ||
        v[4] >= v[2] || v[6] < 0 || v[6] > 2 || v[header] != 0) {
      return false;
    }
    std::int64_t longest = 0;
    for (std::int64_t tap = 0; tap < v[2]; ++tap) {
      const std::int64_t* const offset = v.data() + header + tap;
      // In this order: a difference of offsets that ascend does not overflow.
      if (offset[1] < offset[0] || offset[1] - offset[0] > std::min(v[0], v[1])) {
        return false;
      }
      const std::int64_t pairs = offset[1] - offset[0];
      if (tap == v[4] && (v[0] != v[1] || pairs != v[0])) {
        return false;
      }
      longest = tap == v[4] ? longest : std::max(longest, pairs);
    }
    return v[5] == longest;
  }

  bool has(std::int64_t flag) const { return (flags & flag) != 0; }
  std::int64_t pairs() const { return tap_offsets.back(); }
  std::int64_t source_rows() const { return has(reversed) ? coarse_rows : fine_rows; }
  std::int64_t target_rows() const { return has(reversed) ? fine_rows : coarse_rows; }

  template <typename Number>
  static Number tiles(const Number& rows) {
    return (rows + (kernels::kConvTileRows - 1)) / kernels::kConvTileRows;
  }
  /// Elements of the array of a plan with these numbers, which may be symbols.
  template <typename Number>
  static Number length(const Number& fine, const Number& coarse, const Number& taps, const Number& pairs,
                       std::int64_t flags) {
    Number length = pairs * 2 + taps * (tiles(fine) + tiles(coarse) + 2);
    length = (flags & has_fine_order) != 0 ? length + fine : length;
    return (flags & has_coarse_order) != 0 ? length + coarse : length;
  }
  std::int64_t length() const { return length(fine_rows, coarse_rows, taps, pairs(), flags); }
  PlanMeta with(Algorithm pinned) const {
    PlanMeta meta = *this;
    meta.algorithm = static_cast<std::int64_t>(pinned);
    return meta;
  }
  PlanMeta reverse() const {
    PlanMeta meta = *this;
    meta.flags ^= reversed;
    return meta;
  }
};

/// Where the parts of a plan's array lie.
template <typename Index>
struct PlanParts {
  Index* fine;
  Index* coarse;
  Index* fine_order;
  Index* coarse_order;
  Index* fine_tiles;
  Index* coarse_tiles;

  PlanParts(const PlanMeta& meta, Index* array) {
    const auto take = [&](bool present, std::int64_t count) -> Index* {
      return present ? std::exchange(array, array + count) : nullptr;
    };
    fine = take(true, meta.pairs());
    coarse = take(true, meta.pairs());
    fine_order = take(meta.has(PlanMeta::has_fine_order), meta.fine_rows);
    coarse_order = take(meta.has(PlanMeta::has_coarse_order), meta.coarse_rows);
    fine_tiles = take(true, meta.taps * (PlanMeta::tiles(meta.fine_rows) + 1));
    coarse_tiles = take(true, meta.taps * (PlanMeta::tiles(meta.coarse_rows) + 1));
  }
};

/// The kernels' view of a plan. `meta` must outlive it.
inline kernels::ConvMap map_of(const PlanMeta& meta, const std::int32_t* array) {
  const PlanParts<const std::int32_t> parts(meta, array);
  const bool back = meta.has(PlanMeta::reversed);
  kernels::ConvMap map;
  map.source_rows = meta.source_rows();
  map.target_rows = meta.target_rows();
  map.taps = meta.taps;
  map.tap_offsets = meta.tap_offsets.data();
  map.source = back ? parts.coarse : parts.fine;
  map.target = back ? parts.fine : parts.coarse;
  map.target_order = back ? parts.fine_order : parts.coarse_order;
  map.target_tiles = back ? parts.fine_tiles : parts.coarse_tiles;
  map.identity_tap = meta.identity_tap;
  return map;
}

}  // namespace lacewing::conv
