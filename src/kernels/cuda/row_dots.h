// Rows in the registers of a group of lanes, and their dots.
//
// Order of a dot: a lane adds its channels in order, lanes are added by a tree; how many lanes there are follows from
// the channels alone.
#pragma once

#include "kernels/cuda/device/vector.h"

namespace lacewing::kernels::cuda {

/// The channels of a lane: Width at a time, Packs times, as many channels apart as all lanes take at a time.
template <int Width, int Packs, typename T>
struct Row {
  Pack<T, Width> pack[Packs];

  __device__ __forceinline__ void read(const T* from, int lane, int lanes, std::int64_t channels) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t channel = static_cast<std::int64_t>(p * lanes + lane) * Width;
      if (channel < channels) {
        pack[p] = load<Width>(from + channel);
      } else {
        pack[p] = Pack<T, Width>{};
      }
    }
  }
};

/// A lane's share.
template <int Width, int Packs, typename T>
__device__ __forceinline__ accumulate_t<T> dot(const Row<Width, Packs, T>& a, const Row<Width, Packs, T>& b,
                                               bool conjugate_a, bool conjugate_b) {
  accumulate_t<T> sum{};
#pragma unroll
  for (int p = 0; p < Packs; ++p) {
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const accumulate_t<T> left = widen(a.pack[p].at[k]);
      const accumulate_t<T> right = widen(b.pack[p].at[k]);
      sum += (conjugate_a ? conj(left) : left) * (conjugate_b ? conj(right) : right);
    }
  }
  return sum;
}

inline constexpr int kMostPacks = 4;
inline constexpr int kMostDotLaneBits = 5;

/// 2^bits lanes for so many vectors: one for each, as far as a warp goes.
inline int dot_lane_bits(std::int64_t vectors) {
  int bits = 0;
  while (bits < kMostDotLaneBits && vectors > std::int64_t{1} << bits) {
    ++bits;
  }
  return bits;
}

}  // namespace lacewing::kernels::cuda
