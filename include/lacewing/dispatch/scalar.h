// Scalar types that kernels compute with. Torch-free, usable from host and device code.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define LACEWING_HOST_DEVICE __host__ __device__
#else
#define LACEWING_HOST_DEVICE
#endif

namespace lacewing {

/// The element types of tensors, by the names that PyTorch prints.
enum class ScalarType : std::uint8_t {
  u8,
  i8,
  i16,
  i32,
  i64,
  f16,
  bf16,
  f32,
  f64,
  c64,
  c128,
};

/// The name of a scalar type as it appears in error messages: "float32", "complex64", ...
constexpr const char* name(ScalarType type) {
  switch (type) {
    case ScalarType::u8: return "uint8";
    case ScalarType::i8: return "int8";
    case ScalarType::i16: return "int16";
    case ScalarType::i32: return "int32";
    case ScalarType::i64: return "int64";
    case ScalarType::f16: return "float16";
    case ScalarType::bf16: return "bfloat16";
    case ScalarType::f32: return "float32";
    case ScalarType::f64: return "float64";
    case ScalarType::c64: return "complex64";
    case ScalarType::c128: return "complex128";
  }
  return "unknown";
}

/// IEEE binary16 as its bit pattern. Storage only: arithmetic happens in float.
struct Half {
  std::uint16_t bits;

  /// Rounds to nearest, ties to even; a NaN becomes the quiet NaN of its sign.
  LACEWING_HOST_DEVICE static Half from_float(float value) {
    const auto word = __builtin_bit_cast(std::uint32_t, value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
#if defined(__CUDA_ARCH__)
    std::uint16_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return {(word & 0x7fffffffu) > 0x7f800000u ? static_cast<std::uint16_t>(sign | 0x7e00u) : result};
#else
    // Branch-free, so that loops vectorise. Scaling up and down by powers of two saturates to infinity;
    // adding a power of two chosen by the exponent then lets the float adder do the rounding.
    const float magnitude = __builtin_bit_cast(float, word & 0x7fffffffu);
    const float saturated = (magnitude * 0x1p+112f) * 0x1p-110f;
    const std::uint32_t shifted = word + word;
    const std::uint32_t exponent = shifted & 0xff000000u;
    const std::uint32_t clamped = exponent < 0x71000000u ? 0x71000000u : exponent;
    const float rounded = __builtin_bit_cast(float, (clamped >> 1) + 0x07800000u) + saturated;
    const auto bits = __builtin_bit_cast(std::uint32_t, rounded);
    const std::uint32_t nonsign = ((bits >> 13) & 0x7c00u) + (bits & 0x0fffu);
    return {static_cast<std::uint16_t>(sign | (shifted > 0xff000000u ? 0x7e00u : nonsign))};
#endif
  }

  /// Exact.
  LACEWING_HOST_DEVICE float to_float() const {
#if defined(__CUDA_ARCH__)
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
    return result;
#else
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    const std::uint32_t sign = word & 0x80000000u;
    const std::uint32_t shifted = word + word;
    // Normal numbers, infinities and NaNs: rebias the exponent by a multiplication.
    const float normal = __builtin_bit_cast(float, (shifted >> 4) + (0xe0u << 23)) * 0x1p-112f;
    // Subnormal numbers: the mantissa under the exponent of 0.5, minus 0.5.
    const float subnormal = __builtin_bit_cast(float, (shifted >> 17) | (126u << 23)) - 0.5f;
    const auto magnitude = __builtin_bit_cast(std::uint32_t, shifted < (1u << 27) ? subnormal : normal);
    return __builtin_bit_cast(float, sign | magnitude);
#endif
  }
};

/// bfloat16, the upper half of a float, as its bit pattern. Storage only: arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits;

