// What the tests of the structure share.
#pragma once

#include <algorithm>
#include <cstdint>

#include <lacewing/executor.h>

namespace lacewing::structure {

inline int executor_threads = 1;

/// Chunks in reverse order, which no result may depend on.
inline CpuExecutor executor_of(int threads) {
  executor_threads = threads;
  return {[](std::int64_t begin, std::int64_t end, std::int64_t grain, CpuExecutor::Chunk chunk, void* context) {
            const std::int64_t most = std::max<std::int64_t>((end - begin) / std::max<std::int64_t>(grain, 1), 1);
            const std::int64_t chunks = std::min<std::int64_t>(most, executor_threads);
            for (std::int64_t i = chunks - 1; i >= 0; --i) {
              chunk(context, begin + (end - begin) * i / chunks, begin + (end - begin) * (i + 1) / chunks);
            }
          },
          [] { return executor_threads; }};
}

}  // namespace lacewing::structure
