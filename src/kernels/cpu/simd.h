// Vectors of the widest kind that the ISA level of this translation unit has, by the compiler's vector extensions.
// Everything here is always_inline and in the ISA's own namespace: two ISA levels never share a symbol.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <lacewing/dispatch/scalar.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define LACEWING_INLINE inline __attribute__((always_inline))
#define LACEWING_INLINE_LAMBDA __attribute__((always_inline))

namespace lacewing::kernels::cpu::LACEWING_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kVectorRegisters = 16;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorRegisters = 16;
#endif

/// `lanes` values of A side by side.
template <typename A>
struct Simd {
  typedef A Vec __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / static_cast<int>(sizeof(A));

  static LACEWING_INLINE Vec zero() { return Vec{}; }
  static LACEWING_INLINE Vec load(const A* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static LACEWING_INLINE void store(A* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }

  /// The first `count` lanes, 0 <= count <= lanes; the others are zero and their memory is not touched.
  static LACEWING_INLINE Vec load_part(const A* p, int count) {
    Vec v{};
#if defined(__AVX512F__)
    if constexpr (sizeof(A) == 4) {
      v = (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), p);
    } else {
      v = (Vec)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1u), p);
    }
#else
    for (int i = 0; i < count; ++i) {
      v[i] = p[i];
    }
#endif
    return v;
  }
  static LACEWING_INLINE void store_part(A* p, Vec v, int count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(A) == 4) {
      _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), (__m512)v);
    } else {
      _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << count) - 1u), (__m512d)v);
    }
#else
    for (int i = 0; i < count; ++i) {
      p[i] = v[i];
    }
#endif
  }

  /// The sum of the lanes by halves: a fixed order, the same for every call.
  static LACEWING_INLINE A sum(Vec v) {
    A part[lanes];
    __builtin_memcpy(part, &v, sizeof(v));
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        part[i] += part[i + half];
      }
    }
    return part[0];
  }
};

/// Masks that exchange halves of pairs of vectors, Half lanes at a time.
template <typename A, int Half>
struct HalfMasks {
  static constexpr int lanes = Simd<A>::lanes;
  typedef std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t> Mask
      __attribute__((vector_size(kVectorBytes)));
  Mask low{};
  Mask high{};

  LACEWING_INLINE HalfMasks() {
    for (int i = 0; i < lanes; ++i) {
      const bool upper = (i & Half) != 0;
      low[i] = upper ? lanes + i - Half : i;
      high[i] = upper ? lanes + i : i + Half;
    }
  }
};

/// The sums of the lanes of `lanes` vectors, that of v[i] in lane i: the same additions in the same order as Simd::sum
/// makes, by exchanging halves between pairs of vectors. v is used up. Half begins at lanes / 2.
template <typename A, int Half>
LACEWING_INLINE typename Simd<A>::Vec sum_each(typename Simd<A>::Vec (&v)[Simd<A>::lanes]) {
  const HalfMasks<A, Half> masks;
#pragma GCC unroll 16
  for (int i = 0; i < Half; ++i) {
    const auto a = v[i];
    const auto b = v[i + Half];
    v[i] = __builtin_shuffle(a, b, masks.low) + __builtin_shuffle(a, b, masks.high);
  }
  if constexpr (Half > 1) {
    return sum_each<A, Half / 2>(v);
  } else {
    return v[0];
  }
}

/// Complex numbers go one at a time.
template <typename R>
struct Simd<Complex<R>> {
  using Vec = Complex<R>;
  static constexpr int lanes = 1;

  static LACEWING_INLINE Vec zero() { return Vec{}; }
  static LACEWING_INLINE Vec load(const Vec* p) { return *p; }
  static LACEWING_INLINE void store(Vec* p, Vec v) { *p = v; }
  static LACEWING_INLINE Vec load_part(const Vec*, int) { return Vec{}; }
  static LACEWING_INLINE void store_part(Vec*, Vec, int) {}
  static LACEWING_INLINE Vec sum(Vec v) { return v; }
};

/// Up to one vector's worth of values at p: all of it, or the first count < lanes.
template <bool Whole, typename A>
LACEWING_INLINE typename Simd<A>::Vec load_vec(const A* p, int count) {
  if constexpr (Whole) {
    return Simd<A>::load(p);
  } else {
    return Simd<A>::load_part(p, count);
  }
}

template <bool Whole, typename A>
LACEWING_INLINE void store_vec(A* p, typename Simd<A>::Vec v, int count) {
  if constexpr (Whole) {
    Simd<A>::store(p, v);
  } else {
    Simd<A>::store_part(p, v, count);
  }
}

/// Transposes a square of vectors by exchanging ever smaller off-diagonal squares, from Half lanes down.
template <typename A, int Half>
LACEWING_INLINE void transpose_square(typename Simd<A>::Vec (&v)[Simd<A>::lanes]) {
  constexpr int lanes = Simd<A>::lanes;
  const HalfMasks<A, Half> masks;
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    if ((i & Half) == 0) {
      const auto a = v[i];
      const auto b = v[i + Half];
      v[i] = __builtin_shuffle(a, b, masks.low);
      v[i + Half] = __builtin_shuffle(a, b, masks.high);
    }
  }
  if constexpr (Half > 1) {
    transpose_square<A, Half / 2>(v);
  }
}

/// A block of `rows` x `columns` at `from`, unit-stride in its rows (element (r, c) at from[r + c * stride]), written
/// row by row to `to`.
template <typename A>
LACEWING_INLINE void transpose_block(const A* from, std::int64_t stride, A* to, std::int64_t rows,
                                     std::int64_t columns) {
  std::int64_t r = 0;
  if constexpr (Simd<A>::lanes > 1) {
    constexpr int lanes = Simd<A>::lanes;
    using Vec = typename Simd<A>::Vec;
    for (; r + lanes <= rows; r += lanes) {
      std::int64_t c = 0;
      for (; c + lanes <= columns; c += lanes) {
        Vec v[lanes];
        for (int i = 0; i < lanes; ++i) {
          v[i] = Simd<A>::load(from + r + (c + i) * stride);
        }
        transpose_square<A, lanes / 2>(v);
        for (int i = 0; i < lanes; ++i) {
          Simd<A>::store(to + (r + i) * columns + c, v[i]);
        }
      }
      for (; c < columns; ++c) {
        for (int i = 0; i < lanes; ++i) {
          to[(r + i) * columns + c] = from[r + i + c * stride];
        }
      }
    }
  }
  for (; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      to[r * columns + c] = from[r + c * stride];
    }
  }
}

/// count values from one type to another, contiguous; widening is exact, narrowing rounds to nearest even.
template <typename T>
LACEWING_INLINE void widen_row(const T* from, accumulate_t<T>* to, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  if constexpr (std::is_same_v<T, Half>) {
    for (; i + 8 <= count; i += 8) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
    }
  }
#endif
  for (; i < count; ++i) {
    to[i] = widen(from[i]);
  }
}

template <typename T>
LACEWING_INLINE void narrow_row(const accumulate_t<T>* from, T* to, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  if constexpr (std::is_same_v<T, Half>) {
    for (; i + 8 <= count; i += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
    }
  }
#endif
  for (; i < count; ++i) {
    to[i] = narrow<T>(from[i]);
  }
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
