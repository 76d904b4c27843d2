#include "kernels/cuda/device/launch.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

namespace lacewing::kernels::cuda {
namespace {

constexpr int kMostDevices = 64;
/// Blocks of a grid that strides: enough to fill any device, and to leave the scheduling to it.
constexpr std::int64_t kMaxBlocks = 1 << 24;

std::int64_t limit_on_blocks() {
  const char* const text = std::getenv("LACEWING_MAX_BLOCKS");
  const long long asked = text != nullptr ? std::atoll(text) : 0;
  return asked > 0 ? std::min<std::int64_t>(asked, kMaxBlocks) : kMaxBlocks;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

DeviceFacts facts_of(int device) {
  return {attribute(cudaDevAttrMultiProcessorCount, device), attribute(cudaDevAttrL2CacheSize, device),
          limit_on_blocks()};
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("[lacewing] ") + call + ": " + cudaGetErrorString(error));
  }
}

const DeviceFacts& device_facts() {
  static std::array<DeviceFacts, kMostDevices> known;
  static std::array<std::once_flag, kMostDevices> once;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const auto at = static_cast<std::size_t>(device) % kMostDevices;
  std::call_once(once[at], [&] { known[at] = facts_of(device); });
  return known[at];
}

void clear(void* memory, std::int64_t bytes, const CudaExecutor& executor) {
  check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(executor.stream)),
        "cudaMemsetAsync");
}

namespace detail {

void launch_kernel(const Launch& launch, const CudaExecutor& executor, const void* kernel, void** arguments) {
  const auto blocks = static_cast<unsigned>(std::min(launch.blocks, device_facts().max_blocks));
  const cudaError_t error = cudaLaunchKernel(kernel, dim3(blocks), dim3(static_cast<unsigned>(launch.threads)),
                                             arguments, 0, static_cast<cudaStream_t>(executor.stream));
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("[lacewing] launching ") + launch.name + ": " + cudaGetErrorString(error) +
                             " (" + std::to_string(blocks) + " blocks of " + std::to_string(launch.threads) +
                             " threads)");
  }
}

}  // namespace detail

}  // namespace lacewing::kernels::cuda
