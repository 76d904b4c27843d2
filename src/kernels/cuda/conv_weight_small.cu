// The weight gradient of few channels by mma.sync: a block computes the sum of one chunk of a tap's pairs. Its warps
// take steps of 32 pairs in turn, each through a ring of its own in shared memory; their sums are added in the order of
// the warps.
#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/conv_chunks.h"
#include "kernels/cuda/conv_weight_small.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStep = 32;
constexpr int kStages = 3;

/// Rows of one side: a group of channels, padded to Channels.
struct Side {
  const char* rows;
  std::uint32_t row_bytes;
  int channels;
  const std::int32_t* list;  ///< of the pairs
};

struct SmallChunkSums {
  Side x;
  Side grad;
  const ConvChunk* chunks;
  int count;
  float* sums;
  std::int64_t slot_stride;
};

/// 32 rows of so many channels in shared memory. The 16 bytes number v of a row lie where eight rows that are read
/// together meet different banks.
template <int Channels>
struct StepRows {
  static constexpr int kRowBytes = Channels * 2;
  static constexpr int kBytes = kStep * kRowBytes;
  static constexpr int kVectors = Channels / kConvVectorChannels;

  static __device__ __forceinline__ std::uint32_t place(int row, int vector) {
    return row * kRowBytes + ((vector ^ (Channels == 32 ? row >> 1 & 3 : row >> 2 & 1)) << 4);
  }

  /// `number` is the row of this lane's pair, or -1.
  static __device__ __forceinline__ void copy(const Side& side, int number, std::uint32_t to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int row = lane / kVectors + i * (32 / kVectors);
      const int vector = lane % kVectors;
      const int from = __shfl_sync(0xffffffffu, number, row);
      const char* const source =
          side.rows + static_cast<std::uint64_t>(static_cast<std::uint32_t>(from)) * side.row_bytes + vector * 16;
      const std::uint32_t there = to + place(row, vector);
      const int channels = side.channels - vector * kConvVectorChannels;
      if (channels == 4) {
        ptx::cp_async_8(there, source, from >= 0);
        ptx::cp_async_8(there + 8, source, false);
      } else {
        ptx::cp_async_16(there, source, from >= 0 && channels > 0);
      }
    }
  }
};

template <int In, int Out, typename T>
class ChunkWarp {
 public:
  static constexpr int kStageBytes = StepRows<In>::kBytes + StepRows<Out>::kBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;

