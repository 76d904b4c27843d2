// Convolution by wgmma (sm_90a), output-stationary: a block owns a tile of target rows and goes through the taps that
// the tile needs. One warpgroup gathers the source rows of a tap into shared memory, the copy engine brings the tap's
// weights as they lie, and one warpgroup for each 64 rows multiplies. Blocks stay and take tile after tile.
//
// A row's sum: its taps in order, in each the channels in order, by the tensor core's own tree of 16. Taps that other
// rows of the group need add zeros to it.
#include "kernels/cuda/conv_finish.h"
#include "kernels/cuda/conv_walk.h"
#include "kernels/cuda/conv_wgmma.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ring.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/device/wgmma.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kRowBytes = kConvBlockChannels * 2;  // of a block of channels

/// Which parts of the taps a launch adds: all, the first with others to come, or the last after others.
enum class Pass : std::uint8_t { whole, first, last };

/// One part of the taps and one block of columns; pointers begin there.
template <typename T>
struct TileConv {
  const char* x;
  std::uint32_t x_row_bytes;
  int in;
  T* y;
  std::int64_t y_stride;
  int out;
  int column;        ///< of the weights
  int weight_first;  ///< matrix of tap 0
  int weight_step;   ///< between taps
  const std::int32_t* sources;
  std::int64_t padded_rows;
  TileList tiles;
  const std::int32_t* rows;
  const std::uint32_t* begun;
  float* sums;  ///< (rows, out), between parts
  std::int64_t sums_stride;
  FinishRows<T> finish;

  __device__ __forceinline__ int channel_blocks() const { return (in + kConvBlockChannels - 1) / kConvBlockChannels; }
};

/// Sizes of a kernel.
template <int Groups, int Columns>
struct Shape {
  static constexpr WgmmaShape kShape = wgmma_shape(Groups, Columns);
  static constexpr int kRows = Groups * static_cast<int>(kConvGroupRows);
  static constexpr int kRowsBytes = kRows * kRowBytes;
  static constexpr int kWeightBytes = Columns * kRowBytes;
  static constexpr int kThreads = (Groups + 1) * kWarpgroup;
  using StageRing = Ring<kShape.stages, kRowsBytes + kWeightBytes>;
  static_assert(kRowsBytes + kWeightBytes == wgmma_stage_bytes(Groups, Columns));
  static_assert(registers_fit(kShape, Groups));
};

/// A tap of a tile: which groups need it, and the source rows that one thread copies.
template <int Groups>
struct TapRows {
  int tap = -1;
  std::uint32_t groups = 0;
  int4 rows[Groups];
};

/// The warpgroup that copies: thread p brings 16 bytes, number p % 8 of a row, of the rows 4 (p / 8) + i of each group.
template <int Groups, int Columns, bool ByRows, typename T>
class Copier {
 public:
  using S = Shape<Groups, Columns>;