  /// Rounds to nearest, ties to even; every NaN becomes 0x7fc0.
  LACEWING_HOST_DEVICE static BFloat16 from_float(float value) {
    const auto word = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    return {static_cast<std::uint16_t>((word & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
  }

  /// Exact.
  LACEWING_HOST_DEVICE float to_float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
};

/// A complex number: real part first, aligned to both parts together, as c10::complex is.
template <typename T>
struct alignas(2 * sizeof(T)) Complex {
  T re;
  T im;

  LACEWING_HOST_DEVICE constexpr Complex& operator+=(Complex other) {
    re += other.re;
    im += other.im;
    return *this;
  }
  LACEWING_HOST_DEVICE constexpr Complex& operator-=(Complex other) {
    re -= other.re;
    im -= other.im;
    return *this;
  }
  LACEWING_HOST_DEVICE constexpr Complex& operator*=(Complex other) {
    *this = *this * other;
    return *this;
  }

  LACEWING_HOST_DEVICE friend constexpr Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
  LACEWING_HOST_DEVICE friend constexpr Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
  LACEWING_HOST_DEVICE friend constexpr Complex operator-(Complex a) { return {-a.re, -a.im}; }
  LACEWING_HOST_DEVICE friend constexpr Complex operator*(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  LACEWING_HOST_DEVICE friend constexpr Complex operator*(T a, Complex b) { return {a * b.re, a * b.im}; }
  LACEWING_HOST_DEVICE friend constexpr Complex operator*(Complex a, T b) { return b * a; }
  LACEWING_HOST_DEVICE friend constexpr bool operator==(Complex a, Complex b) { return a.re == b.re && a.im == b.im; }
};

template <typename T>
inline constexpr bool is_complex_v = false;
template <typename T>
inline constexpr bool is_complex_v<Complex<T>> = true;

/// The complex conjugate; a real value is its own.
template <typename T>
LACEWING_HOST_DEVICE constexpr T conj(T value) {
  if constexpr (is_complex_v<T>) {
    return {value.re, -value.im};
  } else {
    return value;
  }
}

namespace detail {

template <typename T>
struct Identity {
  using type = T;
};

template <ScalarType S>
struct ScalarOf;
template <>
struct ScalarOf<ScalarType::u8> : Identity<std::uint8_t> {};
template <>
struct ScalarOf<ScalarType::i8> : Identity<std::int8_t> {};
template <>
struct ScalarOf<ScalarType::i16> : Identity<std::int16_t> {};
template <>
struct ScalarOf<ScalarType::i32> : Identity<std::int32_t> {};
template <>
struct ScalarOf<ScalarType::i64> : Identity<std::int64_t> {};
template <>
struct ScalarOf<ScalarType::f16> : Identity<Half> {};
template <>
struct ScalarOf<ScalarType::bf16> : Identity<BFloat16> {};
template <>
struct ScalarOf<ScalarType::f32> : Identity<float> {};
template <>
struct ScalarOf<ScalarType::f64> : Identity<double> {};
template <>
struct ScalarOf<ScalarType::c64> : Identity<Complex<float>> {};
template <>
struct ScalarOf<ScalarType::c128> : Identity<Complex<double>> {};

}  // namespace detail

/// The C++ type of a scalar type.
template <ScalarType S>
using scalar_t = typename detail::ScalarOf<S>::type;

/// True for the two types that are stored narrow and computed with in float.
template <typename T>
inline constexpr bool is_narrow_v = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// The type in which sums of T are kept: float for Half and BFloat16, T itself otherwise.
template <typename T>
using accumulate_t = std::conditional_t<is_narrow_v<T>, float, T>;

/// A stored value in the type that sums are kept in; exact.
template <typename T>
LACEWING_HOST_DEVICE constexpr accumulate_t<T> widen(T value) {
  if constexpr (is_narrow_v<T>) {
    return value.to_float();
  } else {
    return value;
  }
}

/// The one rounding from a sum to what is stored.
template <typename T>
LACEWING_HOST_DEVICE constexpr T narrow(accumulate_t<T> value) {
  if constexpr (is_narrow_v<T>) {
    return T::from_float(value);
  } else {
    return value;
  }
}

}  // namespace lacewing
