// The type in which long sums that meet in memory, not in registers, are kept. Host and device.
#pragma once

#include <type_traits>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels {

namespace detail {

template <typename T>
struct WiderOf {
  using type = T;
};
template <>
struct WiderOf<float> {
  using type = double;
};
template <>
struct WiderOf<Complex<float>> {
  using type = Complex<double>;
};

}  // namespace detail

/// Twice the digits of a sum of T; for f64 and c128 the type itself.
template <typename T>
using wider_t = typename detail::WiderOf<accumulate_t<T>>::type;

template <typename To, typename From>
LACEWING_HOST_DEVICE constexpr To converted(From value) {
  if constexpr (is_complex_v<To>) {
    return {static_cast<decltype(To::re)>(value.re), static_cast<decltype(To::re)>(value.im)};
  } else {
    return static_cast<To>(value);
  }
}

/// A sum in the wider type as it is stored.
template <typename T>
LACEWING_HOST_DEVICE constexpr T rounded(wider_t<T> sum) {
  return narrow<T>(converted<accumulate_t<T>>(sum));
}

}  // namespace lacewing::kernels