  __device__ __forceinline__ Copier(const TileConv<T>& conv, const CUtensorMap& weights,
                                    const typename S::StageRing& ring)
      : conv_(conv), weights_(weights), ring_(ring), walk_(conv.tiles, blockIdx.x, gridDim.x) {
    thread_ = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int vector = thread_ % 8;
    row_ = thread_ / 8 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      place_[i] = static_cast<std::uint32_t>((row_ + i) * kRowBytes + ((vector ^ ((row_ + i) & 7)) << 4));
    }
    from_ = conv.x + vector * 16;
    channels_ = conv.in - vector * kConvVectorChannels;
    begin_word();
  }

  __device__ __forceinline__ void run() {
    TapRows<Groups> ahead[2];
    fetch(ahead[0]);
    fetch(ahead[1]);
    for (;;) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (ahead[j].tap < 0) {
          return;
        }
        for (int channel = 0; channel < conv_.in; channel += kConvBlockChannels) {
          copy(ahead[j], channel);
        }
        fetch(ahead[j]);
      }
    }
  }

 private:
  /// Steps into a tile after which the next one's list has been read.
  static constexpr int kListSteps = 3;

  __device__ __forceinline__ void begin_word() {
    taps_ = walk_.in_tiles() ? any_taps<Groups>(*walk_) : 0;
    sources_ = conv_.sources + static_cast<std::int64_t>(walk_->tile) * S::kRows + row_;
    steps_ = 0;
  }

  /// The rows of the next tile's taps, into the cache; a line has 32 of them.
  __device__ __forceinline__ void prefetch(const TileTaps& tile) const {
    constexpr int kLines = S::kRows / 32;
    const int tap = thread_ / 4;
    if (any_taps<Groups>(tile) >> tap & 1u) {
      const std::int32_t* const rows =
          conv_.sources + tap * conv_.padded_rows + static_cast<std::int64_t>(tile.tile) * S::kRows;
#pragma unroll
      for (int line = 0; line < kLines; line += 4) {
        if (line + thread_ % 4 < kLines) {
          ptx::prefetch_l2(rows + (line + thread_ % 4) * 32);
        }
      }
    }
  }

  __device__ __forceinline__ void fetch(TapRows<Groups>& to) {
    to.tap = -1;
    while (taps_ == 0) {
      if (!walk_.in_tiles()) {
        return;
      }
      walk_.advance();
      begin_word();
    }
    const std::uint32_t lowest = taps_ & (0u - taps_);
    taps_ ^= lowest;
    to.tap = walk_.word() * static_cast<int>(kWordTaps) + 31 - __clz(static_cast<int>(lowest));
    to.groups = 0;
    const std::int32_t* const sources = sources_ + to.tap * conv_.padded_rows;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      if (walk_->taps[g] & lowest) {
        to.groups |= 1u << g;
        to.rows[g] = __ldg(reinterpret_cast<const int4*>(sources + g * kConvGroupRows));
      }
    }
    if (++steps_ == kListSteps) {
      prefetch(walk_.ahead());
    }
  }

  __device__ __forceinline__ void copy(const TapRows<Groups>& tap, int channel) {
    ring_.wait_empty(at_);
    const std::uint32_t stage = ring_.stage(at_.stage);
    const std::uint32_t full = ring_.full(at_.stage);
    if (thread_ % 32 == 0) {
      copy_weights(thread_ / 32, tap.tap, channel, stage + S::kRowsBytes, full);
    }
    const bool inside = channel < channels_;
    const char* const from = from_ + channel * 2;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      if (tap.groups >> g & 1u) {
        const int rows[] = {tap.rows[g].x, tap.rows[g].y, tap.rows[g].z, tap.rows[g].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t to = stage + place_[i] + g * static_cast<int>(kConvGroupRows) * kRowBytes;
          // Of no row it is any address, which is not read.
          const char* const row =
              from + static_cast<std::uint64_t>(static_cast<std::uint32_t>(rows[i])) * conv_.x_row_bytes;
          if constexpr (Columns > kConvBlockChannels) {
            ptx::cp_async_16_of_256(to, row, rows[i] >= 0 && inside);
          } else {
            ptx::cp_async_16(to, row, rows[i] >= 0 && inside);
          }
        }
      }
    }
    ptx::cp_async_mbarrier_arrive_noinc(full);
    at_.advance();
  }

  /// A lane of each warp asks for one box, so that no warp has all the work.
  __device__ __forceinline__ void copy_weights(int warp, int tap, int channel, std::uint32_t to,
                                               std::uint32_t full) const {
    const int matrix = conv_.weight_first + conv_.weight_step * tap;
    if (warp == 0) {
      ptx::mbarrier_arrive_expect_tx(full, S::kWeightBytes);
    }
    if constexpr (ByRows) {
      if (warp == 0) {
        ptx::cp_async_bulk_tensor_3d(to, &weights_, channel, conv_.column, matrix, full);
      }
    } else {
      static_assert(Columns / kConvBlockChannels <= kWarpgroup / 32);
      if (warp < Columns / kConvBlockChannels) {
        const int column = warp * kConvBlockChannels;
        ptx::cp_async_bulk_tensor_3d(to + column * kRowBytes, &weights_, conv_.column + column, channel, matrix, full);
      }
    }
  }

  const TileConv<T>& conv_;
  const CUtensorMap& weights_;
  const typename S::StageRing ring_;
  TileWalk<InStep> walk_;
  std::uint32_t taps_;  ///< of the word, that are still to come
  int steps_;           ///< of the word, that were fetched
  RingPlace<S::kShape.stages> at_;
  int thread_, row_, channels_;
  std::uint32_t place_[4];
  const char* from_;
  const std::int32_t* sources_;
};

