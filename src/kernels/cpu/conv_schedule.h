// How a convolution is cut into tasks and what scratch it needs: pure functions of the sizes, so that the workspace can
// be told beforehand. No cut that changes an order of summation depends on the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/conv.h"

namespace lacewing::kernels::cpu {

struct ConvSchedule {
  bool depthwise = false;
  bool packs_weight = false;        ///< a piece of a tap's weight is copied to scratch, widened or transposed
  bool widens = false;              ///< rows are widened into scratch, outputs summed in a buffer of floats
  std::int64_t tile_rows = 0;       ///< outputs of a task, a multiple of kConvTileRows
  std::int64_t weight_scratch = 0;  ///< elements of the accumulate type for each thread: a piece of a tap's weight,
  std::int64_t scratch = 0;         ///< and all, with the widened rows
  std::int64_t sums = 0;            ///< elements of the buffer of floats, shared
  std::int64_t element_size = 4;    ///< of the accumulate type

  std::int64_t workspace(int threads) const { return (scratch * threads + sums) * element_size; }
};

/// Input channels and columns of a piece of a tap's weight: it stays in the second-level cache while the pairs of a
/// tile pass by.
inline constexpr std::int64_t kConvDepth = 256;
inline constexpr std::int64_t kConvMostColumns = 256;
inline constexpr std::int64_t conv_columns(std::int64_t element_size) { return kConvMostColumns * 4 / element_size; }
/// Rows whose addresses are gathered, or which are widened, at a time.
inline constexpr std::int64_t kConvPackedRows = 96;

inline ConvSchedule schedule_conv(const ConvArgs& args) {
  ConvSchedule schedule;
  schedule.widens = args.type == ScalarType::f16 || args.type == ScalarType::bf16;
  schedule.element_size = args.type == ScalarType::f64 ? 8 : 4;
  schedule.depthwise = args.in == 1 && args.out == 1;
  schedule.packs_weight = schedule.widens || (args.transposed && !schedule.depthwise);
  schedule.tile_rows = 2048;  // a weight that is copied, or comes from memory, pays over so many rows
  const std::int64_t depth = schedule.depthwise ? args.groups : std::min(args.in, kConvDepth);
  if (schedule.packs_weight) {
    const std::int64_t columns = std::min(args.out, conv_columns(schedule.element_size));
    schedule.weight_scratch = schedule.depthwise ? depth : depth * columns;
  }
  schedule.scratch = schedule.weight_scratch + (schedule.widens ? kConvPackedRows * depth : 0);
  schedule.sums = schedule.widens ? args.map.target_rows * args.groups * args.out : 0;
  return schedule;
}

/// Each worker owns rows of the gradient (tap, group, input channel) and sweeps over all tiles: no partial sums, and
/// the order of a sum depends on the tiles alone.
struct WeightGradSchedule {
  bool widens = false;
  std::int64_t tile_rows = 0;
  std::int64_t matrix = 0;   ///< elements of a tap's weight, all groups
  std::int64_t scratch = 0;  ///< elements of the accumulate type for each thread
  std::int64_t sums = 0;     ///< elements of the buffer of floats, shared
  std::int64_t element_size = 4;

  std::int64_t workspace(int threads) const { return (scratch * threads + sums) * element_size; }
};

/// The most pairs whose rows are read at a time. A block of the gradient is loaded and stored once for all of them;
/// their rows stay in the second-level cache.
inline constexpr std::int64_t kConvPairBlock = 256;

inline WeightGradSchedule schedule_weight_grad(const ConvWeightGradArgs& args) {
  WeightGradSchedule schedule;
  schedule.widens = args.type == ScalarType::f16 || args.type == ScalarType::bf16;
  schedule.element_size = args.type == ScalarType::f64 ? 8 : 4;
  schedule.matrix = args.groups * args.in * args.out;
  // A tile's rows stay in cache over all taps; a large gradient is loaded and stored once for each tile.
  schedule.tile_rows = schedule.matrix >= 256 * 256 ? 4096 : schedule.matrix >= 128 * 128 ? 2048 : 1024;
  schedule.scratch = schedule.widens ? kConvPairBlock * args.groups * (args.in + args.out) : 0;
  schedule.sums = schedule.widens ? args.map.taps * schedule.matrix : 0;
  return schedule;
}

}  // namespace lacewing::kernels::cpu
