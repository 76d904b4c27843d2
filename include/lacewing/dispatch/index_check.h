// What gather and scatter_add demand of their indices, checked where LACEWING_CHECK_INDICES is defined (a CMake option
// of that name): on CUDA that copies the indices to the host.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <lacewing/dispatch/for_each.h>
#include <lacewing/dispatch/views.h>

namespace lacewing::dispatch {

/// What a call demands of its indices; each rule includes in_range.
enum class IndexRule { in_range, distinct, sorted };

/// Throws std::invalid_argument with the first index in [0, count) that breaks the rule.
inline void check_indices(const char* op, const std::vector<std::int64_t>& indices, std::int64_t rows, IndexRule rule) {
  const auto entry = [&](std::size_t k) { return "index[" + std::to_string(k) + "] = " + std::to_string(indices[k]); };
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument("[lacewing." + std::string(op) + "] " + what);
  };
  constexpr std::size_t unseen = static_cast<std::size_t>(-1);
  std::vector<std::size_t> seen(rule == IndexRule::distinct ? static_cast<std::size_t>(rows) : 0, unseen);
  for (std::size_t k = 0; k < indices.size(); ++k) {
    if (indices[k] < 0 || indices[k] >= rows) {
      fail(entry(k) + " is out of range for " + std::to_string(rows) + " rows");
    }
    if (rule == IndexRule::sorted && k > 0 && indices[k] < indices[k - 1]) {
      fail(entry(k) + " is less than " + entry(k - 1) + ": indices must not decrease");
    }
    if (rule == IndexRule::distinct) {
      std::size_t& first = seen[static_cast<std::size_t>(indices[k])];
      if (first != unseen) {
        fail(entry(k) + " repeats index[" + std::to_string(first) +
             "]: indices must be distinct (scatter_add_sorted and scatter_add_atomic take duplicates)");
      }
      first = k;
    }
  }
}

namespace detail {

template <typename Idx>
std::vector<std::int64_t> indices_on_host(const CpuExecutor&, Idx idx) {
  std::vector<std::int64_t> host(static_cast<std::size_t>(idx.count));
  for (std::int64_t k = 0; k < idx.count; ++k) {
    host[static_cast<std::size_t>(k)] = idx[k];
  }
  return host;
}

#if defined(__CUDACC__)

template <typename Idx>
struct CopyIndex {
  Idx idx;
  std::int64_t* out;

  template <typename Tag>
  __device__ void operator()(Tag, std::int64_t k) const {
    out[k] = idx[k];
  }
};

template <typename Idx>
std::vector<std::int64_t> indices_on_host(const CudaExecutor& executor, Idx idx) {
  std::vector<std::int64_t> host(static_cast<std::size_t>(idx.count));
  const auto stream = static_cast<cudaStream_t>(executor.stream);
  const std::size_t bytes = host.size() * sizeof(std::int64_t);
  if (bytes == 0) {
    return host;
  }
  std::int64_t* dense = nullptr;
  check_cuda(cudaMallocAsync(&dense, bytes, stream), "index_check");
  for_each(tag<Device::cuda>{}, executor, idx.count, CopyIndex<Idx>{idx, dense});
  const cudaError_t copied = cudaMemcpyAsync(host.data(), dense, bytes, cudaMemcpyDeviceToHost, stream);
  check_cuda(cudaFreeAsync(dense, stream), "index_check");
  check_cuda(copied, "index_check");
  check_cuda(cudaStreamSynchronize(stream), "index_check");
  return host;
}

#endif  // __CUDACC__

}  // namespace detail

/// check_indices where LACEWING_CHECK_INDICES is defined, nothing otherwise.
template <typename Executor, typename Idx>
void check_where_asked([[maybe_unused]] const char* op, [[maybe_unused]] const Executor& executor,
                       [[maybe_unused]] Idx idx, [[maybe_unused]] std::int64_t rows, [[maybe_unused]] IndexRule rule) {
#if defined(LACEWING_CHECK_INDICES)
  check_indices(op, detail::indices_on_host(executor, idx), rows, rule);
#endif
}

}  // namespace lacewing::dispatch
