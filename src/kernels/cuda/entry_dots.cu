// A group of lanes walks over a few consecutive terms, and reads both rows of each.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/row_dots.h"
#include "kernels/terms.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 8;  ///< consecutive terms of a group

template <typename T, typename Index>
struct EntryDots {
  TermsView<Index> terms;
  Operand x, y;
  const T* scale;
  bool conjugate_scale;
  T* z;
  std::int64_t z_stride_n, z_stride_m;
  std::int64_t batch, channels, count;
  DotShape shape;
};

template <int Width, int Packs, typename T, typename Index>
__global__ void __launch_bounds__(kThreads) entry_dots_kernel(const __grid_constant__ EntryDots<T, Index> d) {
  constexpr int kAhead = kDotsAhead<Packs>;
  const int lanes = 1 << d.shape.lane_bits;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int groups = kThreads >> d.shape.lane_bits;
  const std::int64_t runs = (d.count + kRun - 1) / kRun;
  const std::int64_t blocks = (runs * d.batch + groups - 1) / groups;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {  // equal rounds for all lanes
    const std::int64_t item = block * groups + (threadIdx.x >> d.shape.lane_bits);
    const std::int64_t n = d.batch == 1 ? 0 : item / runs;
    const std::int64_t begin = n < d.batch ? (item - n * runs) * kRun : d.count;
    const T* const x = static_cast<const T*>(d.x.data) + n * d.x.stride_n;
    const T* const y = static_cast<const T*>(d.y.data) + n * d.y.stride_n;
#pragma unroll 1
    for (std::int64_t term = begin; term < begin + kRun; term += kAhead) {
      const T* left_row[kAhead];
      const T* right_row[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (term + k < d.count) {
          left_row[k] = x + d.terms.first(term + k) * d.x.stride_m;
          right_row[k] = y + d.terms.second(term + k) * d.y.stride_m;
        }
      }
      accumulate_t<T> total{};  // of the dot that this lane ends up with; of few lanes lane 0 has all
      accumulate_t<T> totals[kAhead] = {};
      for (std::int64_t slice = 0; slice < d.shape.slices; ++slice) {
        const std::int64_t channel = ((slice * Packs << d.shape.lane_bits) + lane) * Width;
        Row<Width, Packs, T> left[kAhead], right[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (term + k < d.count) {
            left[k].read(left_row[k] + channel, lanes, d.channels - channel);
            right[k].read(right_row[k] + channel, lanes, d.channels - channel);
          }
        }
        accumulate_t<T> dots[kAhead] = {};
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (term + k < d.count) {
            dots[k] = dot(left[k], right[k], d.x.conjugate, d.y.conjugate, lanes, d.channels - channel);
          }
        }
        sum_dots(dots, lane, lanes, kWholeWarp, [&](int k, accumulate_t<T> sum) {
          if (lanes >= kAhead) {
            total += sum;
          } else {
            totals[k] += sum;
          }
        });
      }
      const auto store = [&](int k, accumulate_t<T> sum) {
        if (term + k >= d.count) {
          return;
        }
        if (d.scale != nullptr) {
          const accumulate_t<T> factor = widen(d.scale[d.terms.entry(term + k)]);
          sum = (d.conjugate_scale ? conj(factor) : factor) * sum;
        }
        d.z[n * d.z_stride_n + (term + k) * d.z_stride_m] = narrow<T>(sum);
      };
      if (lanes >= kAhead) {
        if (lane < kAhead) {
          store(lane, total);
        }
      } else if (lane == 0) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          store(k, totals[k]);
        }
      }
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
                              DotShape::of((args.extent_a + Width - 1) / Width)};
  const std::int64_t groups = kThreads >> d.shape.lane_bits;
  const Launch shape{"entry_dots", blocks_for(blocks_for(d.count, kRun) * d.batch, groups), kThreads};
  launch(shape, executor,
         d.shape.packs == 1 ? entry_dots_kernel<Width, 1, T, Index> : entry_dots_kernel<Width, 2, T, Index>, d);
}

}  // namespace

bool is_entry_dots(const ProductArgs& args) {
  return args.pattern == Pattern::inner && !args.accumulate && args.terms.segments == nullptr && args.x.stride_a == 1 &&
         args.y.stride_a == 1;
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
