// How a convolution is cut into tasks and what scratch it needs: pure functions of the sizes, so that the workspace can
// be told beforehand. No cut that changes an order of summation depends on the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/conv.h"

namespace lacewing::kernels::cpu {

struct ConvSchedule {
  bool depthwise = false;
  bool packs_weight = false;      ///< a tap's weight is copied to scratch, widened or transposed
  bool widens = false;            ///< rows are widened into scratch, outputs summed in a buffer of floats
  std::int64_t tile_rows = 0;     ///< outputs of a task, a multiple of kConvTileRows
  std::int64_t scratch = 0;       ///< elements of the accumulate type for each thread
  std::int64_t sums = 0;          ///< elements of the buffer of floats, shared
  std::int64_t element_size = 4;  ///< of the accumulate type

  std::int64_t workspace(int threads) const { return (scratch * threads + sums) * element_size; }
};

/// Rows that are widened at a time.
inline constexpr std::int64_t kConvPackedRows = 48;

inline ConvSchedule schedule_conv(const ConvArgs& args) {
  ConvSchedule schedule;
  schedule.widens = args.type == ScalarType::f16 || args.type == ScalarType::bf16;
  schedule.element_size = args.type == ScalarType::f64 ? 8 : 4;
  schedule.depthwise = args.in == 1 && args.out == 1;
  schedule.packs_weight = schedule.widens || (args.transposed && !schedule.depthwise);
  // Wide channels amortise the weight over more rows; narrow ones keep the tile in the second-level cache.
  const std::int64_t matrix = args.in * args.out;
  schedule.tile_rows = matrix >= 128 * 128 ? 1024 : matrix >= 64 * 64 ? 512 : 256;
  schedule.scratch = (schedule.packs_weight ? args.groups * matrix : 0) +
                     (schedule.widens ? kConvPackedRows * args.groups * args.in : 0);
  schedule.sums = schedule.widens ? args.map.target_rows * args.groups * args.out : 0;
  return schedule;
}

/// The pairs of all taps, cut into shares of equal length. A tap that several shares meet gets a partial sum from each
/// but the first, in the order of the shares.
struct WeightGradSchedule {
  bool widens = false;
  std::int64_t shares = 1;
  std::int64_t block = 32;  ///< pairs whose rows stay in the first-level cache
  std::int64_t matrix = 0;  ///< elements of a tap's weight, all groups
  std::int64_t scratch = 0;
  std::int64_t sums = 0;
  std::int64_t element_size = 4;

  std::int64_t partials() const { return (shares - 1) * matrix; }
  std::int64_t workspace(int threads) const { return (scratch * threads + partials() + sums) * element_size; }
};

inline WeightGradSchedule schedule_weight_grad(const ConvWeightGradArgs& args) {
  constexpr std::int64_t kPairsOfShare = 8192;
  constexpr std::int64_t kMostShares = 64;
  constexpr std::int64_t kCache = 32 * 1024;
  WeightGradSchedule schedule;
  schedule.widens = args.type == ScalarType::f16 || args.type == ScalarType::bf16;
  schedule.element_size = args.type == ScalarType::f64 ? 8 : 4;
  schedule.matrix = args.groups * args.in * args.out;
  schedule.shares = std::clamp<std::int64_t>(args.map.pairs() / kPairsOfShare, 1, kMostShares);
  const std::int64_t row = args.groups * (args.in + args.out);
  schedule.block = std::clamp<std::int64_t>(kCache / (row * schedule.element_size), 32, 128);
  schedule.scratch = schedule.widens ? schedule.block * row : 0;
  schedule.sums = schedule.widens ? args.map.taps * schedule.matrix : 0;
  return schedule;
}

}  // namespace lacewing::kernels::cpu
