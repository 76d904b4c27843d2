// What device/cub.h declares, by the standard library.
#include "kernels/cuda/device/cub.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace lacewing::kernels::cuda {

template <typename Key, typename Payload>
std::int64_t sort_pairs_workspace(std::int64_t, int) {
  return 0;
}

template <typename Key, typename Payload>
void sort_pairs(const Key* keys, Key* sorted, const Payload* payloads, Payload* moved, std::int64_t count, int bits,
                const CudaExecutor&, void*, std::int64_t) {
  const Key mask = bits == 8 * sizeof(Key) ? ~Key{0} : (Key{1} << bits) - 1;
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return (keys[a] & mask) < (keys[b] & mask); });
  for (std::int64_t i = 0; i < count; ++i) {
    sorted[i] = keys[order[static_cast<std::size_t>(i)]];
    moved[i] = payloads[order[static_cast<std::size_t>(i)]];
  }
}

template <typename Number>
std::int64_t running_sum_workspace(std::int64_t) {
  return 0;
}

template <typename Number>
void running_sum(Number* values, std::int64_t count, const CudaExecutor&, void*, std::int64_t) {
  std::partial_sum(values, values + count, values);
}

template std::int64_t sort_pairs_workspace<std::uint32_t, std::uint32_t>(std::int64_t, int);
template std::int64_t sort_pairs_workspace<std::uint64_t, std::uint32_t>(std::int64_t, int);
template std::int64_t sort_pairs_workspace<std::uint64_t, std::uint64_t>(std::int64_t, int);
template void sort_pairs(const std::uint32_t*, std::uint32_t*, const std::uint32_t*, std::uint32_t*, std::int64_t, int,
                         const CudaExecutor&, void*, std::int64_t);
template void sort_pairs(const std::uint64_t*, std::uint64_t*, const std::uint32_t*, std::uint32_t*, std::int64_t, int,
                         const CudaExecutor&, void*, std::int64_t);
template void sort_pairs(const std::uint64_t*, std::uint64_t*, const std::uint64_t*, std::uint64_t*, std::int64_t, int,
                         const CudaExecutor&, void*, std::int64_t);
template std::int64_t running_sum_workspace<std::uint32_t>(std::int64_t);
template std::int64_t running_sum_workspace<std::uint64_t>(std::int64_t);
template void running_sum(std::uint32_t*, std::int64_t, const CudaExecutor&, void*, std::int64_t);
template void running_sum(std::uint64_t*, std::int64_t, const CudaExecutor&, void*, std::int64_t);

}  // namespace lacewing::kernels::cuda
