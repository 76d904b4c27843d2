// Sums of gathered rows: how rows are cut into pieces, and how the pieces of a long row are added.
//
// Order of a row's sum: in each chunk (see gather_sum_choose.h) four sums, the terms k = 0, 1, 2, 3 mod 4 counted from
// its first one, added as (s0 + s1) + (s2 + s3). The chunks of a long row are added in the wider type, 32 sums of every
// 32nd chunk and a tree over them.
#pragma once

#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/gather_sum_choose.h"
#include "kernels/terms.h"

namespace lacewing::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kRowThreads = 128;  ///< where groups of lanes own rows: a block waits for its longest row
inline constexpr int kWays = 4;
inline constexpr int kWarp = 32;

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
/// The type in which the chunks of a long row are added.
template <typename T>
using wider_t = typename WiderOf<accumulate_t<T>>::type;

template <typename To, typename From>
__device__ __forceinline__ To converted(From value) {
  if constexpr (is_complex_v<To>) {
    return {static_cast<decltype(To::re)>(value.re), static_cast<decltype(To::re)>(value.im)};
  } else {
    return static_cast<To>(value);
  }
}

/// What a group of lanes sums: terms of one row, a whole one or a chunk.
struct Piece {
  std::int64_t row = -1;  ///< -1: nothing
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

template <typename T, typename Index>
struct GatherSum {
  TermsView<Index> terms;
  Operand x, y;
  const T* scale;
  bool conjugate_scale;
  T* z;
  std::int64_t z_stride_n, z_stride_m;
  std::int64_t batch, channels, term_count;
  GatherSumChoice choice;
  accumulate_t<T>* parts;  ///< (batch, spans, channels): sums of chunks

  __device__ std::int64_t pieces() const { return choice.spans + terms.rows; }
  __device__ bool is_long(std::int64_t row) const {
    return choice.spans > 0 && terms.end(row) - terms.begin(row) >= 2 * kChunkTerms;
  }

  /// The chunk of a long row that begins in a span. It holds the span's last term.
  __device__ Piece chunk_in(std::int64_t span) const {
    const std::int64_t first = span * kChunkTerms;
    const std::int64_t last = (first + kChunkTerms < term_count ? first + kChunkTerms : term_count) - 1;
    std::int64_t low = 0;
    std::int64_t high = terms.rows - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (terms.begin(middle) <= last) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const std::int64_t start = terms.begin(low);
    const std::int64_t end = terms.end(low);
    const std::int64_t length = end - start;
    if (length < 2 * kChunkTerms || last >= end) {
      return {};
    }
    const std::int64_t chunk = start >= first ? 0 : (first - start + kChunkTerms - 1) / kChunkTerms;
    const std::int64_t begin = start + chunk * kChunkTerms;
    const std::int64_t chunks = length / kChunkTerms;
    if (begin > last || chunk >= chunks) {
      return {};
    }
    return {low, begin, chunk + 1 == chunks ? end : begin + kChunkTerms};
  }

  /// Chunks first: they are the largest pieces.
  __device__ Piece piece(std::int64_t number) const {
    if (number < choice.spans) {
      return chunk_in(number);
    }
    const std::int64_t row = number - choice.spans;
    return is_long(row) ? Piece{} : Piece{row, terms.begin(row), terms.end(row)};
  }

  __device__ T* destination(std::int64_t n, std::int64_t row, std::int64_t channel) const {
    return z + n * z_stride_n + row * z_stride_m + channel;
  }
  __device__ accumulate_t<T>* part(std::int64_t n, std::int64_t span, std::int64_t channel) const {
    return parts + (n * choice.spans + span) * channels + channel;
  }

  __device__ __forceinline__ accumulate_t<T> weight(const T* numbers, std::int64_t term) const {
    auto value = one<accumulate_t<T>>();
    if (numbers != nullptr) {
      value = widen(numbers[terms.second(term) * y.stride_m]);
      value = y.conjugate ? conj(value) : value;
    }
    if (scale != nullptr) {
      const accumulate_t<T> factor = widen(scale[terms.entry(term)]);
      value = (conjugate_scale ? conj(factor) : factor) * value;
    }
    return value;
  }
  __device__ const T* vectors(std::int64_t n) const { return static_cast<const T*>(x.data) + n * x.stride_n; }
  __device__ const T* numbers(std::int64_t n) const {
    return y.data == nullptr ? nullptr : static_cast<const T*>(y.data) + n * y.stride_n;
  }
};

/// The chunks of long rows, added. A block looks at as many spans as it has threads, then adds the rows that begin
/// there.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) add_chunks_kernel(const __grid_constant__ GatherSum<T, Index> g) {
  __shared__ int found[kThreads];
  __shared__ int count;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t blocks = (g.choice.spans + kThreads - 1) / kThreads;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    if (threadIdx.x == 0) {
      count = 0;
    }
    __syncthreads();
    if (const std::int64_t span = block * kThreads + threadIdx.x; span < g.choice.spans) {
      const Piece piece = g.chunk_in(span);
      if (piece.row >= 0 && piece.begin == g.terms.begin(piece.row)) {
        found[atomicAdd(&count, 1)] = static_cast<int>(threadIdx.x);
      }
    }
    __syncthreads();
    for (int k = 0; k < count; ++k) {
      const std::int64_t span = block * kThreads + found[k];
      const std::int64_t row = g.chunk_in(span).row;
      const std::int64_t chunks = (g.terms.end(row) - g.terms.begin(row)) / kChunkTerms;
      for (std::int64_t item = warp; item < g.batch * g.channels; item += kThreads / kWarp) {
        const std::int64_t n = item / g.channels;
        const std::int64_t channel = item - n * g.channels;
        wider_t<T> sum{};
#pragma unroll 4
        for (std::int64_t chunk = lane; chunk < chunks; chunk += kWarp) {
          sum += converted<wider_t<T>>(*g.part(n, span + chunk, channel));
        }
        sum = sum_lanes(sum, kWarp);
        if (lane == 0) {
          *g.destination(n, row, channel) = narrow<T>(converted<accumulate_t<T>>(sum));
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace lacewing::kernels::cuda
