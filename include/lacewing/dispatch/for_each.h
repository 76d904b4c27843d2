// for_each and for_each_nd: one functor call per index, on the device that the tag names.
//
// Functors are called as f(tag, index), in no promised order, and must not touch what another index
// writes. CUDA overloads exist in code that nvcc compiles; functors for them are copied to the device
// and have `LACEWING_HOST_DEVICE` (or `__device__`) call operators. nvcc needs --expt-relaxed-constexpr,
// since for_each_nd hands a std::array to device code.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include <lacewing/dispatch/tag.h>
#include <lacewing/executor.h>

#if defined(__CUDACC__) && !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "lacewing/dispatch/for_each.h: compile with nvcc --expt-relaxed-constexpr"
#endif

namespace lacewing::dispatch {

/// The fewest indices that are worth a thread of their own, where the caller does not say.
inline constexpr std::int64_t default_grain = 2048;

/// Calls f(tag, i) for i in [0, count), in parallel chunks of at least `grain`.
template <typename Tag, typename F>
  requires tag_match<Tag, Device::cpu>
void for_each(Tag t, const CpuExecutor& executor, std::int64_t count, F&& f, std::int64_t grain = default_grain) {
  executor.parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      f(t, i);
    }
  });
}

/// The serial oracle: i = 0, 1, 2, ... on the calling thread; the executor is not used.
template <typename Tag, typename F>
  requires tag_match<Tag, Device::reference>
void for_each(Tag t, const CpuExecutor&, std::int64_t count, F&& f, std::int64_t = default_grain) {
  for (std::int64_t i = 0; i < count; ++i) {
    f(t, i);
  }
}

namespace detail {

/// The number of indices; 0 where an extent is 0 or negative. Throws where it exceeds 63 bits.
template <std::size_t Rank>
std::int64_t volume(const std::array<std::int64_t, Rank>& extents) {
  for (std::int64_t extent : extents) {
    if (extent <= 0) {
      return 0;
    }
  }
  std::int64_t total = 1;
  for (std::size_t d = 0; d < Rank; ++d) {
    if (__builtin_mul_overflow(total, extents[d], &total)) {
      throw std::overflow_error("[lacewing.for_each_nd] the product of the extents up to dim " + std::to_string(d) +
                                " exceeds 2^63 - 1");
    }
  }
  return total;
}

/// Row-major position -> index. Offset is the integer type that divides: 32 bits are much faster.
template <typename Offset, std::size_t Rank>
LACEWING_HOST_DEVICE std::array<std::int64_t, Rank> unravel(std::int64_t position,
                                                            const std::array<std::int64_t, Rank>& extents) {
  std::array<std::int64_t, Rank> index{};
  auto rest = static_cast<Offset>(position);
  for (int d = static_cast<int>(Rank) - 1; d > 0; --d) {
    const auto extent = static_cast<Offset>(extents.data()[d]);
    index.data()[d] = static_cast<std::int64_t>(rest % extent);
    rest /= extent;
  }
  index.data()[0] = static_cast<std::int64_t>(rest);
  return index;
}

/// Calls f(t, index) for the row-major positions [begin, end), dividing once and then counting up.
template <typename Tag, std::size_t Rank, typename F>
void for_range_nd(Tag t, const std::array<std::int64_t, Rank>& extents, std::int64_t begin, std::int64_t end, F& f) {
  auto index = unravel<std::int64_t>(begin, extents);
  for (std::int64_t i = begin; i < end; ++i) {
    f(t, std::as_const(index));
    std::size_t d = Rank - 1;
    while (++index[d] == extents[d] && d > 0) {
      index[d--] = 0;
    }
  }
}

}  // namespace detail

/// Calls f(tag, index) for every index of a box, index being a std::array of Rank entries.
template <std::size_t Rank, typename Tag, typename F>
  requires(Rank > 0 && tag_match<Tag, Device::cpu>)
void for_each_nd(Tag t, const CpuExecutor& executor, const std::array<std::int64_t, Rank>& extents, F&& f,
                 std::int64_t grain = default_grain) {
  executor.parallel_for(0, detail::volume(extents), grain,
                        [&](std::int64_t begin, std::int64_t end) { detail::for_range_nd(t, extents, begin, end, f); });
}

/// The serial oracle: row-major order on the calling thread; the executor is not used.
template <std::size_t Rank, typename Tag, typename F>
  requires(Rank > 0 && tag_match<Tag, Device::reference>)
void for_each_nd(Tag t, const CpuExecutor&, const std::array<std::int64_t, Rank>& extents, F&& f,
                 std::int64_t = default_grain) {
  const std::int64_t total = detail::volume(extents);
  for (std::int64_t i = 0; i < total; ++i) {
    f(t, detail::unravel<std::int64_t>(i, extents));
  }
}

#if defined(__CUDACC__)

namespace detail {

inline constexpr int block_threads = 256;
/// Grid-stride loops cover the rest; 2^24 threads are more than any device holds at a time.
inline constexpr std::int64_t max_blocks = 65536;

template <typename Tag, typename F>
__global__ void __launch_bounds__(block_threads) for_each_kernel(Tag t, std::int64_t count, F f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x; i < count; i += step) {
    f(t, i);
  }
}

template <typename Offset, std::size_t Rank, typename F>
struct UnravelThenCall {
  std::array<std::int64_t, Rank> extents;
  F f;

  template <typename Tag>
  __device__ void operator()(Tag t, std::int64_t position) {
    f(t, unravel<Offset>(position, extents));
  }
};

inline void check_cuda(cudaError_t status, const char* op) {
  if (status != cudaSuccess) {
    throw std::runtime_error("[lacewing." + std::string(op) + "] CUDA: " + cudaGetErrorString(status));
  }
}

}  // namespace detail

/// One grid-stride launch on the executor's stream; returns before it has run. `grain` is not used.
template <typename Tag, typename F>
  requires tag_match<Tag, Device::cuda>
void for_each(Tag t, const CudaExecutor& executor, std::int64_t count, F f, std::int64_t = default_grain) {
  if (count <= 0) {
    return;
  }
  const std::int64_t wanted = (count - 1) / detail::block_threads + 1;
  const auto blocks = static_cast<unsigned>(wanted < detail::max_blocks ? wanted : detail::max_blocks);
  const auto stream = static_cast<cudaStream_t>(executor.stream);
  detail::for_each_kernel<<<blocks, detail::block_threads, 0, stream>>>(t, count, f);
  detail::check_cuda(cudaGetLastError(), "for_each");
}

/// One grid-stride launch over the row-major positions of the box; the last dimension is the fastest.
template <std::size_t Rank, typename Tag, typename F>
  requires(Rank > 0 && tag_match<Tag, Device::cuda>)
void for_each_nd(Tag t, const CudaExecutor& executor, const std::array<std::int64_t, Rank>& extents, F f,
                 std::int64_t = default_grain) {
  const std::int64_t total = detail::volume(extents);
  if (total <= std::numeric_limits<std::uint32_t>::max()) {
    for_each(t, executor, total, detail::UnravelThenCall<std::uint32_t, Rank, F>{extents, f});
  } else {
    for_each(t, executor, total, detail::UnravelThenCall<std::int64_t, Rank, F>{extents, f});
  }
}

#endif  // __CUDACC__

}  // namespace lacewing::dispatch
