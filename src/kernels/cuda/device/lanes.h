// Lanes of a warp that work together.
#pragma once

#include <cuda_runtime.h>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

/// The lanes of this lane's warp that are its group of 2^bits neighbours.
__device__ __forceinline__ unsigned group_mask(int bits) {
  const unsigned ones = bits == 5 ? kWholeWarp : (1u << (1 << bits)) - 1;
  const unsigned lane = threadIdx.x & 31u;
  return ones << (lane >> bits << bits);
}

/// What a lane of a group has; all lanes of the group come here together.
template <typename V>
__device__ __forceinline__ V from_lane(V value, int lane, int lanes, unsigned together) {
  if constexpr (is_complex_v<V>) {
    return {__shfl_sync(together, value.re, lane, lanes), __shfl_sync(together, value.im, lane, lanes)};
  } else {
    return __shfl_sync(together, value, lane, lanes);
  }
}

/// What the lane `lane ^ mask` has, of the lanes that come here together.
template <typename V>
__device__ __forceinline__ V from_lane_xor(V value, int mask, unsigned together = kWholeWarp) {
  if constexpr (is_complex_v<V>) {
    return {__shfl_xor_sync(together, value.re, mask), __shfl_xor_sync(together, value.im, mask)};
  } else {
    return __shfl_xor_sync(together, value, mask);
  }
}

/// The sum over neighbouring lanes, so many that they are a power of two, by a tree.
template <typename V>
__device__ __forceinline__ V sum_lanes(V value, int lanes, unsigned together = kWholeWarp) {
  for (int mask = 1; mask < lanes; mask *= 2) {
    value = value + from_lane_xor(value, mask, together);
  }
  return value;
}

/// Two such sums over at least two lanes, for little more than the price of one: lane l gets the (l mod 2)-th, with the
/// bits of sum_lanes.
template <typename V>
__device__ __forceinline__ V sum_of_each(const V (&values)[2], int lanes, unsigned together) {
  const bool odd = (threadIdx.x & 1u) != 0;
  V value = (odd ? values[1] : values[0]) + from_lane_xor(odd ? values[0] : values[1], 1, together);
  for (int mask = 2; mask < lanes; mask *= 2) {
    value = value + from_lane_xor(value, mask, together);
  }
  return value;
}

/// Four, over at least four lanes: lane l gets the (l mod 4)-th.
template <typename V>
__device__ __forceinline__ V sum_of_each(const V (&values)[4], int lanes, unsigned together) {
  const bool odd = (threadIdx.x & 1u) != 0;
  const bool high = (threadIdx.x & 2u) != 0;
  const V low_pair = (odd ? values[1] : values[0]) + from_lane_xor(odd ? values[0] : values[1], 1, together);
  const V high_pair = (odd ? values[3] : values[2]) + from_lane_xor(odd ? values[2] : values[3], 1, together);
  V value = (high ? high_pair : low_pair) + from_lane_xor(high ? low_pair : high_pair, 2, together);
  for (int mask = 4; mask < lanes; mask *= 2) {
    value = value + from_lane_xor(value, mask, together);
  }
  return value;
}

/// The last place of [low, high) for which holds(place): true at low, and for no place after one for which it is not.
/// Neighbouring lanes search together, each looking at one place of many in a round.
template <typename Count, typename F>
__device__ __forceinline__ Count last_where(Count low, Count high, int lane, int lanes, unsigned together, F&& holds) {
  while (high - low > 1) {
    const Count step = (high - low + static_cast<Count>(lanes)) / static_cast<Count>(lanes + 1);
    const Count place = low + static_cast<Count>(lane + 1) * step;
    const bool here = place < high && holds(place);
    const auto steps = lanes == 1 ? Count{here} : static_cast<Count>(__popc(__ballot_sync(together, here) & together));
    low += steps * step;
    high = high - low < step ? high : low + step;
  }
  return low;
}

}  // namespace lacewing::kernels::cuda
