// Rows of values by segments, on a device: extremes and softmax. Torch-free.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

/// Segment g has the rows values[order[k]] of k in [segments[g], segments[g + 1]), each of `width` elements. Arrays of
/// int64 where wide, else int32; null is the identity.
struct SegmentRows {
  ScalarType type = ScalarType::f32;
  const void* values = nullptr;
  const void* order = nullptr;
  const void* segments = nullptr;
  bool wide = false;
  std::int64_t groups = 0;
  std::int64_t width = 1;
};

namespace cuda {

/// out[g, c] = the largest or the smallest of segment g, NaN above all; a segment has at least one row. Floats and i64.
void segment_extreme(const SegmentRows& rows, bool largest, void* out, const CudaExecutor& executor);

/// out[order[k], c] = exp(values[order[k], c]) over its sum in the segment, or the logarithm of it. Floats.
void segment_softmax(const SegmentRows& rows, bool logarithm, void* out, const CudaExecutor& executor);

}  // namespace cuda

}  // namespace lacewing::kernels
