// Several elements at a time: loads and stores of up to 16 bytes, and arithmetic in the type that sums are kept in.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels::cuda {

inline constexpr int kVectorBytes = 16;

/// As many elements as fit 16 bytes.
template <typename T>
inline constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

/// Sums of N elements.
template <typename T, int N>
struct Sums {
  accumulate_t<T> at[N] = {};

  __device__ __forceinline__ void add(accumulate_t<T> weight, const Pack<T, N>& pack, bool conjugate) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const accumulate_t<T> value = widen(pack.at[k]);
      at[k] += weight * (conjugate ? conj(value) : value);
    }
  }
};

/// Sums as they are stored.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> narrowed(const Sums<T, N>& sums) {
  Pack<T, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    out.at[k] = narrow<T>(sums.at[k]);
  }
  return out;
}

/// Read-only data that others will read too.
template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

/// Written once and not read again here.
template <typename T, int N>
__device__ __forceinline__ void store_once(T* to, const Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == 16) {
    __stcs(reinterpret_cast<float4*>(to), __builtin_bit_cast(float4, pack));
  } else if constexpr (sizeof(pack) == 8) {
    __stcs(reinterpret_cast<float2*>(to), __builtin_bit_cast(float2, pack));
  } else if constexpr (sizeof(pack) == 4) {
    __stcs(reinterpret_cast<float*>(to), __builtin_bit_cast(float, pack));
  } else {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  }
}

/// Whether rows of so many elements that begin at multiples of these strides can be read as vectors of 16 bytes.
template <typename T>
bool is_aligned(const void* data, std::int64_t stride_n, std::int64_t stride_m, std::int64_t channels) {
  constexpr std::int64_t width = kVectorWidth<T>;
  return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0 && stride_n % width == 0 && stride_m % width == 0 &&
         channels % width == 0;
}

}  // namespace lacewing::kernels::cuda
