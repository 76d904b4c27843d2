#include "kernels/cuda/device/launch.h"

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace lacewing::kernels::cuda {
namespace {

constexpr int kMostDevices = 64;
/// Blocks of a grid that strides: enough to fill any device, and to leave the scheduling to it.
constexpr std::int64_t kMaxBlocks = 1 << 24;

/// Shared memory that a kernel gets without asking.
constexpr std::int64_t kSharedAtHand = 48 << 10;

/// What the environment says, where that is less.
std::int64_t lowered(std::int64_t value, const char* variable) {
  const char* const text = std::getenv(variable);
  const long long asked = text != nullptr ? std::atoll(text) : 0;
  return asked > 0 ? std::min<std::int64_t>(asked, value) : value;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

DeviceFacts facts_of(int device) {
  const int arch =
      10 * attribute(cudaDevAttrComputeCapabilityMajor, device) + attribute(cudaDevAttrComputeCapabilityMinor, device);
  return {static_cast<int>(lowered(arch, "LACEWING_CUDA_ARCH")), attribute(cudaDevAttrMultiProcessorCount, device),
          attribute(cudaDevAttrL2CacheSize, device), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          lowered(kMaxBlocks, "LACEWING_MAX_BLOCKS")};
}

/// Asks for shared memory, once for each kernel, device and amount that is more than before.
void allow_shared(const Launch& launch, const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::int64_t> allowed;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard<std::mutex> lock(mutex);
  std::int64_t& most = allowed[{device, kernel}];
  if (most < launch.shared) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(launch.shared)),
          launch.name);
    most = launch.shared;
  }
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

void fill(void* memory, int byte, std::int64_t bytes, const CudaExecutor& executor) {
  check(cudaMemsetAsync(memory, byte, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(executor.stream)),
        "cudaMemsetAsync");
}

namespace detail {

void launch_kernel(const Launch& launch, const CudaExecutor& executor, const void* kernel, void** arguments) {
  const auto blocks = static_cast<unsigned>(std::min(launch.blocks, device_facts().max_blocks));
  if (launch.shared > kSharedAtHand) {
    allow_shared(launch, kernel);
  }
  const cudaError_t error =
      cudaLaunchKernel(kernel, dim3(blocks), dim3(static_cast<unsigned>(launch.threads)), arguments,
                       static_cast<std::size_t>(launch.shared), static_cast<cudaStream_t>(executor.stream));
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("[lacewing] launching ") + launch.name + ": " + cudaGetErrorString(error) +
                             " (" + std::to_string(blocks) + " blocks of " + std::to_string(launch.threads) +
                             " threads, " + std::to_string(launch.shared) + " bytes of shared memory)");
  }
}

}  // namespace detail

}  // namespace lacewing::kernels::cuda
