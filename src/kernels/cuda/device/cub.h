// The algorithms that are CUB's, instantiated once (cub.cu): radix sort of pairs, running sums.
#pragma once

#include <cstdint>

#include <lacewing/executor.h>

namespace lacewing::kernels::cuda {

/// Pairs of unsigned keys and payloads of 32 or 64 bits (64-bit payloads have 64-bit keys), by the lowest `bits` of the
/// keys, stably.
template <typename Key, typename Payload>
std::int64_t sort_pairs_workspace(std::int64_t count, int bits);
template <typename Key, typename Payload>
void sort_pairs(const Key* keys, Key* sorted, const Payload* payloads, Payload* moved, std::int64_t count, int bits,
                const CudaExecutor& executor, void* workspace, std::int64_t workspace_bytes);

/// values[i] becomes the sum of the first i + 1.
template <typename Number>
std::int64_t running_sum_workspace(std::int64_t count);
template <typename Number>
void running_sum(Number* values, std::int64_t count, const CudaExecutor& executor, void* workspace,
                 std::int64_t workspace_bytes);

}  // namespace lacewing::kernels::cuda
