// Tasks dealt to the workers of an executor. Torch-free.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing {

/// Does `tasks` tasks on at most `threads` workers. start(worker) is called once for each worker and gives a function,
/// which is called on runs [begin, end) of tasks. A worker does a contiguous share of its own, and then helps the
/// others with theirs: where one core is slower than the rest, or taken away, nobody waits long. So what a task does
/// must not depend on the worker, or on the run that it comes in.
template <typename Start>
void deal_tasks(const CpuExecutor& executor, std::int64_t tasks, std::int64_t threads, Start&& start) {
  constexpr std::int64_t kRuns = 64;  // so many in all, about: a run costs one atomic addition
  const std::int64_t workers = std::min(threads, tasks);
  if (workers <= 1) {
    if (tasks > 0) {
      start(std::int64_t{0})(std::int64_t{0}, tasks);
    }
    return;
  }
  struct alignas(64) Share {
    std::atomic<std::int64_t> next;
  };
  const std::int64_t run = std::max<std::int64_t>(1, tasks / kRuns);
  const auto share_begin = [&](std::int64_t worker) { return tasks * worker / workers; };
  std::vector<Share> shares(static_cast<std::size_t>(workers));
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    shares[static_cast<std::size_t>(worker)].next.store(share_begin(worker), std::memory_order_relaxed);
  }
  executor.parallel_for(0, workers, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t worker = first; worker < last; ++worker) {
      auto f = start(worker);
      for (std::int64_t k = 0; k < workers; ++k) {
        const std::int64_t owner = (worker + k) % workers;
        const std::int64_t end = share_begin(owner + 1);
        std::atomic<std::int64_t>& next = shares[static_cast<std::size_t>(owner)].next;
        for (std::int64_t at = next.fetch_add(run, std::memory_order_relaxed); at < end;
             at = next.fetch_add(run, std::memory_order_relaxed)) {
          f(at, std::min(at + run, end));
        }
      }
    }
  });
}

/// The same with one function f(begin, end), on all threads.
template <typename F>
void deal_tasks(const CpuExecutor& executor, std::int64_t tasks, const F& f) {
  deal_tasks(executor, tasks, executor.max_threads(), [&](std::int64_t) -> const F& { return f; });
}

}  // namespace lacewing
