// The kernels under gather_rows and scatter_add_rows, one set per device. Torch-free.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/tag.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

/// A matrix whose dtype is known at run time. Entry (r, c) lies at data + r*row_stride + c*col_stride, in
/// elements; sources are only read.
struct RowsArg {
  void* data;
  ScalarType type;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t row_stride;
  std::int64_t col_stride;
};

/// Indices whose dtype is known at run time; entry k lies at data + k*stride, in elements.
struct IndexArg {
  const void* data;
  IndexType type;
  std::int64_t count;
  std::int64_t stride;
};

/// What `first_*` functions leave where nothing is wrong.
inline constexpr std::int64_t none_found = INT64_MAX;

/// One device's kernels. Each resolves dtype and index dtype once, then runs; all pointers are of the device's
/// memory, and indices are in range except for first_out_of_range. They throw dispatch::UncoveredError for a dtype
/// without a kernel.
template <Device Dev>
struct RowKernels {
  using Executor = executor_t<Dev>;
  using Move = void(const Executor&, const RowsArg& src, const RowsArg& dst, const IndexArg& index);
  using MoveInOrder = void(const Executor&, const RowsArg& src, const RowsArg& dst, const IndexArg& index,
                           const std::int64_t* order);
  using FindOutOfRange = void(const Executor&, const IndexArg& index, std::int64_t rows, std::int64_t* first);
  using FindRepeat = void(const Executor&, const IndexArg& index, std::int64_t* owner, std::int64_t* first);

  /// dst[k] = src[index[k]]
  Move* gather;
  /// dst[index[k]] += src[k], indices distinct
  Move* scatter_add;
  /// dst[index[k]] += src[order[k]], index non-decreasing, order contiguous
  MoveInOrder* scatter_add_sorted;
  /// dst[index[k]] += src[k], duplicates by atomic additions
  Move* scatter_add_atomic;
  /// *first = the first k with index[k] outside [0, rows); *first starts as none_found
  FindOutOfRange* first_out_of_range;
  /// *first = the first k whose index[k] occurred before; owner[r], one for every row, becomes the first k with
  /// index[k] = r. All start as none_found.
  FindRepeat* first_repeat;
};

RowKernels<Device::cpu> cpu_row_kernels();
RowKernels<Device::reference> reference_row_kernels();
/// Throws std::runtime_error in builds without CUDA.
RowKernels<Device::cuda> cuda_row_kernels();

}  // namespace lacewing::kernels
