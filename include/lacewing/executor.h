// Executors: how a torch-free kernel gets its threads or its stream from the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <lacewing/dispatch/tag.h>

namespace lacewing {

/// The caller's parallel-for, as two plain functions, so that a kernel needs no thread pool of its own.
/// Holds no state: copy it freely.
struct CpuExecutor {
  using Chunk = void (*)(void* context, std::int64_t begin, std::int64_t end);

  /// Calls chunk(context, b, e) over a partition of [begin, end) whose parts hold at least `grain`
  /// items, except where there are fewer; returns when all are done and passes on a chunk's exception.
  void (*run)(std::int64_t begin, std::int64_t end, std::int64_t grain, Chunk chunk, void* context);
  /// The largest number of chunks that run at a time.
  int (*max_threads)();

  /// Calls f(b, e) over a partition of [begin, end).
  template <typename F>
  void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, F&& f) const {
    if (begin >= end) {
      return;
    }
    using Function = std::remove_reference_t<F>;
    run(
        begin, end, grain,
        [](void* context, std::int64_t chunk_begin, std::int64_t chunk_end) {
          (*static_cast<Function*>(context))(chunk_begin, chunk_end);
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }
};

namespace detail {

inline void run_serially(std::int64_t begin, std::int64_t end, std::int64_t, CpuExecutor::Chunk chunk, void* context) {
  chunk(context, begin, end);
}

inline int one_thread() { return 1; }

}  // namespace detail

/// One chunk, on the calling thread.
inline CpuExecutor serial_executor() { return {detail::run_serially, detail::one_thread}; }

/// The stream that launches go to: a cudaStream_t, untyped because no CUDA header is needed here.
/// The device that owns it must be current.
struct CudaExecutor {
  void* stream;
};

/// The executor that kernels of a device take.
template <Device Dev>
using executor_t = std::conditional_t<Dev == Device::cuda, CudaExecutor, CpuExecutor>;

}  // namespace lacewing
