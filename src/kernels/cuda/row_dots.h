// Rows in the registers of a group of lanes, and their dots.
//
// Order of a dot: the channels are cut into slices. In a slice a lane adds its channels in order, lanes are added by a
// tree; slices are added in order. Lanes and slices follow from the channels alone.
#pragma once

#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/gather_sum_choose.h"

namespace lacewing::kernels::cuda {

/// How a row of so many vectors is dealt to lanes: `packs` vectors of each in a slice.
struct DotShape {
  int lane_bits = 0;
  int packs = 1;
  std::int64_t slices = 1;

  static DotShape of(std::int64_t vectors) {
    constexpr int kMostLaneBits = 3;
    constexpr std::int64_t kFour = 4;
    DotShape shape;
    shape.packs = vectors > kFour ? 2 : 1;
    shape.lane_bits = bits_for((vectors + shape.packs - 1) / shape.packs, kMostLaneBits);
    const std::int64_t of_slice = std::int64_t{shape.packs} << shape.lane_bits;
    shape.slices = (vectors + of_slice - 1) / of_slice;
    return shape;
  }
  bool operator==(const DotShape&) const = default;
};

/// The channels of a lane in one slice: Width at a time, Packs times, as many channels apart as all lanes take at a
/// time. Those beyond the row's `left` channels are not there.
template <int Width, int Packs, typename T>
struct Row {
  Pack<T, Width> pack[Packs];

  static __device__ __forceinline__ bool has(int p, int lanes, std::int64_t left) { return p * lanes * Width < left; }

  /// `left` channels begin at `from`, this lane's first one.
  __device__ __forceinline__ void read(const T* from, int lanes, std::int64_t left) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      if (has(p, lanes, left)) {
        pack[p] = load<Width>(from + p * lanes * Width);
      }
    }
  }
};

/// A lane's share.
template <int Width, int Packs, typename T>
__device__ __forceinline__ accumulate_t<T> dot(const Row<Width, Packs, T>& a, const Row<Width, Packs, T>& b,
                                               bool conjugate_a, bool conjugate_b, int lanes, std::int64_t left) {
  accumulate_t<T> sum{};
#pragma unroll
  for (int p = 0; p < Packs; ++p) {
    if (a.has(p, lanes, left)) {
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        const accumulate_t<T> of_a = widen(a.pack[p].at[k]);
        const accumulate_t<T> of_b = widen(b.pack[p].at[k]);
        sum += (conjugate_a ? conj(of_a) : of_a) * (conjugate_b ? conj(of_b) : of_b);
      }
    }
  }
  return sum;
}

/// Terms whose rows are read at a time.
template <int Packs>
constexpr int kDotsAhead = Packs == 1 ? 4 : 2;

/// The sums over the lanes of a few dots: calls f(k, sum) on one lane for each.
template <int Count, typename V, typename F>
__device__ __forceinline__ void sum_dots(const V (&dots)[Count], int lane, int lanes, unsigned together, F&& f) {
  if (lanes >= Count) {
    const V sum = sum_of_each(dots, lanes, together);
    if (lane < Count) {
      f(lane, sum);
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < Count; ++k) {
    const V sum = sum_lanes(dots[k], lanes, together);
    if (lane == 0) {
      f(k, sum);
    }
  }
}

}  // namespace lacewing::kernels::cuda
