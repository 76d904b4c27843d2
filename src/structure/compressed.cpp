#include "structure/compressed.h"

#include <algorithm>
#include <atomic>

namespace lacewing::structure {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

}  // namespace

void row_starts(const std::int64_t* row_of, std::int64_t count, std::int64_t rows, std::int64_t* starts,
                const CpuExecutor& executor) {
  // Entry e begins the rows after that of entry e - 1, up to its own.
  executor.parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t next = begin == 0 ? 0 : row_of[begin - 1] + 1;
    for (std::int64_t e = begin; e < end; ++e) {
      for (; next <= row_of[e]; ++next) {
        starts[next] = e;
      }
    }
  });
  std::fill(starts + (count == 0 ? 0 : row_of[count - 1] + 1), starts + rows + 1, count);
}

void rows_of_entries(const std::int64_t* starts, std::int64_t rows, std::int64_t* row_of, const CpuExecutor& executor) {
  executor.parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::fill(row_of + starts[r], row_of + starts[r + 1], r);
    }
  });
}

std::int64_t first_bad_start(const std::int64_t* starts, std::int64_t rows, std::int64_t count) {
  if (starts[0] != 0) {
    return 0;
  }
  for (std::int64_t r = 1; r <= rows; ++r) {
    if (starts[r] < starts[r - 1] || starts[r] > count) {
      return r;
    }
  }
  return starts[rows] == count ? -1 : rows;
}

bool rows_increase(const std::int64_t* starts, const std::int64_t* minor, std::int64_t rows,
                   const CpuExecutor& executor) {
  std::atomic<bool> increase{true};
  executor.parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    bool own = true;
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t e = starts[r] + 1; e < starts[r + 1]; ++e) {
        own = own && minor[e - 1] < minor[e];
      }
    }
    if (!own) {
      increase = false;
    }
  });
  return increase;
}

}  // namespace lacewing::structure
