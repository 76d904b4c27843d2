// Rows cut into shares of about equal work.
#pragma once

#include <cstdint>

namespace lacewing::kernels::cpu {

/// The first of `rows` rows whose terms, counted with one more for each row, start at or after `share` of `shares`.
/// begin(row) is where the terms of a row begin, and begin(rows) where the last ones end.
template <typename Begin>
std::int64_t share_boundary(std::int64_t rows, std::int64_t share, std::int64_t shares, Begin&& begin) {
  const std::int64_t total = begin(rows) - begin(0) + rows;
  const std::int64_t wanted =
      static_cast<std::int64_t>(static_cast<double>(total) * static_cast<double>(share) / static_cast<double>(shares));
  std::int64_t low = 0;
  std::int64_t high = rows;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (begin(middle) - begin(0) + middle < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return share == shares ? rows : low;
}

}  // namespace lacewing::kernels::cpu
