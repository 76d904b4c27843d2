// From sums to what is stored: bias, scale and shift, residual, ReLU, rounding.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/device/ptx.h"

namespace lacewing::kernels::cuda {

/// Rows and columns begin at even elements.
template <typename T>
struct FinishRows {
  const T* bias = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
  const T* residual = nullptr;
  std::int64_t residual_stride = 0;
  bool relu = false;
  bool any = false;

  /// Of the columns from `column` on.
  FinishRows(const ConvArgs& args, std::int64_t column)
      : bias(from(static_cast<const T*>(args.bias), column)),
        scale(from(static_cast<const float*>(args.finish.scale), column)),
        shift(from(static_cast<const float*>(args.finish.shift), column)),
        residual(from(static_cast<const T*>(args.finish.residual), column)),
        residual_stride(args.finish.residual_stride),
        relu(args.finish.relu),
        any(bias != nullptr || scale != nullptr || residual != nullptr || relu) {}

  /// Finishes the sums of a row's columns `column` and `column` + 1.
  __device__ __forceinline__ void apply(std::int64_t row, int column, float& low, float& high) const {
    if (bias != nullptr) {
      add(bias + column, low, high);
    }
    if (scale != nullptr) {
      const float2 scales = ptx::ld_global_f32x2(scale + column);
      const float2 shifts = ptx::ld_global_f32x2(shift + column);
      low = low * scales.x + shifts.x;
      high = high * scales.y + shifts.y;
    }
    if (residual != nullptr) {
      add(residual + row * residual_stride + column, low, high);
    }
    if (relu) {
      low = low < 0 ? 0.0f : low;  // NaN stays
      high = high < 0 ? 0.0f : high;
    }
  }

 private:
  template <typename V>
  static const V* from(const V* data, std::int64_t column) {
    return data == nullptr ? nullptr : data + column;
  }
  __device__ __forceinline__ static void add(const T* from, float& low, float& high) {
    const std::uint32_t pair = ptx::ld_global_32(from);
    low += widen(T{static_cast<std::uint16_t>(pair & 0xffffu)});
    high += widen(T{static_cast<std::uint16_t>(pair >> 16)});
  }
};

/// Lanes t = 0..3 of a quad hold four words each, the t-th of four vectors: after it, lane t holds vector t.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&words)[4], int t) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = bit == 1 ? 2 * pair : pair;
      const int high = low + bit;
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, t & bit ? words[low] : words[high], bit);
      if (t & bit) {
        words[low] = other;
      } else {
        words[high] = other;
      }
    }
  }
}

}  // namespace lacewing::kernels::cuda
