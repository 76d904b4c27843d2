// A group of lanes walks over consecutive terms and keeps the rows that it read: in a sorted matrix one of the two is
// the same for all entries of a row.
#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/row_dots.h"
#include "kernels/terms.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 16;   ///< consecutive terms of a group
constexpr int kAhead = 4;  ///< terms whose rows are read at a time, and whose dots are added over the lanes

template <typename T, typename Index>
struct EntryDots {
  TermsView<Index> terms;
  Operand x, y;
  const T* scale;
  bool conjugate_scale;
  T* z;
  std::int64_t z_stride_n, z_stride_m;
  std::int64_t batch, channels, count;
  int lane_bits;
};

/// The sums over the lanes of four dots: lane l of the group gets the (l mod 4)-th, of groups of fewer lanes lane 0
/// all.
template <typename V>
struct FourDots {
  V all[4];
  int lanes;

  /// Calls f(u, sum) for every u of this lane.
  template <typename F>
  __device__ __forceinline__ void each(int lane, unsigned together, F&& f) {
    if (lanes >= 4) {
      const V sum = sum_four(all, lanes, together);
      if (lane < 4) {
        f(lane, sum);
      }
      return;
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const V sum = sum_lanes(all[u], lanes, together);
      if (lane == 0) {
        f(u, sum);
      }
    }
  }
};

/// Channels of at most lanes * Width * Packs.
template <int Width, int Packs, typename T, typename Index>
__global__ void __launch_bounds__(kThreads) entry_dots_kernel(const __grid_constant__ EntryDots<T, Index> d) {
  const int lanes = 1 << d.lane_bits;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int groups = kThreads >> d.lane_bits;
  const std::int64_t runs = (d.count + kRun - 1) / kRun;
  const std::int64_t blocks = (runs * d.batch + groups - 1) / groups;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {  // equal rounds for all lanes
    const std::int64_t item = block * groups + (threadIdx.x >> d.lane_bits);
    const std::int64_t n = d.batch == 1 ? 0 : item / runs;
    const std::int64_t begin = n < d.batch ? (item - n * runs) * kRun : d.count;
    const T* const x = static_cast<const T*>(d.x.data) + n * d.x.stride_n;
    const T* const y = static_cast<const T*>(d.y.data) + n * d.y.stride_n;
    Row<Width, Packs, T> left[kAhead], right[kAhead];
    std::int64_t left_row = -1;
    std::int64_t right_row = -1;
    for (int k = 0; k < kRun; k += kAhead) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const std::int64_t term = begin + k + u;
        if (term < d.count) {
          const std::int64_t first = d.terms.first(term);
          const std::int64_t second = d.terms.second(term);
          if (first != left_row) {
            left[u].read(x + first * d.x.stride_m, lane, lanes, d.channels);
            left_row = first;
          } else {
            left[u] = left[(u + kAhead - 1) % kAhead];
          }
          if (second != right_row) {
            right[u].read(y + second * d.y.stride_m, lane, lanes, d.channels);
            right_row = second;
          } else {
            right[u] = right[(u + kAhead - 1) % kAhead];
          }
        }
      }
      FourDots<accumulate_t<T>> dots{{}, lanes};
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (begin + k + u < d.count) {
          dots.all[u] = dot(left[u], right[u], d.x.conjugate, d.y.conjugate);
        }
      }
      dots.each(lane, kWholeWarp, [&](int u, accumulate_t<T> sum) {
        const std::int64_t term = begin + k + u;
        if (term >= d.count) {
          return;
        }
        if (d.scale != nullptr) {
          const accumulate_t<T> factor = widen(d.scale[d.terms.entry(term)]);
          sum = (d.conjugate_scale ? conj(factor) : factor) * sum;
        }
        d.z[n * d.z_stride_n + term * d.z_stride_m] = narrow<T>(sum);
      });
    }
  }
}

template <typename T>
std::int64_t width_of(const ProductArgs& args) {
  const bool vectors = !is_complex_v<T> &&
                       is_aligned<T>(args.x.data, args.x.stride_n, args.x.stride_m, args.extent_a) &&
                       is_aligned<T>(args.y.data, args.y.stride_n, args.y.stride_m, args.extent_a);
  return vectors ? kVectorWidth<T> : 1;
}

template <int Width, typename T, typename Index>
void run(const ProductArgs& args, const CudaExecutor& executor) {
  const std::int64_t vectors = (args.extent_a + Width - 1) / Width;
  const EntryDots<T, Index> d{TermsView<Index>(args.terms),
                              args.x,
                              args.y,
                              static_cast<const T*>(args.scale),
                              args.conjugate_scale,
                              static_cast<T*>(args.output()),
                              args.z.stride_n,
                              args.z.stride_m,
                              args.batch,
                              args.extent_a,
                              args.terms.terms,
                              dot_lane_bits(vectors)};
  const std::int64_t groups = kThreads >> d.lane_bits;
  const Launch shape{"entry_dots", blocks_for(blocks_for(d.count, kRun) * d.batch, groups), kThreads};
  if (vectors <= (std::int64_t{1} << d.lane_bits)) {
    launch(shape, executor, entry_dots_kernel<Width, 1, T, Index>, d);
  } else {
    launch(shape, executor, entry_dots_kernel<Width, kMostPacks, T, Index>, d);
  }
}

}  // namespace

bool is_entry_dots(const ProductArgs& args) {
  if (args.pattern != Pattern::inner || args.accumulate || args.terms.segments != nullptr || args.x.stride_a != 1 ||
      args.y.stride_a != 1) {
    return false;
  }
  std::int64_t width = 1;
  visit_types(args.type, false, [&](auto scalar, auto) { width = width_of<decltype(scalar)>(args); });
  return args.extent_a <= (width * kMostPacks << kMostDotLaneBits);
}

void entry_dots(const ProductArgs& args, const CudaExecutor& executor) {
  visit_types(args.type, args.terms.wide, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    using Index = decltype(index);
    if (width_of<T>(args) == 1) {
      run<1, T, Index>(args, executor);
    } else if constexpr (!is_complex_v<T>) {
      run<kVectorWidth<T>, T, Index>(args, executor);
    }
  });
}

}  // namespace lacewing::kernels::cuda
