// The largest or smallest row of each segment, element by element. Torch-free.
#pragma once

#include <cstdint>

#include <lacewing/executor.h>

namespace lacewing::kernels {

/// out[g, c] = the extreme of x[order[k], c] over k in [segments[g], segments[g + 1]); NaN above all. A segment has at
/// least one row. Null order or segments: the identity.
template <typename T, typename Index>
void segment_extreme(const T* x, const Index* segments, const Index* order, std::int64_t groups, std::int64_t width,
                     bool largest, T* out, const CpuExecutor& executor) {
  const auto row = [&](std::int64_t k) { return x + (order == nullptr ? k : order[k]) * width; };
  executor.parallel_for(0, groups, 1 << 12, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t first = segments == nullptr ? g : segments[g];
      const std::int64_t last = segments == nullptr ? g + 1 : segments[g + 1];
      for (std::int64_t c = 0; c < width; ++c) {
        T best = row(first)[c];
        for (std::int64_t k = first + 1; k < last; ++k) {
          const T value = row(k)[c];
          best = value != value || (largest ? value > best : value < best) ? value : best;
        }
        out[g * width + c] = best;
      }
    }
  });
}

}  // namespace lacewing::kernels
