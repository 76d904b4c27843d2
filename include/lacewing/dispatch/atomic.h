// Atomic updates that compile for host and device. Relaxed order: only the value is atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::dispatch {

/// *target += value, atomically; a complex number part by part. The order of several additions, and
/// so the last bits of a floating-point sum, is not determined.
template <typename T>
LACEWING_HOST_DEVICE void atomic_add(T* target, T value) {
  if constexpr (is_complex_v<T>) {
    atomic_add(&target->re, value.re);
    atomic_add(&target->im, value.im);
  } else if constexpr (is_narrow_v<T>) {
    // Neither std::atomic_ref nor sm_60 adds 16-bit floats: compare and swap the bit pattern.
#if defined(__CUDA_ARCH__)
    auto* bits = reinterpret_cast<unsigned short*>(&target->bits);
    unsigned short expected = *bits;
    unsigned short seen;
    while ((seen = atomicCAS(bits, expected, narrow<T>(widen(T{expected}) + widen(value)).bits)) != expected) {
      expected = seen;
    }
#else
    std::atomic_ref<std::uint16_t> bits(target->bits);
    std::uint16_t expected = bits.load(std::memory_order_relaxed);
    while (!bits.compare_exchange_weak(expected, narrow<T>(widen(T{expected}) + widen(value)).bits,
                                       std::memory_order_relaxed)) {
    }
#endif
  } else {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, std::int64_t>) {
      atomicAdd(reinterpret_cast<unsigned long long*>(target), static_cast<unsigned long long>(value));
    } else {
      atomicAdd(target, value);
    }
#else
    std::atomic_ref<T>(*target).fetch_add(value, std::memory_order_relaxed);
#endif
  }
}

/// *target = min(*target, value), atomically; the result does not depend on any order.
LACEWING_HOST_DEVICE inline void atomic_min(std::int64_t* target, std::int64_t value) {
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<long long*>(target), static_cast<long long>(value));
#else
  std::atomic_ref<std::int64_t> current(*target);
  std::int64_t expected = current.load(std::memory_order_relaxed);
  while (value < expected && !current.compare_exchange_weak(expected, value, std::memory_order_relaxed)) {
  }
#endif
}

}  // namespace lacewing::dispatch
