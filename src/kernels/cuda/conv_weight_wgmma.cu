// The weight gradient by wgmma (sm_90a): a block computes the sum of one chunk of a tap's pairs for some channels of
// the input and of the output. One warpgroup gathers 64 rows of both sides a step, one for each 64 channels of the
// input multiplies. The order of sums: pairs of a chunk in order, by the tensor core's own tree of 16; chunks as
// conv_chunks.h says.
#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/conv_chunks.h"
#include "kernels/cuda/conv_weight_wgmma.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ring.h"
#include "kernels/cuda/device/wgmma.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kStep = 64;                          // pairs of a stage
constexpr int kRowBytes = kConvBlockChannels * 2;  // of a block of channels
constexpr int kBlockBytes = kStep * kRowBytes;     // a stage's rows of one block of channels

/// A group of channels and a block of output channels; pointers begin there.
struct ChunkSums {
  const char* x;
  std::uint32_t x_row_bytes;
  const char* grad;
  std::uint32_t grad_row_bytes;
  int in;
  int out;
  const std::int32_t* source;
  const std::int32_t* target;
  const ConvChunk* chunks;
  int units;        ///< chunks, and of each the blocks of input channels
  int unit_blocks;  ///< those blocks
  float* sums;
  std::int64_t slot_stride;
  std::int64_t row_stride;

  __device__ __forceinline__ ConvChunk chunk(int unit) const {
    return unit < units
               ? __builtin_bit_cast(ConvChunk, __ldg(reinterpret_cast<const int4*>(chunks) + unit / unit_blocks))
               : ConvChunk{};
  }
};

/// Rows: blocks of 64 input channels of a unit.
template <int Rows, int Columns>
struct Shape {
  static constexpr WgmmaShape kShape = weight_grad_shape(Rows, Columns);
  static constexpr int kBlocks = Rows + Columns / kConvBlockChannels;
  static constexpr int kThreads = (Rows + 1) * kWarpgroup;
  using StageRing = Ring<kShape.stages, kBlocks * kBlockBytes>;
  static_assert(registers_fit(kShape, Rows));
};

/// The warpgroup that copies: thread p brings 16 bytes, number p % 8 of a row, of the pairs 4 (p / 8) + i. Each lane
/// reads one of the 32 rows that its warp needs, and hands it round.
template <int Rows, int Columns>
class Copier {
 public:
  using S = Shape<Rows, Columns>;