  __device__ __forceinline__ ChunkWarp(const SmallChunkSums& work, std::uint32_t ring) : work_(work), ring_(ring) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    warp_ = static_cast<int>(threadIdx.x) / 32;
  }

  /// This warp's share of a chunk.
  __device__ __forceinline__ void add(const ConvChunk& chunk) {
    chunk_ = chunk;
    const int all = (chunk.pairs + kStep - 1) / kStep;
    steps_ = all > warp_ ? (all - warp_ + kWarps - 1) / kWarps : 0;
#pragma unroll
    for (int i = 0; i < In * Out / 32; ++i) {
      (&sums_[0][0][0])[i] = 0.0f;
    }
    ahead_[0] = read(0);
    ahead_[1] = read(1);
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      issue(step);
    }
    for (int step = 0; step < steps_; ++step) {
      issue(step + kStages - 1);
      ptx::cp_async_wait_group<kStages - 1>();
      __syncwarp();
      multiply(ring_ + step % kStages * kStageBytes);
      __syncwarp();
    }
    ptx::cp_async_wait_group<0>();
  }

  /// (In, Out)
  __device__ __forceinline__ void put(float* to) const {
#pragma unroll
    for (int i = 0; i < In / 16; ++i) {
#pragma unroll
      for (int j = 0; j < Out / 8; ++j) {
        float* const at = to + (16 * i + lane_ / 4) * Out + 8 * j + lane_ % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(sums_[i][j][0], sums_[i][j][1]);
        *reinterpret_cast<float2*>(at + 8 * Out) = make_float2(sums_[i][j][2], sums_[i][j][3]);
      }
    }
  }

 private:
  /// This lane's pair of a step.
  __device__ __forceinline__ int2 read(int step) const {
    const int pair = (warp_ + kWarps * step) * kStep + lane_;
    return step < steps_ && pair < chunk_.pairs
               ? make_int2(__ldg(work_.x.list + chunk_.begin + pair), __ldg(work_.grad.list + chunk_.begin + pair))
               : make_int2(-1, -1);
  }

  __device__ __forceinline__ void issue(int step) {
    if (step < steps_) {
      const std::uint32_t stage = ring_ + step % kStages * kStageBytes;
      StepRows<In>::copy(work_.x, ahead_[0].x, stage);
      StepRows<Out>::copy(work_.grad, ahead_[0].y, stage + StepRows<In>::kBytes);
    }
    ptx::cp_async_commit_group();
    ahead_[0] = ahead_[1];
    ahead_[1] = read(step + 2);
  }

  __device__ __forceinline__ void multiply(std::uint32_t stage) {
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      std::uint32_t a[In / 16][4];
      std::uint32_t b[Out / 16][4];
#pragma unroll
      for (int i = 0; i < In / 16; ++i) {
        const int row = 16 * k + lane_ % 8 + (lane_ >> 4 & 1) * 8;
        ptx::ldmatrix_x4_trans(a[i], stage + StepRows<In>::place(row, 2 * i + (lane_ >> 3 & 1)));
      }
#pragma unroll
      for (int j = 0; j < Out / 16; ++j) {
        const int row = 16 * k + lane_ % 8 + (lane_ >> 3 & 1) * 8;
        ptx::ldmatrix_x4_trans(b[j],
                               stage + StepRows<In>::kBytes + StepRows<Out>::place(row, 2 * j + (lane_ >> 4 & 1)));
      }
#pragma unroll
      for (int i = 0; i < In / 16; ++i) {
#pragma unroll
        for (int j = 0; j < Out / 8; ++j) {
          ptx::mma_m16n8k16<T>(sums_[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  const SmallChunkSums& work_;
  std::uint32_t ring_;
  ConvChunk chunk_;
  int lane_, warp_;
  int steps_ = 0;
  int2 ahead_[2];
  float sums_[In / 16][Out / 8][4];
};

template <int In, int Out, typename T>
constexpr std::int64_t shared_bytes() {
  return std::max<std::int64_t>(kWarps * ChunkWarp<In, Out, T>::kRingBytes, kWarps * In * Out * 4);
}

template <int In, int Out, typename T>
__global__ void __launch_bounds__(kThreads, 2) conv_weight_small_kernel(const __grid_constant__ SmallChunkSums work) {
  using Warp = ChunkWarp<In, Out, T>;
  extern __shared__ float4 shared[];
  auto* const parts = reinterpret_cast<float*>(shared);
  const int warp_number = static_cast<int>(threadIdx.x) / 32;
  Warp warp(work, ptx::shared_address(shared) + warp_number * Warp::kRingBytes);
  for (int c = static_cast<int>(blockIdx.x); c < work.count; c += static_cast<int>(gridDim.x)) {
    const ConvChunk chunk = __builtin_bit_cast(ConvChunk, __ldg(reinterpret_cast<const int4*>(work.chunks) + c));
    warp.add(chunk);
    __syncthreads();
    warp.put(parts + warp_number * In * Out);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < In * Out; i += kThreads) {
      float sum = parts[i];
      for (int w = 1; w < kWarps; ++w) {
        sum += parts[w * In * Out + i];
      }
      if (i / Out < work.x.channels && i % Out < work.grad.channels) {
        work.sums[chunk.slot * work.slot_stride + i / Out * work.grad.channels + i % Out] = sum;
      }
    }
    __syncthreads();
  }
}

template <int In, int Out>
void run(const ConvWeightGradArgs& args, const SmallChunkSums& work, const CudaExecutor& executor) {
  const auto with = [&](auto scalar) {
    using T = decltype(scalar);
    launch({"conv_weight_small", work.count, kThreads, shared_bytes<In, Out, T>()}, executor,
           conv_weight_small_kernel<In, Out, T>, work);
  };
  if (args.type == ScalarType::f16) {
    with(Half{});
  } else {
    with(BFloat16{});
  }
}

}  // namespace

std::int64_t conv_weight_small_workspace(const ConvWeightGradArgs& args) { return ConvChunkSpace(args).layout.bytes(); }

void conv_weight_small(const ConvWeightGradArgs& args, const CudaExecutor& executor, void* workspace) {
  const ConvChunkSpace space(args);
  for_chunks(args, [&](const ConvChunks& chunks, std::int64_t group) {
    list_chunks(chunks, space.chunks.at(workspace), executor);
    const SmallChunkSums work{
        {static_cast<const char*>(args.x) + group * args.in * 2, static_cast<std::uint32_t>(args.x_stride * 2),
         static_cast<int>(args.in), args.map.source},
        {static_cast<const char*>(args.grad) + group * args.out * 2, static_cast<std::uint32_t>(args.grad_stride * 2),
         static_cast<int>(args.out), args.map.target},
        space.chunks.at(workspace),
        chunks.count(),
        space.sums.at(workspace),
        args.in * args.out};
    if (args.in <= 16) {
      args.out <= 16 ? run<16, 16>(args, work, executor) : run<16, 32>(args, work, executor);
    } else {
      args.out <= 16 ? run<32, 16>(args, work, executor) : run<32, 32>(args, work, executor);
    }
    add_chunks(chunks, args, group, space.sums.at(workspace), executor);
  });
}

}  // namespace lacewing::kernels::cuda
