// The exponential function of a vector's lanes.
#pragma once

#include "kernels/cpu/simd.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

/// exp(x) = 2^n e^r with |r| <= ln(2) / 2: a polynomial, and n added to the exponent bits. Within 2 units in the last
/// place; below the range of normal numbers 0, above it infinity; NaN stays.
template <typename A>
struct ExpOf;

template <>
struct ExpOf<float> {
  using Bits = std::int32_t;
  static constexpr float lowest = -87.33654f, highest = 88.72283f;
  static constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float round = 12582912.0f;  ///< 1.5 * 2^23: adding it rounds to an integer, in the low bits
  static constexpr int mantissa = 23;
  static constexpr Bits exponent_of_one = 127;
  static constexpr float terms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
};

template <>
struct ExpOf<double> {
  using Bits = std::int64_t;
  static constexpr double lowest = -708.39641853226408, highest = 709.78271289338397;
  static constexpr double log2_e = 1.4426950408889634, ln2_high = 0.693145751953125,
                          ln2_low = 1.42860682030941723212e-6;
  static constexpr double round = 6755399441055744.0;  ///< 1.5 * 2^52
  static constexpr int mantissa = 52;
  static constexpr Bits exponent_of_one = 1023;
  static constexpr double terms[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
};

template <typename A>
LACEWING_INLINE typename Simd<A>::Vec vector_exp(typename Simd<A>::Vec x) {
  using Of = ExpOf<A>;
  using Vec = typename Simd<A>::Vec;
  typedef typename Of::Bits BitVec __attribute__((vector_size(kVectorBytes)));
  const Vec inside = x < Of::lowest ? Vec{} + Of::lowest : x > Of::highest ? Vec{} + Of::highest : x;
  const Vec rounded = inside * Of::log2_e + Of::round;
  const Vec n = rounded - Of::round;
  const Vec r = (inside - n * Of::ln2_high) - n * Of::ln2_low;
  Vec sum = Vec{} + Of::terms[0];
#pragma GCC unroll 16
  for (std::size_t k = 1; k < sizeof(Of::terms) / sizeof(A); ++k) {
    sum = sum * r + Of::terms[k];
  }
  // Half of n at a time: 2^n alone need not be a number where the product is one.
  BitVec whole;
  __builtin_memcpy(&whole, &rounded, sizeof(whole));
  whole -= __builtin_bit_cast(typename Of::Bits, Of::round);
  const BitVec half = whole >> 1;
  const auto power = [](BitVec exponent) LACEWING_INLINE_LAMBDA {
    const BitVec bits = (exponent + Of::exponent_of_one) << Of::mantissa;
    Vec value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
  };
  const Vec value = sum * power(half) * power(whole - half);
  return x < Of::lowest ? Vec{} : x > Of::highest ? Vec{} + static_cast<A>(__builtin_inf()) : value;
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
