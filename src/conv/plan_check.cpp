#include "conv/plan_check.h"

namespace lacewing::conv {
namespace {

/// One side of a plan: its rows, their sorted order (null: the identity) and its tiles.
struct Side {
  const char* name;
  const std::int32_t* rows;
  const std::int32_t* order;
  const std::int32_t* tiles;
  Coordinates coordinates;

  std::string flaw(const PlanMeta& meta) const {
    const std::int64_t count = coordinates.rows;
    std::vector<std::int32_t> position(static_cast<std::size_t>(count), -1);
    for (std::int64_t p = 0; p < count; ++p) {
      const std::int64_t row = order == nullptr ? p : order[p];
      if (row < 0 || row >= count || position[static_cast<std::size_t>(row)] >= 0) {
        return std::string("its ") + name + " order is not a permutation";
      }
      position[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(p);
    }
    const std::int64_t tile_count = PlanMeta::tiles(count);
    for (std::int64_t tap = 0; tap < meta.taps; ++tap) {
      const std::string of_tap = " of tap " + std::to_string(tap);
      const std::int64_t begin = meta.tap_offsets[static_cast<std::size_t>(tap)];
      const std::int64_t pairs = meta.tap_offsets[static_cast<std::size_t>(tap) + 1] - begin;
      const std::int32_t* const table = tiles + tap * (tile_count + 1);
      if (table[0] != 0 || table[tile_count] != pairs || !std::is_sorted(table, table + tile_count + 1)) {
        return std::string("the ") + name + " tiles" + of_tap + " do not cover its pairs";
      }
      std::int64_t last = -1;
      std::int64_t tile = 0;
      for (std::int64_t i = 0; i < pairs; ++i) {
        const std::int64_t row = rows[begin + i];
        if (row < 0 || row >= count) {
          return std::string(name) + " row " + std::to_string(row) + of_tap + " is out of range";
        }
        const std::int64_t at = position[static_cast<std::size_t>(row)];
        while (i >= table[tile + 1]) {
          ++tile;
        }
        if (at <= last || at / kernels::kConvTileRows != tile) {
          return std::string("the ") + name + " rows" + of_tap + " are out of order";
        }
        last = at;
      }
    }
    return {};
  }
};

/// fine = stride * coarse + dilation * (tap - (kernel - 1) / 2) for every pair, and the same batch item.
std::string relation_flaw(const PlanMeta& meta, const Side& fine, const Side& coarse, const Geometry& geometry) {
  for (std::int64_t tap = 0; tap < meta.taps; ++tap) {
    std::array<std::int64_t, kMaxAxes> offset{};
    std::int64_t rest = tap;
    for (int axis = geometry.axes - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      offset[a] = geometry.offset(axis, rest % geometry.kernel[a]);
      rest /= geometry.kernel[a];
    }
    for (std::int64_t i = meta.tap_offsets[static_cast<std::size_t>(tap)];
         i < meta.tap_offsets[static_cast<std::size_t>(tap) + 1]; ++i) {
      const std::int32_t* const from = fine.coordinates.row(fine.rows[i]);
      const std::int32_t* const to = coarse.coordinates.row(coarse.rows[i]);
      bool holds = from[0] == to[0];
      for (int axis = 0; axis < geometry.axes; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        holds = holds && from[axis + 1] == geometry.stride[a] * to[axis + 1] + offset[a];
      }
      if (!holds) {
        return "voxels " + row_text(fine.coordinates, fine.rows[i]) + " and " +
               row_text(coarse.coordinates, coarse.rows[i]) + " are not a pair of tap " + std::to_string(tap);
      }
    }
  }
  return {};
}

}  // namespace

std::string plan_flaw(const PlanMeta& meta, const std::int32_t* array, const Coordinates& source,
                      const Coordinates& target, const Geometry& geometry) {
  const PlanParts<const std::int32_t> parts(meta, array);
  const bool back = meta.has(PlanMeta::reversed);
  const Side fine{"fine", parts.fine, parts.fine_order, parts.fine_tiles, back ? target : source};
  const Side coarse{"coarse", parts.coarse, parts.coarse_order, parts.coarse_tiles, back ? source : target};
  for (const Side* const side : {&fine, &coarse}) {
    if (std::string flaw = side->flaw(meta); !flaw.empty()) {
      return flaw;
    }
  }
  return relation_flaw(meta, fine, coarse, geometry);
}

}  // namespace lacewing::conv
