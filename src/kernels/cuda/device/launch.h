// Launching kernels: one place for the limit on blocks, for errors, and for what is known of the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

#include <lacewing/executor.h>

namespace lacewing::kernels::cuda {

/// What kernels are chosen by. Read once for each device.
struct DeviceFacts {
  int arch = 0;  ///< 80, 90, ...; LACEWING_CUDA_ARCH lowers it
  int processors = 0;
  std::int64_t cache_bytes = 0;       ///< of the L2 cache
  std::int64_t shared_per_block = 0;  ///< that a block may ask for
  std::int64_t max_blocks = 0;        ///< of a launch; LACEWING_MAX_BLOCKS lowers it
};

/// Of the current device.
const DeviceFacts& device_facts();

/// Throws std::runtime_error with the name of what failed and CUDA's own words.
void check(cudaError_t error, const char* call);

/// Bytes of one value on the executor's stream.
void fill(void* memory, int byte, std::int64_t bytes, const CudaExecutor& executor);
inline void clear(void* memory, std::int64_t bytes, const CudaExecutor& executor) { fill(memory, 0, bytes, executor); }

/// A launch by name; `blocks` is what the work asks for, cut to what the device may get: kernels stride over the grid.
struct Launch {
  const char* name;
  std::int64_t blocks;
  int threads;
  std::int64_t shared = 0;  ///< bytes of dynamic shared memory
};

namespace detail {
void launch_kernel(const Launch& launch, const CudaExecutor& executor, const void* kernel, void** arguments);
}  // namespace detail

/// The arguments become the kernel's own types.
template <typename... Parameters, typename... Arguments>
void launch(const Launch& launch, const CudaExecutor& executor, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  if (launch.blocks <= 0) {
    return;
  }
  [&](Parameters... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    detail::launch_kernel(launch, executor, reinterpret_cast<const void*>(kernel), pointers);
  }(std::forward<Arguments>(arguments)...);
}

/// Blocks of so many threads for so many items.
constexpr std::int64_t blocks_for(std::int64_t items, std::int64_t items_per_block) {
  return (items + items_per_block - 1) / items_per_block;
}

}  // namespace lacewing::kernels::cuda
