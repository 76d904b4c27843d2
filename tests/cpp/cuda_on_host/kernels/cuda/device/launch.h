// As src/kernels/cuda/device/launch.h, on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include <cuda_runtime.h>

#include <lacewing/executor.h>

namespace lacewing::kernels::cuda {

struct DeviceFacts {
  int processors = 2;
  std::int64_t cache_bytes = 1 << 12;  ///< small, so that small tests meet the choices of large calls
  std::int64_t max_blocks = 3;         ///< few, so that kernels must stride
};

inline DeviceFacts& host_facts() {
  static DeviceFacts facts;
  return facts;
}
inline const DeviceFacts& device_facts() { return host_facts(); }

inline void check(cudaError_t, const char*) {}
inline void fill(void* memory, int byte, std::int64_t bytes, const CudaExecutor&) {
  std::memset(memory, byte, static_cast<std::size_t>(bytes));
}
inline void clear(void* memory, std::int64_t bytes, const CudaExecutor& executor) { fill(memory, 0, bytes, executor); }

struct Launch {
  const char* name;
  std::int64_t blocks;
  int threads;
};

template <typename... Parameters, typename... Arguments>
void launch(const Launch& launch, const CudaExecutor&, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (launch.blocks <= 0) {
    return;
  }
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  cuda_on_host::Block::run_grid(static_cast<unsigned>(std::min(launch.blocks, device_facts().max_blocks)),
                                static_cast<unsigned>(launch.threads), [&] { std::apply(kernel, values); });
}

constexpr std::int64_t blocks_for(std::int64_t items, std::int64_t items_per_block) {
  return (items + items_per_block - 1) / items_per_block;
}

}  // namespace lacewing::kernels::cuda