  __device__ __forceinline__ Copier(const ChunkSums& work, const typename S::StageRing& ring)
      : work_(work),
        ring_(ring),
        unit_(static_cast<int>(blockIdx.x)),
        chunk_(work.chunk(unit_)),
        ahead_(work.chunk(unit_ + static_cast<int>(gridDim.x))) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    lane_ = thread % 32;
    vector_ = thread % 8;
    pair_ = thread / 32 * 16 + lane_ % 16;
    list_ = lane_ < 16 ? work.source : work.target;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = thread / 8 * 4 + i;
      place_in_stage_[i] = static_cast<std::uint32_t>(row * kRowBytes + ((vector_ ^ (row & 7)) << 4));
    }
  }

  __device__ __forceinline__ void run() {
    Rows64 ahead[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      fetch(ahead[j]);
    }
    for (;;) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (ahead[j].block < 0) {
          return;
        }
        copy(ahead[j]);
        fetch(ahead[j]);
      }
    }
  }

 private:
  static constexpr int kAhead = 3;

  /// Of one step, this lane's row.
  struct Rows64 {
    int block;  ///< of the unit's input channels, or -1: there is no step
    int row;
  };

  __device__ __forceinline__ void fetch(Rows64& to) {
    to.block = -1;
    if (unit_ >= work_.units) {
      return;
    }
    to.block = unit_ % work_.unit_blocks;
    const int pair = step_ * kStep + pair_;
    to.row = pair < chunk_.pairs ? __ldg(list_ + chunk_.begin + pair) : -1;
    if (++step_ * kStep >= chunk_.pairs) {
      step_ = 0;
      unit_ += static_cast<int>(gridDim.x);
      chunk_ = ahead_;
      ahead_ = work_.chunk(unit_ + static_cast<int>(gridDim.x));
    }
  }

  __device__ __forceinline__ void copy(const Rows64& rows) {
    ring_.wait_empty(place_);
    const std::uint32_t stage = ring_.stage(place_.stage);
    const int first_channel = rows.block * Rows * kConvBlockChannels + vector_ * kConvVectorChannels;
    const char* const x = work_.x + first_channel * 2;
    const char* const grad = work_.grad + vector_ * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int source = __shfl_sync(0xffffffffu, rows.row, lane_ / 8 * 4 + i);
      const int target = __shfl_sync(0xffffffffu, rows.row, 16 + lane_ / 8 * 4 + i);
      const std::uint32_t to = stage + place_in_stage_[i];
      // Of no row it is any address, which is not read.
      const char* const from = x + static_cast<std::uint64_t>(static_cast<std::uint32_t>(source)) * work_.x_row_bytes;
      const char* const from_grad =
          grad + static_cast<std::uint64_t>(static_cast<std::uint32_t>(target)) * work_.grad_row_bytes;
#pragma unroll
      for (int b = 0; b < Rows; ++b) {
        ptx::cp_async_16(to + b * kBlockBytes, from + b * kRowBytes,
                         source >= 0 && first_channel + b * kConvBlockChannels < work_.in);
      }
#pragma unroll
      for (int b = 0; b < Columns / kConvBlockChannels; ++b) {
        ptx::cp_async_16(to + (Rows + b) * kBlockBytes, from_grad + b * kRowBytes,
                         target >= 0 && vector_ * kConvVectorChannels + b * kConvBlockChannels < work_.out);
      }
    }
    ptx::cp_async_mbarrier_arrive_noinc(ring_.full(place_.stage));
    place_.advance();
  }

  const ChunkSums& work_;
  const typename S::StageRing ring_;
  int unit_;
  int step_ = 0;
  ConvChunk chunk_, ahead_;
  RingPlace<S::kShape.stages> place_;
  int lane_, vector_, pair_;
  std::uint32_t place_in_stage_[4];
  const std::int32_t* list_;
};

/// A warpgroup that multiplies: 64 input channels, all columns.
template <int Rows, int Columns, typename T>
class Multiplier {
 public:
  using S = Shape<Rows, Columns>;

