// The layout of the tables of conv_tables.cu.
//
// For each part of the taps the target rows are sorted by which of its taps have a source there, so that neighbours
// need the same taps; rows that have none of them come first. A tile of rows then skips the taps that none of its
// groups needs. No choice here changes a sum: products are added in the order of the taps, and a tap without a source
// adds zeros.
#pragma once

#include <cstdint>

#include "kernels/conv_device.h"
#include "kernels/cuda/device/workspace.h"

namespace lacewing::kernels::cuda {

/// Taps are bits of words.
inline constexpr std::int64_t kWordTaps = 32;
/// Rows that a warp of the small kernel owns; the taps that they need are one set.
inline constexpr std::int64_t kConvSetRows = 32;
/// Rows that a warpgroup owns: two such sets.
inline constexpr std::int64_t kConvGroupRows = 64;

/// A tile is one set, or some groups.
enum class ConvTile : int { one_set, two_groups, three_groups };
inline constexpr int kConvTiles = 3;

constexpr std::int64_t conv_tile_rows(ConvTile tile) {
  return tile == ConvTile::one_set ? kConvSetRows : kConvGroupRows * (tile == ConvTile::two_groups ? 2 : 3);
}

/// A tile, and the taps of one word that each of its groups (or its set) needs.
struct alignas(16) TileTaps {
  static constexpr int kMostGroups = 3;
  std::int32_t tile;
  std::uint32_t taps[kMostGroups];
};

struct ConvTables {
  static constexpr int kMostParts = 2;

  struct Part {
    std::int64_t first_tap = 0;
    std::int64_t taps = 0;
    Slot<std::int32_t> rows;       ///< (padded_rows): the target at each sorted place, or -1
    Slot<std::uint32_t> set_taps;  ///< (padded_rows / kConvSetRows, words): the taps of this part that a set needs
    Slot<std::uint32_t> begun;     ///< (padded_rows / kConvSetRows): which of a set's rows have taps in earlier parts
    Slot<TileTaps> tiles;          ///< for each kind of tile (its tiles, words): those with more to do first
  };

  ConvTableSizes sizes;
  std::int64_t padded_rows = 0;  ///< whole tiles of each kind
  std::int64_t words = 0;
  Slot<std::int32_t> sources;    ///< (taps, padded_rows): of the target at each place of the tap's part, or -1
  Slot<std::uint32_t> row_taps;  ///< (rows, words): the taps that have a source
  Part parts[kMostParts];
  std::int64_t bytes = 0;

  explicit ConvTables(const ConvTableSizes& given)
      : sizes(given),
        padded_rows((given.rows + kWholeTiles - 1) / kWholeTiles * kWholeTiles),
        words((given.taps + kWordTaps - 1) / kWordTaps) {
    WorkspaceLayout layout;
    sources = layout.add<std::int32_t>(sizes.taps * padded_rows);
    row_taps = layout.add<std::uint32_t>(sizes.rows * words);
    for (int p = 0; p < sizes.parts; ++p) {
      Part& part = parts[p];
      part.first_tap = first_tap(p);
      part.taps = first_tap(p + 1) - part.first_tap;
      part.rows = layout.add<std::int32_t>(padded_rows);
      part.set_taps = layout.add<std::uint32_t>(padded_rows / kConvSetRows * words);
      part.begun = layout.add<std::uint32_t>(padded_rows / kConvSetRows);
      part.tiles = layout.add<TileTaps>(first_tile(kConvTiles) * words);
    }
    bytes = layout.bytes();
  }

  std::int64_t tiles(ConvTile tile) const { return padded_rows / conv_tile_rows(tile); }
  /// Tiles of the kinds before.
  std::int64_t first_tile(int kind) const {
    std::int64_t count = 0;
    for (int k = 0; k < kind; ++k) {
      count += tiles(static_cast<ConvTile>(k));
    }
    return count;
  }
  std::int64_t first_tap(int part) const { return sizes.taps * part / sizes.parts; }
  const TileTaps* tiles_at(const void* memory, int part, ConvTile tile) const {
    return parts[part].tiles.at(const_cast<void*>(memory)) + first_tile(static_cast<int>(tile)) * words;
  }

 private:
  static constexpr std::int64_t kWholeTiles = 6 * kConvGroupRows;
};

}  // namespace lacewing::kernels::cuda
