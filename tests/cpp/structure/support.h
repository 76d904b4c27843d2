// What the tests of the structures share: an executor that runs its chunks backwards, and random integers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing::structure {

using Integers = std::vector<std::int64_t>;

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

inline std::mt19937_64& generator() {
  static std::mt19937_64 engine(7);
  return engine;
}

inline std::int64_t below(std::int64_t limit) {
  return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(generator());
}

inline Integers random_integers(std::int64_t count, std::int64_t limit) {
  Integers values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return below(limit); });
  return values;
}

}  // namespace lacewing::structure
