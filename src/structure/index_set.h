// Sets of N-D indices as linear keys: sorting, grouping, merging. Torch-free.
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

/// keys[e] = the linear key of entry e.
void linear_keys(const IndexMatrix& indices, std::span<const std::int64_t> sizes, std::int64_t* keys,
                 const CpuExecutor& executor);

/// The inverse: out[k * count + e] = (keys[e] / stride of dim k) % sizes[k].
void unravel_keys(const std::int64_t* keys, std::int64_t count, std::span<const std::int64_t> sizes, std::int64_t* out,
                  const CpuExecutor& executor);

/// The first entry (by entry, then dim) with an index outside [0, sizes[dim]), or count.
std::int64_t first_outside(const IndexMatrix& indices, std::span<const std::int64_t> sizes,
                           const CpuExecutor& executor);

enum class Sortedness : int { unsorted, sorted, strict };

/// Whether the keys increase, strictly or not.
Sortedness sortedness(const std::int64_t* keys, std::int64_t count, const CpuExecutor& executor);

/// The stable order of the keys, which lie in [0, limit); linear time. `sorted` gets the keys in that order.
void sort_keys(const std::int64_t* keys, std::int64_t count, std::int64_t limit, std::int64_t* order,
               std::int64_t* sorted, const CpuExecutor& executor);

/// Runs of equal sorted keys: segments[r] is where run r begins, and segments[runs] = count. Returns the runs;
/// `segments` has room for count + 1.
std::int64_t find_runs(const std::int64_t* sorted, std::int64_t count, std::int64_t* segments,
                       const CpuExecutor& executor);

/// Merges two coalesced sets. For each key of the union, in order: the key, and where it lies in either set, or -1.
/// Arrays have room for a_count + b_count; the size of the union is returned.
std::int64_t merge_keys(const std::int64_t* a, std::int64_t a_count, const std::int64_t* b, std::int64_t b_count,
                        std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b, const CpuExecutor& executor);

/// The keys that two coalesced sets share, and where they lie in either. Arrays have room for the smaller count.
std::int64_t intersect_keys(const std::int64_t* a, std::int64_t a_count, const std::int64_t* b, std::int64_t b_count,
                            std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b, const CpuExecutor& executor);

}  // namespace lacewing::structure
