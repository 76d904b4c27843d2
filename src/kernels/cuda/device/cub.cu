#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "kernels/cuda/device/cub.h"
#include "kernels/cuda/device/launch.h"

namespace lacewing::kernels::cuda {
namespace {

cudaStream_t stream_of(const CudaExecutor& executor) { return static_cast<cudaStream_t>(executor.stream); }

}  // namespace

template <typename Key, typename Payload>
std::int64_t sort_pairs_workspace(std::int64_t count, int bits) {
  std::size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const Key*>(nullptr), static_cast<Key*>(nullptr),
                                        static_cast<const Payload*>(nullptr), static_cast<Payload*>(nullptr), count, 0,
                                        bits),
        "sizing a radix sort");
  return static_cast<std::int64_t>(bytes);
}

template <typename Key, typename Payload>
void sort_pairs(const Key* keys, Key* sorted, const Payload* payloads, Payload* moved, std::int64_t count, int bits,
                const CudaExecutor& executor, void* workspace, std::int64_t workspace_bytes) {
  auto bytes = static_cast<std::size_t>(workspace_bytes);
  check(cub::DeviceRadixSort::SortPairs(workspace, bytes, keys, sorted, payloads, moved, count, 0, bits,
                                        stream_of(executor)),
        "radix sort");
}

template <typename Number>
std::int64_t running_sum_workspace(std::int64_t count) {
  std::size_t bytes = 0;
  check(cub::DeviceScan::InclusiveSum(nullptr, bytes, static_cast<Number*>(nullptr), static_cast<Number*>(nullptr),
                                      count),
        "sizing a running sum");
  return static_cast<std::int64_t>(bytes);
}

template <typename Number>
void running_sum(Number* values, std::int64_t count, const CudaExecutor& executor, void* workspace,
                 std::int64_t workspace_bytes) {
  auto bytes = static_cast<std::size_t>(workspace_bytes);
  check(cub::DeviceScan::InclusiveSum(workspace, bytes, values, values, count, stream_of(executor)), "running sum");
}

#define LACEWING_SORT(Key, Payload)                                                                     \
  template std::int64_t sort_pairs_workspace<Key, Payload>(std::int64_t, int);                          \
  template void sort_pairs<Key, Payload>(const Key*, Key*, const Payload*, Payload*, std::int64_t, int, \
                                         const CudaExecutor&, void*, std::int64_t);
LACEWING_SORT(std::uint32_t, std::uint32_t)
LACEWING_SORT(std::uint64_t, std::uint32_t)
LACEWING_SORT(std::uint64_t, std::uint64_t)
#undef LACEWING_SORT

#define LACEWING_SUM(Number)                                         \
  template std::int64_t running_sum_workspace<Number>(std::int64_t); \
  template void running_sum<Number>(Number*, std::int64_t, const CudaExecutor&, void*, std::int64_t);
LACEWING_SUM(std::uint32_t)
LACEWING_SUM(std::uint64_t)
#undef LACEWING_SUM

}  // namespace lacewing::kernels::cuda