/// A warpgroup that multiplies: 64 rows, all columns of the tile.
template <int Groups, int Columns, bool ByRows, Pass pass, typename T>
class Multiplier {
 public:
  using S = Shape<Groups, Columns>;

  __device__ __forceinline__ Multiplier(const TileConv<T>& conv, const typename S::StageRing& ring)
      : conv_(conv), ring_(ring), walk_(conv.tiles, blockIdx.x, gridDim.x) {
    group_ = static_cast<int>(threadIdx.x) / kWarpgroup;
    quad_ = static_cast<int>(threadIdx.x) % 4;
    row_in_tile_ = group_ * static_cast<int>(kConvGroupRows) + static_cast<int>(threadIdx.x / 32) % 4 * 16 +
                   static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void run() {
    while (walk_.in_tiles()) {
      const std::int32_t* const rows = conv_.rows + static_cast<std::int64_t>(walk_->tile) * S::kRows + row_in_tile_;
      const int targets[2] = {__ldg(rows), __ldg(rows + 8)};
      begin(targets);
      bool any = false;
      for (bool last = false; !last;) {
        last = walk_.is_last_word();
        std::uint32_t taps = any_taps<Groups>(*walk_);
        const std::uint32_t mine = group_ == 0 ? walk_->taps[0] : group_ == 1 ? walk_->taps[1] : walk_->taps[2];
        any = any || taps != 0;
        for (; taps != 0; taps &= taps - 1) {
          const bool needed = (mine & (taps & (0u - taps))) != 0;
          for (int block = 0; block < conv_.channel_blocks(); ++block) {
            step(needed);
          }
        }
        walk_.advance();
      }
      finish_steps();
      if constexpr (pass == Pass::first) {
        if (any) {
          keep(targets);
        }
      } else {
        store(targets);
      }
    }
  }

 private:
  /// Whether the products of a stage stay under way while the next one is awaited.
  static constexpr bool kDeferred = S::kShape.multiply_registers > 0;

  __device__ __forceinline__ void begin(const int (&targets)[2]) {
    if constexpr (pass == Pass::last) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::int64_t place = static_cast<std::int64_t>(walk_->tile) * S::kRows + row_in_tile_ + 8 * h;
        const bool kept = (__ldg(conv_.begun + place / kConvSetRows) >> place % kConvSetRows & 1u) != 0;
        const float* const from = conv_.sums + (kept ? targets[h] : 0) * conv_.sums_stride + 2 * quad_;
#pragma unroll
        for (int j = 0; j < Columns / 8; ++j) {
          float2 pair = make_float2(0.0f, 0.0f);
          if (kept && 8 * j < conv_.out) {
            pair = __ldcs(reinterpret_cast<const float2*>(from + 8 * j));
          }
          sums_[4 * j + 2 * h] = pair.x;
          sums_[4 * j + 2 * h + 1] = pair.y;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < Columns / 2; ++i) {
        sums_[i] = 0.0f;
      }
    }
  }

