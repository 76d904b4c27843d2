// Lanes of a warp that work together.
#pragma once

#include <cuda_runtime.h>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

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

}  // namespace lacewing::kernels::cuda
