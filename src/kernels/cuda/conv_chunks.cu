#include <algorithm>

#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/conv_chunks.h"
#include "kernels/cuda/device/items.h"
#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/vector.h"

namespace lacewing::kernels::cuda {
namespace {

/// A warp for each chunk, a lane for each tap.
__global__ void __launch_bounds__(kItemThreads)
    list_chunks_kernel(const __grid_constant__ ConvChunks chunks, ConvChunk* list) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kItemThreads / 32);
  for (std::int64_t slot = static_cast<std::int64_t>(blockIdx.x) * (kItemThreads / 32) + threadIdx.x / 32;
       slot < chunks.first[chunks.taps]; slot += warps) {
    int tap = 0;
    for (int other = lane; other < chunks.taps; other += 32) {
      tap += chunks.first[other + 1] <= slot ? 1 : 0;
    }
    tap = sum_lanes(tap, 32);
    const std::int64_t number = slot - chunks.first[tap];
    const std::int64_t count = chunks.first[tap + 1] - chunks.first[tap];
    // Of each tap, the chunks whose middle comes before this one's, as parts of their taps: 2 i + 1 halves of a chunk.
    std::int64_t rank = 0;
    for (int other = lane; other < chunks.taps; other += 32) {
      const std::int64_t others = chunks.first[other + 1] - chunks.first[other];
      const std::int64_t halves = (2 * number + 1) * others - (other < tap ? 0 : 1);
      rank += (halves / count + 1) / 2;
    }
    rank = sum_lanes(rank, 32);
    if (lane == 0) {
      const std::int64_t pairs = chunks.offsets[tap + 1] - chunks.offsets[tap];
      const std::int64_t length = weight_grad_chunk(pairs, chunks.in, chunks.out);
      list[rank] = {chunks.offsets[tap] + number * length,
                    static_cast<std::int32_t>(min(length, pairs - number * length)), static_cast<std::int32_t>(slot)};
    }
  }
}

constexpr int kSumLanes = 32;  ///< of four elements each
constexpr int kSumWays = 8;    ///< shares of a tap's chunks
constexpr int kSumElements = 4 * kSumLanes;

/// A block adds up so many elements of one tap: way w takes the chunks w, w + 8, ..., then the ways are added in order.
template <typename T>
__global__ void __launch_bounds__(kSumLanes* kSumWays)
    add_chunks_kernel(const __grid_constant__ ConvChunks chunks, const float* sums, T* gradient,
                      std::int64_t gradient_stride, std::int64_t elements) {
  __shared__ float4 ways[kSumWays][kSumLanes];
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int way = static_cast<int>(threadIdx.x) / kSumLanes;
  const std::int64_t blocks = (elements + kSumElements - 1) / kSumElements;
  for (std::int64_t block = blockIdx.x; block < blocks * chunks.taps; block += gridDim.x) {
    const auto tap = static_cast<int>(block / blocks);
    const std::int64_t element = (block - tap * blocks) * kSumElements + 4 * lane;
    float4 sum = float4{};
    if (element < elements) {
#pragma unroll 8
      for (int slot = chunks.first[tap] + way; slot < chunks.first[tap + 1]; slot += kSumWays) {
        const float4 part = __ldcs(reinterpret_cast<const float4*>(sums + slot * elements + element));
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
    }
    ways[way][lane] = sum;
    __syncthreads();
    if (way == 0 && element < elements) {
      for (int w = 1; w < kSumWays; ++w) {
        const float4 part = ways[w][lane];
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
      *reinterpret_cast<Pack<T, 4>*>(gradient + tap * gradient_stride + element) = {
          {narrow<T>(sum.x), narrow<T>(sum.y), narrow<T>(sum.z), narrow<T>(sum.w)}};
    }
    __syncthreads();
  }
}

}  // namespace

ConvChunks::ConvChunks(const ConvWeightGradArgs& args, std::int64_t from, std::int64_t count)
    : in(static_cast<std::int32_t>(args.in)),
      out(static_cast<std::int32_t>(args.out)),
      first_tap(static_cast<std::int32_t>(from)),
      taps(static_cast<std::int32_t>(count)) {
  std::copy_n(args.map.tap_offsets + from, count + 1, offsets);
  first[0] = 0;
  for (std::int64_t tap = 0; tap < count; ++tap) {
    const std::int64_t pairs = offsets[tap + 1] - offsets[tap];
    first[tap + 1] =
        first[tap] + static_cast<std::int32_t>(blocks_for(pairs, weight_grad_chunk(pairs, args.in, args.out)));
  }
}

ConvChunkSpace::ConvChunkSpace(const ConvWeightGradArgs& args) {
  std::int64_t most = 0;
  for_chunks(args, [&](const ConvChunks& some, std::int64_t) { most = std::max<std::int64_t>(most, some.count()); });
  chunks = layout.add<ConvChunk>(most);
  sums = layout.add<float>(most * args.in * args.out);
}

void list_chunks(const ConvChunks& chunks, ConvChunk* list, const CudaExecutor& executor) {
  launch(over("list_chunks", std::int64_t{chunks.count()} * 32), executor, list_chunks_kernel, chunks, list);
}

void add_chunks(const ConvChunks& chunks, const ConvWeightGradArgs& args, std::int64_t group, const float* sums,
                const CudaExecutor& executor) {
  const std::int64_t elements = args.in * args.out;
  const auto add = [&](auto scalar) {
    using T = decltype(scalar);
    T* const gradient = static_cast<T*>(args.weight_grad) + (chunks.first_tap * args.groups + group) * elements;
    launch({"add_chunks", blocks_for(elements, kSumElements) * chunks.taps, kSumLanes * kSumWays}, executor,
           add_chunks_kernel<T>, chunks, sums, gradient, args.groups * elements, elements);
  };
  if (args.type == ScalarType::f16) {
    add(Half{});
  } else {
    add(BFloat16{});
  }
}

}  // namespace lacewing::kernels::cuda
