// Rows of terms, cut into pieces by their lengths alone: short rows whole, long ones in chunks (gather_sum_choose.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gather_sum_choose.h"

namespace lacewing::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kRowThreadBits = 7;
/// Where groups of lanes own rows: a block waits for its longest row.
inline constexpr int kRowThreads = 1 << kRowThreadBits;
inline constexpr int kWarp = 32;

/// A whole row, or a chunk of it.
struct RowPiece {
  std::int64_t row = -1;  ///< -1: nothing
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

template <typename Index>
struct RowPieces {
  const Index* segments;  ///< (rows + 1); null: row r has the term r
  std::int64_t rows, terms;
  std::int64_t spans;  ///< spans_of(terms)

  __device__ std::int64_t begin(std::int64_t row) const { return segments != nullptr ? segments[row] : row; }
  __device__ std::int64_t end(std::int64_t row) const { return segments != nullptr ? segments[row + 1] : row + 1; }
  __device__ std::int64_t count() const { return spans + rows; }
  __device__ bool is_long(std::int64_t row) const { return spans > 0 && end(row) - begin(row) >= 2 * kChunkTerms; }
  __device__ std::int64_t chunks(std::int64_t row) const { return (end(row) - begin(row)) / kChunkTerms; }

  /// The chunk of a long row that begins in a span. It holds the span's last term.
  __device__ RowPiece chunk_in(std::int64_t span) const {
    const std::int64_t first = span * kChunkTerms;
    const std::int64_t last = (first + kChunkTerms < terms ? first + kChunkTerms : terms) - 1;
    std::int64_t low = 0;
    std::int64_t high = rows - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (begin(middle) <= last) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (!is_long(low) || last >= end(low)) {
      return {};
    }
    const std::int64_t start = begin(low);
    const std::int64_t chunk = start >= first ? 0 : (first - start + kChunkTerms - 1) / kChunkTerms;
    const std::int64_t from = start + chunk * kChunkTerms;
    if (from > last || chunk >= chunks(low)) {
      return {};
    }
    return {low, from, chunk + 1 == chunks(low) ? end(low) : from + kChunkTerms};
  }

  /// Chunks first: they are the largest pieces.
  __device__ RowPiece piece(std::int64_t number) const {
    if (number < spans) {
      return chunk_in(number);
    }
    const std::int64_t row = number - spans;
    return is_long(row) ? RowPiece{} : RowPiece{row, begin(row), end(row)};
  }
};

/// Calls f(row, its first span) for each long row, all threads of a block together: a block looks at as many spans as
/// it has threads, then does the rows that begin there.
template <typename Index, typename F>
__device__ void each_long_row(const RowPieces<Index>& cut, F&& f) {
  __shared__ int found[kThreads];
  __shared__ int count;
  const std::int64_t blocks = (cut.spans + kThreads - 1) / kThreads;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    if (threadIdx.x == 0) {
      count = 0;
    }
    __syncthreads();
    if (const std::int64_t span = block * kThreads + threadIdx.x; span < cut.spans) {
      const RowPiece piece = cut.chunk_in(span);
      if (piece.row >= 0 && piece.begin == cut.begin(piece.row)) {
        found[atomicAdd(&count, 1)] = static_cast<int>(threadIdx.x);
      }
    }
    __syncthreads();
    for (int k = 0; k < count; ++k) {
      const std::int64_t span = block * kThreads + found[k];
      f(cut.chunk_in(span).row, span);
    }
    __syncthreads();
  }
}

}  // namespace lacewing::kernels::cuda