  /// One block of channels of a tap.
  __device__ __forceinline__ void step(bool needed) {
    ring_.wait_full(place_);
    if (needed) {
      const std::uint32_t a = ring_.stage(place_.stage) + group_ * static_cast<int>(kConvGroupRows) * kRowBytes;
      const std::uint32_t b = ring_.stage(place_.stage) + S::kRowsBytes;
      ptx::fence_proxy_async();
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kConvBlockChannels / 16; ++k) {
        const std::uint64_t rows = wgmma_operand(a + 32 * k, 16, 8 * kRowBytes);
        if constexpr (ByRows) {
          Wgmma<Columns, T, 0, 0>::mma(sums_, rows, wgmma_operand(b + 32 * k, 16, 8 * kRowBytes));
        } else {
          Wgmma<Columns, T, 0, 1>::mma(sums_, rows,
                                       wgmma_operand(b + 16 * k * kRowBytes, 64 * kRowBytes, 8 * kRowBytes));
        }
      }
      ptx::wgmma_commit_group();
    }
    if constexpr (kDeferred) {
      if (needed) {
        ptx::wgmma_wait_group<1>();
      } else {
        ptx::wgmma_wait_group<0>();
      }
      if (pending_ >= 0) {
        ring_.release(pending_);
      }
      pending_ = needed ? place_.stage : -1;
      if (!needed) {
        ring_.release(place_.stage);
      }
    } else {
      if (needed) {
        ptx::wgmma_wait_group<0>();
      }
      ring_.release(place_.stage);
    }
    place_.advance();
  }

  __device__ __forceinline__ void finish_steps() {
    if constexpr (kDeferred) {
      ptx::wgmma_wait_group<0>();
      if (pending_ >= 0) {
        ring_.release(pending_);
      }
      pending_ = -1;
    }
  }

  /// Sums as they are, for the next part.
  __device__ __forceinline__ void keep(const int (&targets)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (targets[h] >= 0) {
        float* const to = conv_.sums + targets[h] * conv_.sums_stride + 2 * quad_;
#pragma unroll
        for (int j = 0; j < Columns / 8; ++j) {
          if (8 * j < conv_.out) {
            *reinterpret_cast<float2*>(to + 8 * j) = make_float2(sums_[4 * j + 2 * h], sums_[4 * j + 2 * h + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(const int (&targets)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      T* const y = conv_.y + targets[h] * conv_.y_stride;
#pragma unroll
      for (int q = 0; q < Columns / 32; ++q) {
        if (conv_.finish.any && targets[h] >= 0) {
#pragma unroll
          for (int j = 4 * q; j < 4 * q + 4; ++j) {
            if (8 * j < conv_.out) {
              conv_.finish.apply(targets[h], 8 * j + 2 * quad_, sums_[4 * j + 2 * h], sums_[4 * j + 2 * h + 1]);
            }
          }
        }
        std::uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int j = 4 * q + k;
          words[k] = ptx::cvt_rn_x2<T>(sums_[4 * j + 2 * h], sums_[4 * j + 2 * h + 1]);
        }
        transpose_quad(words, quad_);
        const int column = 32 * q + 8 * quad_;
        if (targets[h] >= 0 && column < conv_.out) {
          *reinterpret_cast<uint4*>(y + column) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }

  const TileConv<T>& conv_;
  const typename S::StageRing ring_;
  TileWalk<InStep> walk_;
  RingPlace<S::kShape.stages> place_;
  int group_, quad_, row_in_tile_;
  int pending_ = -1;
  float sums_[Columns / 2];
};

template <int Groups, int Columns, bool ByRows, Pass pass, typename T>
__global__ void __launch_bounds__((Shape<Groups, Columns>::kThreads), (Shape<Groups, Columns>::kShape.blocks))
    conv_wgmma_kernel(const __grid_constant__ TileConv<T> conv, const __grid_constant__ CUtensorMap weights) {
  using S = Shape<Groups, Columns>;
  extern __shared__ unsigned char shared[];
  // Each thread that copies, and the one that announces the weights; a lane of each warp that multiplies.
  const typename S::StageRing ring(shared, kWarpgroup + 1, Groups * kWarpgroup / 32);
  if (threadIdx.x / kWarpgroup == Groups) {
    if constexpr (S::kShape.copy_registers > 0) {
      ptx::setmaxnreg_dec<S::kShape.copy_registers>();
    }
    Copier<Groups, Columns, ByRows, T>(conv, weights, ring).run();
  } else {
    if constexpr (S::kShape.multiply_registers > 0) {
      ptx::setmaxnreg_inc<S::kShape.multiply_registers>();
    }
    Multiplier<Groups, Columns, ByRows, pass, T>(conv, ring).run();
  }
}

/// A call's launches: its groups, blocks of columns, parts of the taps.
template <typename T>
class Launches {
 public:
  Launches(const ConvArgs& args, const ConvChoice& choice, const ConvTablesAt& at, const CudaExecutor& executor,
           void* workspace)
      : args_(args), choice_(choice), at_(at), executor_(executor), sums_(static_cast<float*>(workspace)) {}

  void run() const {
    if (choice_.columns == 64) {
      with_tile<2, 64>();
    } else if (choice_.columns == 256) {
      with_tile<2, 256>();
    } else if (choice_.tile == ConvTile::two_groups) {
      with_tile<2, 128>();
    } else {
      with_tile<3, 128>();
    }
  }

 private:
  template <int Groups, int Columns>
  void with_tile() const {
    for (std::int64_t group = 0; group < args_.groups; ++group) {
      for (std::int64_t column = 0; column < args_.out; column += Columns) {
        if constexpr (Columns == 256) {
          if (choice_.parts == 2) {
            add_part<Groups, Columns, Pass::first>(group, column, 0);
            add_part<Groups, Columns, Pass::last>(group, column, 1);
            continue;
          }
        }
        add_part<Groups, Columns, Pass::whole>(group, column, 0);
      }
    }
  }

  template <int Groups, int Columns, Pass pass>
  void add_part(std::int64_t group, std::int64_t column, int part) const {
    using S = Shape<Groups, Columns>;
    const TileConv<T> conv = tile_conv(group, column, part);
    const std::int64_t matrices = args_.map.taps * args_.groups;
    const Launch shape{
        "conv_wgmma",
        std::min<std::int64_t>(conv.tiles.count, std::int64_t{device_facts().processors} * S::kShape.blocks),
        S::kThreads, wgmma_ring_bytes(S::kShape.stages, wgmma_stage_bytes(Groups, Columns))};
    if (args_.transposed) {
      launch(shape, executor_, conv_wgmma_kernel<Groups, Columns, true, pass, T>, conv,
             half_matrices(args_.weight, matrices, args_.out, args_.in, Columns));
    } else {
      launch(shape, executor_, conv_wgmma_kernel<Groups, Columns, false, pass, T>, conv,
             half_matrices(args_.weight, matrices, args_.in, args_.out, kConvBlockChannels));
    }
  }

  TileConv<T> tile_conv(std::int64_t group, std::int64_t column, int part) const {
    const ConvTables& tables = at_.tables;
    const ConvTables::Part& chosen = tables.parts[part];
    void* const memory = const_cast<void*>(at_.memory);
    const std::int64_t y_column = group * args_.out + column;
    const std::int64_t last = args_.map.taps - 1;
    return {static_cast<const char*>(args_.x) + group * args_.in * 2,
            static_cast<std::uint32_t>(args_.x_stride * 2),
            static_cast<int>(args_.in),
            static_cast<T*>(args_.y) + y_column,
            args_.groups * args_.out,
            static_cast<int>(args_.out - column),
            static_cast<int>(column),
            static_cast<int>((at_.mirrored ? last * args_.groups : 0) + group),
            static_cast<int>(at_.mirrored ? -args_.groups : args_.groups),
            tables.sources.at(memory),
            tables.padded_rows,
            {tables.tiles_at(memory, part, choice_.tile), static_cast<std::int32_t>(tables.tiles(choice_.tile)),
             static_cast<std::int32_t>(tables.words)},
            chosen.rows.at(memory),
            chosen.begun.at(memory),
            sums_,
            args_.out,
            FinishRows<T>(args_, y_column)};
  }

  const ConvArgs& args_;
  const ConvChoice& choice_;
  const ConvTablesAt& at_;
  const CudaExecutor& executor_;
  float* sums_;
};

}  // namespace

std::int64_t conv_wgmma_workspace(const ConvArgs& args, const ConvChoice& choice) {
  return choice.parts > 1 ? args.map.target_rows * args.out * static_cast<std::int64_t>(sizeof(float)) : 0;
}

void conv_wgmma(const ConvArgs& args, const ConvChoice& choice, const ConvTablesAt& at, const CudaExecutor& executor,
                void* workspace) {
  if (args.type == ScalarType::f16) {
    Launches<Half>(args, choice, at, executor, workspace).run();
  } else {
    Launches<BFloat16>(args, choice, at, executor, workspace).run();
  }
}

}  // namespace lacewing::kernels::cuda
