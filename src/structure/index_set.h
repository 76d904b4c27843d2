// Sets of N-D indices as linear keys. Torch-free.
//
// The key of an index I within sizes d is the row-major sum of I[k] * d[k+1] * ... * d[N-1]. A set is coalesced where
// its keys increase strictly.
#pragma once

#include <cstdint>
#include <span>

#include <lacewing/executor.h>

namespace lacewing::structure {

/// Indices of `count` entries: row k of the matrix holds the indices of dim k, its entries lie `entry_stride` apart.
struct IndexMatrix {
  const std::int64_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t dim_stride = 0;
  std::int64_t entry_stride = 1;

  std::int64_t at(std::int64_t dim, std::int64_t entry) const { return data[dim * dim_stride + entry * entry_stride]; }
};

/// Whether the product of the sizes fits int64; it is written to `product`.
bool checked_product(std::span<const std::int64_t> sizes, std::int64_t& product);

/// keys[e] = the linear key of entry e along the rows `dims` of the matrix, of which dims[k] has the size sizes[k].
void linear_keys(const IndexMatrix& indices, std::span<const std::int64_t> dims, std::span<const std::int64_t> sizes,
                 std::int64_t* keys, const CpuExecutor& executor);

/// The inverse: out[k * count + e] = (keys[e] / stride of dim k) % sizes[k].
void unravel_keys(const std::int64_t* keys, std::int64_t count, std::span<const std::int64_t> sizes, std::int64_t* out,
                  const CpuExecutor& executor);

}  // namespace lacewing::structure
