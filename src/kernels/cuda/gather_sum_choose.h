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

struct GatherSumSizes {
  std::int64_t rows = 0;
  std::int64_t terms = 0;
  std::int64_t batch = 1;
  std::int64_t channels = 1;
  std::int64_t gathered_rows = 0;
  std::int64_t element_bytes = 4;
  std::int64_t index_bytes = 4;
  std::int64_t vector_width = 1;  ///< elements of a vector of 16 bytes; 1 where the memory does not allow it
  std::int64_t cache_bytes = 0;
};

struct GatherSumChoice {
  bool over_terms = false;  ///< four lanes share the terms of an element, instead of the channels of a row
  int width = 1;            ///< elements of a lane
  int lane_bits = 0;        ///< 2^lane_bits lanes own a row
  std::int64_t channel_blocks = 1;
  std::int64_t spans = 0;

  bool operator==(const GatherSumChoice&) const = default;
};

/// A slice of the gathered rows stays in the cache where it is smaller than it: then the passes over the structure are
/// paid for by what is read from the cache instead of from memory.
inline double gather_sum_cost(const GatherSumSizes& sizes, std::int64_t block_channels, std::int64_t blocks) {
  constexpr double kCacheSpeed = 2.0;  // of memory's
  const double slice = static_cast<double>(sizes.gathered_rows * block_channels * sizes.element_bytes);
  const double kept = std::min(1.0, 0.75 * static_cast<double>(sizes.cache_bytes) / std::max(slice, 1.0));
  const double gathered = static_cast<double>(sizes.terms * sizes.channels * sizes.element_bytes);
  const double structure = static_cast<double>(sizes.terms * (sizes.index_bytes + sizes.element_bytes) * blocks);
  return structure + gathered * (kept / kCacheSpeed + (1.0 - kept));
}

inline GatherSumChoice choose_gather_sum(const GatherSumSizes& sizes) {
  constexpr int kMostLaneBits = 5;
  constexpr std::int64_t kLongMean = 6;     // terms of a row that are worth four lanes
  constexpr std::int64_t kLeastSlice = 64;  // bytes of a row that one pass gathers
  constexpr std::int64_t kFewChannels = 4;
  GatherSumChoice choice;
  choice.spans = spans_of(sizes.terms);
  choice.over_terms = sizes.channels < kFewChannels && sizes.terms >= kLongMean * sizes.rows;
  choice.width = static_cast<int>(sizes.vector_width);
  const std::int64_t vectors = (sizes.channels + choice.width - 1) / choice.width;
  while (choice.lane_bits < kMostLaneBits && (std::int64_t{1} << choice.lane_bits) < vectors) {
    ++choice.lane_bits;
  }
  const auto blocks_at = [&](int bits) { return (vectors + (std::int64_t{1} << bits) - 1) >> bits; };
  const auto cost_at = [&](int bits) {
    return gather_sum_cost(sizes, std::min(sizes.channels, choice.width * (std::int64_t{1} << bits)), blocks_at(bits));
  };
  for (int bits = choice.lane_bits - 1; bits >= 0 && (choice.width * sizes.element_bytes << bits) >= kLeastSlice;
       --bits) {
    choice.lane_bits = cost_at(bits) < cost_at(choice.lane_bits) ? bits : choice.lane_bits;
  }
  choice.channel_blocks = blocks_at(choice.lane_bits);
  return choice;
}

}  // namespace lacewing::kernels::cuda
