// Vectors of accumulators that are loaded from and stored to memory of any floating type.
#pragma once

#include "kernels/cpu/simd.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

/// `lanes` values of T at a time, computed with in their accumulator type.
template <typename T>
struct Lanes {
  using Acc = accumulate_t<T>;
  using Vec = typename Simd<Acc>::Vec;
  static constexpr int lanes = Simd<Acc>::lanes;
  static constexpr bool direct = std::is_same_v<T, Acc>;

  /// The first `count` values, 0 < count <= lanes; the other lanes are zero and their memory is not touched.
  static LACEWING_INLINE Vec load(const T* p, int count) {
    if constexpr (direct) {
      return count == lanes ? Simd<Acc>::load(p) : Simd<Acc>::load_part(p, count);
    } else {
      Acc wide[lanes] = {};
      widen_row(p, wide, count);
      return Simd<Acc>::load(wide);
    }
  }

  /// Stores the first `count` values and returns them as they were rounded.
  static LACEWING_INLINE Vec store(T* p, Vec v, int count) {
    if constexpr (direct) {
      if (count == lanes) {
        Simd<Acc>::store(p, v);
      } else {
        Simd<Acc>::store_part(p, v, count);
      }
      return v;
    } else {
      Acc wide[lanes];
      Simd<Acc>::store(wide, v);
      narrow_row(wide, p, count);
      return load(p, count);
    }
  }
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
