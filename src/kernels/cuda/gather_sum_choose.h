// How a sum of gathered rows runs: a function of sizes alone. No choice changes the order of a row's sum.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lacewing::kernels::cuda {

/// Rows of at least twice as many terms are cut into chunks of so many, counted from the row's first term; the last one
/// takes the rest. So a chunk begins in each span of so many terms at most once.
inline constexpr std::int64_t kChunkTerms = 256;

/// Spans in which a chunk of a long row may begin.
inline std::int64_t spans_of(std::int64_t terms) {
  return terms >= 2 * kChunkTerms ? (terms + kChunkTerms - 1) / kChunkTerms : 0;
}

/// Fewer go by tiles.
inline constexpr std::int64_t kFewChannels = 4;
/// Rows and terms of a tile, for sums of so many bytes: what fits a block's shared memory.
template <int SumBytes>
inline constexpr int kTileOf = SumBytes <= 8 ? 2048 : 1024;

struct GatherSumSizes {
  std::int64_t rows = 0;
  std::int64_t terms = 0;
  bool grouped = true;  ///< rows have any number of terms; else one each
  std::int64_t channels = 1;
  std::int64_t gathered_rows = 0;
  std::int64_t element_bytes = 4;
  std::int64_t tile = 0;  ///< kTileOf
  std::int64_t index_bytes = 4;
  std::int64_t vector_width = 1;  ///< elements of a vector of 16 bytes; 1 where the memory does not allow it
  std::int64_t cache_bytes = 0;
  bool numbers_in_order = true;  ///< that of the terms
};

struct GatherSumChoice {
  std::int64_t tile = 0;
  std::int64_t tiles = 0;  ///< of rows and terms, that blocks own, a channel at a time; 0: groups of lanes own rows
  int width = 1;           ///< elements of a lane
  int lane_bits = 0;       ///< 2^lane_bits lanes own a row
  int part_lane_bits = 0;  ///< so many lanes add the chunks of neighbouring channels
  std::int64_t channel_blocks = 1;
  std::int64_t spans = 0;
  bool order_numbers = false;  ///< first, in a pass of their own

  bool operator==(const GatherSumChoice&) const = default;
};

/// The smallest power of two that is not below a count, as its exponent, and at most `most`.
inline int bits_for(std::int64_t count, int most) {
  int bits = 0;
  while (bits < most && (std::int64_t{1} << bits) < count) {
    ++bits;
  }
  return bits;
}

/// Bytes, weighed: a slice of the gathered rows stays in the cache where it is smaller than it, which pays for reading
/// the structure once more. A term costs instructions as well.
inline double gather_sum_cost(const GatherSumSizes& sizes, std::int64_t block_channels, std::int64_t blocks) {
  constexpr double kCacheSpeed = 2.0;  // of memory's
  constexpr double kTermWork = 4.0;
  const double slice = static_cast<double>(sizes.gathered_rows * block_channels * sizes.element_bytes);
  const double kept = std::min(1.0, 0.75 * static_cast<double>(sizes.cache_bytes) / std::max(slice, 1.0));
  const double gathered = static_cast<double>(sizes.terms * sizes.channels * sizes.element_bytes);
  const double structure = static_cast<double>(sizes.terms * (sizes.index_bytes + sizes.element_bytes) * blocks);
  return kTermWork * structure + gathered * (kept / kCacheSpeed + (1.0 - kept));
}

inline GatherSumChoice choose_gather_sum(const GatherSumSizes& sizes) {
  constexpr int kMostLaneBits = 5;
  constexpr std::int64_t kLeastSlice = 64;  // bytes of a row that one pass gathers
  GatherSumChoice choice;
  choice.spans = sizes.grouped ? spans_of(sizes.terms) : 0;
  choice.part_lane_bits = bits_for(sizes.channels, kMostLaneBits);
  if (sizes.channels < kFewChannels) {
    choice.tile = sizes.tile;
    choice.tiles = (sizes.rows + sizes.terms + sizes.tile - 1) / sizes.tile;
    return choice;
  }
  choice.width = static_cast<int>(sizes.vector_width);
  const std::int64_t vectors = (sizes.channels + choice.width - 1) / choice.width;
  choice.lane_bits = bits_for(vectors, kMostLaneBits);
  const auto blocks_at = [&](int bits) { return (vectors + (std::int64_t{1} << bits) - 1) >> bits; };
  const auto cost_at = [&](int bits) {
    return gather_sum_cost(sizes, std::min(sizes.channels, choice.width * (std::int64_t{1} << bits)), blocks_at(bits));
  };
  for (int bits = choice.lane_bits - 1; bits >= 0 && (choice.width * sizes.element_bytes << bits) >= kLeastSlice;
       --bits) {
    choice.lane_bits = cost_at(bits) < cost_at(choice.lane_bits) ? bits : choice.lane_bits;
  }
  choice.channel_blocks = blocks_at(choice.lane_bits);
  choice.order_numbers = !sizes.numbers_in_order && sizes.terms * sizes.element_bytes > sizes.cache_bytes / 16;
  return choice;
}

}  // namespace lacewing::kernels::cuda
