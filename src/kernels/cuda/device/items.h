// Kernels that do one thing for each of many items, over the whole grid.
#pragma once

#include "kernels/cuda/device/launch.h"

namespace lacewing::kernels::cuda {

inline constexpr int kItemThreads = 256;

/// Blocks for one item a thread.
inline Launch over(const char* name, std::int64_t items) {
  return {name, blocks_for(items, kItemThreads), kItemThreads};
}

/// Calls f(i) for every i below count.
template <typename F>
__device__ __forceinline__ void for_items(std::int64_t count, F&& f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kItemThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kItemThreads + threadIdx.x; i < count; i += step) {
    f(i);
  }
}

}  // namespace lacewing::kernels::cuda
