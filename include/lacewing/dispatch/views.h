// Views: a pointer, sizes and strides, with device and scalar type in the type. They own nothing.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/tag.h>

namespace lacewing::dispatch {

/// A read-only matrix. Entry (r, c) lies at data[r * row_stride + c * col_stride]; strides count
/// elements, may be 0 (a broadcast dimension) or negative, and default to dense row-major.
template <Device Dev, ScalarType S>
struct matrix_const_view {
  using value_type = scalar_t<S>;
  static constexpr Device device = Dev;
  static constexpr ScalarType scalar = S;

  const value_type* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t row_stride = cols;
  std::int64_t col_stride = 1;

  LACEWING_HOST_DEVICE value_type operator()(std::int64_t row, std::int64_t col) const {
    return data[row * row_stride + col * col_stride];
  }
};

/// A writable matrix, laid out as matrix_const_view; distinct (r, c) must be distinct memory.
template <Device Dev, ScalarType S>
struct matrix_mutable_view {
  using value_type = scalar_t<S>;
  static constexpr Device device = Dev;
  static constexpr ScalarType scalar = S;

  value_type* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t row_stride = cols;
  std::int64_t col_stride = 1;

  LACEWING_HOST_DEVICE value_type& operator()(std::int64_t row, std::int64_t col) const {
    return data[row * row_stride + col * col_stride];
  }

  operator matrix_const_view<Dev, S>() const { return {data, rows, cols, row_stride, col_stride}; }
};

/// A read-only vector. Entry i lies at data[i * stride]; the stride counts elements, so one half of
/// interleaved pairs (a0, b0, a1, b1, ...) is {pairs, n, 2} or {pairs + 1, n, 2}.
template <Device Dev, ScalarType S>
struct vector_const_view {
  using value_type = scalar_t<S>;
  static constexpr Device device = Dev;
  static constexpr ScalarType scalar = S;

  const value_type* data;
  std::int64_t count;
  std::int64_t stride = 1;

  LACEWING_HOST_DEVICE value_type operator[](std::int64_t i) const { return data[i * stride]; }
};

/// A writable vector, laid out as vector_const_view; the stride is not 0 unless count < 2.
template <Device Dev, ScalarType S>
struct vector_mutable_view {
  using value_type = scalar_t<S>;
  static constexpr Device device = Dev;
  static constexpr ScalarType scalar = S;

  value_type* data;
  std::int64_t count;
  std::int64_t stride = 1;

  LACEWING_HOST_DEVICE value_type& operator[](std::int64_t i) const { return data[i * stride]; }

  operator vector_const_view<Dev, S>() const { return {data, count, stride}; }
};

}  // namespace lacewing::dispatch
