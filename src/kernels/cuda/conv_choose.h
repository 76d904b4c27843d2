// Which kernel and tile a convolution takes on the device: functions of sizes alone. No choice changes the order of a
// sum, but for the chunks of the weight gradient, which follow from a tap's own pairs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/conv_tables.h"

namespace lacewing::kernels::cuda {

/// What half types are multiplied by.
enum class ConvKernel : std::uint8_t {
  none,   ///< no kernel of this kind runs here
  small,  ///< mma.sync, all weights in shared memory
  wgmma,  ///< sm_90a
};

struct ConvSizes {
  std::int64_t rows = 0;  ///< targets
  std::int64_t taps = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  int arch = 0;
  int processors = 0;
  std::int64_t shared_per_block = 0;
};

/// Channels of a row that lie side by side in shared memory: 128 bytes.
inline constexpr int kConvBlockChannels = 64;
/// Channels that a kernel reads or writes at once: 16 bytes.
inline constexpr int kConvVectorChannels = 8;

/// A tile's stages in shared memory, blocks of a processor, and registers of the warpgroups that multiply and copy (0:
/// an equal share).
struct WgmmaShape {
  int stages;
  int blocks;
  int multiply_registers = 0;
  int copy_registers = 0;

  bool operator==(const WgmmaShape&) const = default;
};

/// Whether so many warpgroups that multiply and one that copies find their registers. A block moves those that it began
/// with, an equal share for each thread in steps of eight: asking for more waits forever.
constexpr bool registers_fit(const WgmmaShape& shape, int multipliers) {
  constexpr int kRegisters = 65536;
  const int share = kRegisters / (shape.blocks * (multipliers + 1) * 128) / 8 * 8;
  return multipliers * shape.multiply_registers + shape.copy_registers <= (multipliers + 1) * share;
}

/// For tiles of so many groups of 64 rows and so many columns.
constexpr WgmmaShape wgmma_shape(int groups, int columns) {
  if (columns == 64) {
    return {4, 2};
  }
  if (columns == 128) {
    return groups == 2 ? WgmmaShape{6, 1} : WgmmaShape{5, 1};
  }
  return {4, 1, 208, 88};
}

constexpr std::int64_t wgmma_stage_bytes(int groups, int columns) {
  return (groups * kConvGroupRows + columns) * kConvBlockChannels * 2;
}

/// Of the weight gradient, for so many blocks of input channels and so many columns.
constexpr WgmmaShape weight_grad_shape(int blocks, int columns) {
  if (blocks == 1) {
    return columns == 64 ? WgmmaShape{3, 4} : columns == 128 ? WgmmaShape{4, 2} : WgmmaShape{5, 1};
  }
  return columns == 64 ? WgmmaShape{4, 2} : columns == 128 ? WgmmaShape{6, 1} : WgmmaShape{4, 1, 216, 72};
}

/// Of a ring: two barriers for each stage, and room to begin at a multiple of 1024.
constexpr std::int64_t wgmma_ring_bytes(int stages, std::int64_t stage_bytes) {
  return stages * (stage_bytes + 16) + 1024;
}

struct ConvChoice {
  ConvKernel kernel = ConvKernel::none;
  int columns = 0;  ///< of a tile
  ConvTile tile = ConvTile::two_groups;
  int parts = 1;  ///< of the taps: where a tile multiplies much, the sums that a second pass moves cost less than zeros

  bool operator==(const ConvChoice&) const = default;
};

/// Channels that the small kernels take, on either side.
inline constexpr std::int64_t kMostSmallChannels = 32;

/// Whether a side's channels can be read in whole vectors by the small kernels.
constexpr bool is_small_side(std::int64_t channels) {
  return channels == 4 || (channels > 0 && channels <= kMostSmallChannels && channels % kConvVectorChannels == 0);
}

/// What the small kernels pad a side's channels to.
constexpr int padded_small_side(std::int64_t channels, int least) {
  return channels <= least ? least : channels <= 16 ? 16 : 32;
}

/// Bytes of the weights in shared memory: whole steps of 32 products.
constexpr std::int64_t small_weight_bytes(std::int64_t taps, int in, int out) {
  const std::int64_t taps_of_step = 32 / in;
  return (taps + taps_of_step - 1) / taps_of_step * 32 * out * 2;
}

/// What runs where tensor cores are: half types came with mma.sync of sm_80; sm_90a code runs on nothing else.
inline constexpr int kMmaArch = 80;
inline constexpr int kWgmmaArch = 90;

constexpr bool has_wgmma_sides(const ConvSizes& sizes) {
  return sizes.arch == kWgmmaArch && sizes.in > 0 && sizes.out > 0 && sizes.in % kConvVectorChannels == 0 &&
         sizes.out % kConvVectorChannels == 0;
}

inline ConvChoice choose_conv(const ConvSizes& sizes) {
  constexpr std::int64_t kManyTiles = 6;
  constexpr std::int64_t kFewestTapsOfPart = 8;
  ConvChoice choice;
  if (sizes.taps == 0) {
    return choice;
  }
  if (sizes.arch >= kMmaArch && is_small_side(sizes.in) && is_small_side(sizes.out)) {
    const int columns = padded_small_side(sizes.out, 8);
    if (small_weight_bytes(sizes.taps, padded_small_side(sizes.in, 4), columns) <= sizes.shared_per_block) {
      return {ConvKernel::small, columns, ConvTile::one_set, 1};
    }
  }
  if (!has_wgmma_sides(sizes)) {
    return choice;
  }
  choice.kernel = ConvKernel::wgmma;
  choice.columns = sizes.out <= 64 ? 64 : sizes.out <= 128 ? 128 : 256;
  const std::int64_t rows = conv_tile_rows(ConvTile::three_groups);
  const bool many = sizes.rows >= kManyTiles * rows * sizes.processors;
  choice.tile = choice.columns == 128 && many ? ConvTile::three_groups : ConvTile::two_groups;
  choice.parts =
      choice.columns == 256 && sizes.in > 128 && sizes.taps <= kWordTaps && sizes.taps >= 2 * kFewestTapsOfPart ? 2 : 1;
  return choice;
}

inline ConvKernel choose_conv_weight_grad(const ConvSizes& sizes) {
  if (sizes.arch >= kMmaArch && is_small_side(sizes.in) && is_small_side(sizes.out)) {
    return ConvKernel::small;
  }
  return has_wgmma_sides(sizes) ? ConvKernel::wgmma : ConvKernel::none;
}

/// Pairs of a chunk of the weight gradient: by the pairs of its tap and the channels, in whole steps of a kernel. Long
/// chunks leave fewer sums to add, short ones more blocks with work.
constexpr std::int64_t weight_grad_chunk(std::int64_t tap_pairs, std::int64_t in, std::int64_t out) {
  struct Cut {
    std::int64_t step, ways, least, most;
  };
  const std::int64_t block = in * out;
  const Cut cut = block <= 32 * 32     ? Cut{256, 32, 512, 4096}
                  : block <= 64 * 64   ? Cut{64, 32, 512, 2048}
                  : block <= 128 * 128 ? Cut{64, 32, 1024, 3072}
                                       : Cut{64, 16, 1536, 4096};
  const std::int64_t even = (tap_pairs / cut.ways + cut.step - 1) / cut.step * cut.step;
  return std::clamp(even, cut.least, cut.most);
}

}  // namespace lacewing::kernels::cuda
