// Tasks dealt to the workers of an executor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/schedule.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

/// Calls f(worker, begin, end) with the tasks dealt to workers in contiguous shares.
template <typename F>
void deal(const CpuExecutor& executor, std::int64_t tasks, std::int64_t work, F&& f) {
  const std::int64_t threads = work < kSerialWork ? 1 : executor.max_threads();
  const std::int64_t workers = std::min<std::int64_t>(threads, tasks);
  executor.parallel_for(0, workers, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t worker = first; worker < last; ++worker) {
      f(worker, tasks * worker / workers, tasks * (worker + 1) / workers);
    }
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