  __device__ __forceinline__ Multiplier(const ChunkSums& work, const typename S::StageRing& ring)
      : work_(work), ring_(ring) {
    block_ = static_cast<int>(threadIdx.x) / kWarpgroup;
    quad_ = static_cast<int>(threadIdx.x) % 4;
    row_ = block_ * kConvBlockChannels + static_cast<int>(threadIdx.x / 32) % 4 * 16 +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void run() {
    for (int unit = static_cast<int>(blockIdx.x); unit < work_.units; unit += static_cast<int>(gridDim.x)) {
      const ConvChunk chunk = work_.chunk(unit);
#pragma unroll
      for (int i = 0; i < Columns / 2; ++i) {
        sums_[i] = 0.0f;
      }
      int pending = -1;
      for (int step = 0; step * kStep < chunk.pairs; ++step) {
        multiply();
        ptx::wgmma_wait_group<1>();
        if (pending >= 0) {
          ring_.release(pending);
        }
        pending = place_.stage;
        place_.advance();
      }
      ptx::wgmma_wait_group<0>();
      ring_.release(pending);
      keep(chunk.slot, unit % work_.unit_blocks);
    }
  }

 private:
  __device__ __forceinline__ void multiply() {
    ring_.wait_full(place_);
    const std::uint32_t a = ring_.stage(place_.stage) + block_ * kBlockBytes;
    const std::uint32_t b = ring_.stage(place_.stage) + Rows * kBlockBytes;
    ptx::fence_proxy_async();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      Wgmma<Columns, T, 1, 1>::mma(sums_, wgmma_operand(a + 16 * k * kRowBytes, kBlockBytes, 8 * kRowBytes),
                                   wgmma_operand(b + 16 * k * kRowBytes, kBlockBytes, 8 * kRowBytes));
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void keep(int slot, int unit_block) const {
    const int first = unit_block * Rows * kConvBlockChannels + row_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + 8 * h;
      float* const to = work_.sums + slot * work_.slot_stride + row * work_.row_stride + 2 * quad_;
#pragma unroll
      for (int j = 0; j < Columns / 8; ++j) {
        if (row < work_.in && 8 * j < work_.out) {
          *reinterpret_cast<float2*>(to + 8 * j) = make_float2(sums_[4 * j + 2 * h], sums_[4 * j + 2 * h + 1]);
        }
      }
    }
  }

  const ChunkSums& work_;
  const typename S::StageRing ring_;
  RingPlace<S::kShape.stages> place_;
  int block_, quad_, row_;
  float sums_[Columns / 2];
};

template <int Rows, int Columns, typename T>
__global__ void __launch_bounds__((Shape<Rows, Columns>::kThreads), (Shape<Rows, Columns>::kShape.blocks))
    conv_weight_wgmma_kernel(const __grid_constant__ ChunkSums work) {
  using S = Shape<Rows, Columns>;
  extern __shared__ unsigned char shared[];
  const typename S::StageRing ring(shared, kWarpgroup, Rows * kWarpgroup / 32);
  if (threadIdx.x / kWarpgroup == Rows) {
    if constexpr (S::kShape.copy_registers > 0) {
      ptx::setmaxnreg_dec<S::kShape.copy_registers>();
    }
    Copier<Rows, Columns>(work, ring).run();
  } else {
    if constexpr (S::kShape.multiply_registers > 0) {
      ptx::setmaxnreg_inc<S::kShape.multiply_registers>();
    }
    Multiplier<Rows, Columns, T>(work, ring).run();
  }
}

/// One block of columns.
template <int Rows, int Columns>
void sum_columns(const ConvWeightGradArgs& args, ChunkSums work, const CudaExecutor& executor) {
  using S = Shape<Rows, Columns>;
  work.unit_blocks = static_cast<int>(blocks_for(args.in, Rows * kConvBlockChannels));
  work.units *= work.unit_blocks;
  const Launch shape{"conv_weight_wgmma",
                     std::min<std::int64_t>(work.units, std::int64_t{device_facts().processors} * S::kShape.blocks),
                     S::kThreads, wgmma_ring_bytes(S::kShape.stages, S::kBlocks * kBlockBytes)};
  if (args.type == ScalarType::f16) {
    launch(shape, executor, conv_weight_wgmma_kernel<Rows, Columns, Half>, work);
  } else {
    launch(shape, executor, conv_weight_wgmma_kernel<Rows, Columns, BFloat16>, work);
  }
}

template <int Rows>
void sum_chunks(const ConvWeightGradArgs& args, const ChunkSums& work, const CudaExecutor& executor) {
  constexpr std::int64_t kWidest = 256;
  for (std::int64_t column = 0; column < args.out; column += kWidest) {
    ChunkSums some = work;
    some.grad += column * 2;
    some.sums += column;
    some.out = static_cast<int>(std::min(args.out - column, kWidest));
    if (some.out <= 64) {
      sum_columns<Rows, 64>(args, some, executor);
    } else if (some.out <= 128) {
      sum_columns<Rows, 128>(args, some, executor);
    } else {
      sum_columns<Rows, 256>(args, some, executor);
    }
  }
}

}  // namespace

std::int64_t conv_weight_wgmma_workspace(const ConvWeightGradArgs& args) { return ConvChunkSpace(args).layout.bytes(); }

void conv_weight_wgmma(const ConvWeightGradArgs& args, const CudaExecutor& executor, void* workspace) {
  const ConvChunkSpace space(args);
  for_chunks(args, [&](const ConvChunks& chunks, std::int64_t group) {
    list_chunks(chunks, space.chunks.at(workspace), executor);
    const ChunkSums work{static_cast<const char*>(args.x) + group * args.in * 2,
                         static_cast<std::uint32_t>(args.x_stride * 2),
                         static_cast<const char*>(args.grad) + group * args.out * 2,
                         static_cast<std::uint32_t>(args.grad_stride * 2),
                         static_cast<int>(args.in),
                         static_cast<int>(args.out),
                         args.map.source,
                         args.map.target,
                         space.chunks.at(workspace),
                         chunks.count(),
                         1,
                         space.sums.at(workspace),
                         args.in * args.out,
                         args.out};
    if (args.in <= kConvBlockChannels) {
      sum_chunks<1>(args, work, executor);
    } else {
      sum_chunks<2>(args, work, executor);
    }
    add_chunks(chunks, args, group, space.sums.at(workspace), executor);
  });
}

}  // namespace lacewing::kernels::cuda
