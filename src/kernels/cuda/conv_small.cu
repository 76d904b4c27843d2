// Convolution of few channels by mma.sync: a warp owns 32 target rows, all weights lie in shared memory, source rows
// are gathered from global memory straight into fragments.
//
// The products of a row are numbered tap after tap, in each channel after channel, and added 32 numbers a step: so with
// few channels a step has several taps, always the same ones. A step that none of the 16 rows of a fragment needs is
// left out, which would add zeros.
#include "kernels/cuda/conv_finish.h"
#include "kernels/cuda/conv_small.h"
#include "kernels/cuda/conv_walk.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStep = 32;       // products of a row
constexpr int kUnitBytes = 16;  // of shared memory that move together
constexpr int kUnitElements = 8;

/// One group of channels; pointers begin there.
template <typename T>
struct SmallConv {
  const char* x;
  std::uint32_t x_row_bytes;
  int in;
  T* y;
  std::int64_t y_stride;
  int out;
  const T* weight;
  int weight_first;  ///< matrix of tap 0
  int weight_step;   ///< between taps
  int taps;
  const std::int32_t* sources;
  std::int64_t padded_rows;
  TileList tiles;
  const std::int32_t* rows;
  FinishRows<T> finish;
};

/// The weights in shared memory: (taps, In, Out), or (taps, Out, In) where ByRows, padded with zeros. Units of 16 bytes
/// are swizzled so that the eight that are read together lie in different banks.
template <int In, int Out, bool ByRows>
struct SmallWeights {
  /// Where unit number `unit` lies.
  static __device__ __forceinline__ int place(int unit) {
    const int number = unit * kUnitElements / (ByRows ? In * Out : Out);  // the tap, or the product
    if constexpr (!ByRows) {
      const int eighth = number >> 3 & 3;
      return unit ^ (Out == 32 ? eighth : Out == 16 ? (eighth & 1) | (eighth & 2) << 1 : eighth << 1);
    } else {
      return unit ^ (In == 16 ? (number & 1) << 2 : In == 4 ? (number >> 1 & 3) << 1 : 0);
    }
  }

  template <typename T>
  static __device__ __forceinline__ void fill(const SmallConv<T>& conv, uint4* shared) {
    const auto units = static_cast<int>(small_weight_bytes(conv.taps, In, Out) / kUnitBytes);
    const bool whole = conv.in == In && conv.out == Out;
    for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kThreads) {
      const int element = unit * kUnitElements;
      const int tap = element / (In * Out);
      const int first = element % (In * Out);
      const T* const from =
          conv.weight + static_cast<std::int64_t>(conv.weight_first + conv.weight_step * tap) * conv.in * conv.out;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (tap < conv.taps && whole) {
        value = __ldg(reinterpret_cast<const uint4*>(from + first));
      } else if (tap < conv.taps) {
        alignas(kUnitBytes) T elements[kUnitElements];
#pragma unroll
        for (int i = 0; i < kUnitElements; ++i) {
          const int k = ByRows ? (first + i) % In : (first + i) / Out;
          const int n = ByRows ? (first + i) / In : (first + i) % Out;
          elements[i] = k < conv.in && n < conv.out ? from[ByRows ? n * conv.in + k : k * conv.out + n] : T{};
        }
        value = *reinterpret_cast<const uint4*>(elements);
      }
      shared[place(unit)] = value;
    }
    __syncthreads();
  }
};

/// The fragments of the weights of one step and eight columns: for the two products of 16 numbers each.
template <int In, int Out, bool ByRows>
__device__ __forceinline__ void load_columns(const uint4* shared, int first_tap, int block, std::uint32_t (&b)[4]) {
  using Weights = SmallWeights<In, Out, ByRows>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (ByRows) {
    const int n = 8 * block + lane / 4;
    const int t = lane % 4;
    if constexpr (In == 4) {
      const auto* const halves = reinterpret_cast<const uint2*>(shared);
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int half = (first_tap + 2 * t + l) * Out + n;
        const uint2 pair = halves[2 * Weights::place(half / 2) + half % 2];
        b[2 * l] = pair.x;
        b[2 * l + 1] = pair.y;
      }
    } else {
      constexpr int kUnits = In / kUnitElements;  // of a column
      const int tap = first_tap + t / kUnits;
      const uint4 unit = shared[Weights::place((tap * Out + n) * kUnits + t % kUnits)];
      b[0] = unit.x;
      b[1] = unit.y;
      b[2] = unit.z;
      b[3] = unit.w;
    }
  } else {
    // Lane t of a quad multiplies the numbers 8 t to 8 t + 7 of a row, two a register: so do the rows of the matrices.
    const int slot = lane % 8;
    const int number = first_tap * In + slot / 2 * 8 + lane / 8 * 2 + slot % 2;
    const int unit = Weights::place(number * (Out / kUnitElements) + block);
    ptx::ldmatrix_x4_trans(b, ptx::shared_address(shared + unit));
  }
}

/// What a warp knows of one step: where its lanes read. Quad g has the rows 4 g to 4 g + 3 of the set: the first two
/// are its rows of the first fragment.
template <int In>
struct StepRows {
  static constexpr int kLists = In == 4 ? 2 : 1;  ///< taps of a lane
  int first_tap = -1;                             ///< or -1: there is no step
  int rows[kLists][4];
};

template <int In, int Out, bool ByRows, typename T>
class SmallWarp {
 public:
  static constexpr int kTapsOfStep = kStep / In;
  static constexpr int kBlocks = Out / 8;
  using Rows = StepRows<In>;

  __device__ __forceinline__ SmallWarp(const SmallConv<T>& conv, const uint4* weights)
      : conv_(conv),
        weights_(weights),
        walk_(conv.tiles, static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32),
              static_cast<int>(gridDim.x) * kWarps) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    quad_ = lane_ / 4;
    const int t = lane_ % 4;
    tap_ = In == 32 ? 0 : In == 16 ? t / 2 : 2 * t;
    const int vector = In == 32 ? t : In == 16 ? t % 2 : 0;
    reads_ = vector * kUnitElements < conv.in;
    from_ = conv.x + vector * kUnitBytes;
  }

  __device__ __forceinline__ void run() {
    for (; walk_.in_tiles(); walk_.advance()) {
      const std::int64_t first = static_cast<std::int64_t>(walk_->tile) * kConvSetRows + 4 * quad_;
      sources_ = conv_.sources + first;
      steps_ = steps_of(walk_->taps[0]);
      prefetch(walk_.ahead());
      const int4 rows = __ldg(reinterpret_cast<const int4*>(conv_.rows + first));
      const int targets[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
      for (int i = 0; i < 2 * kBlocks * 4; ++i) {
        (&sums_[0][0][0])[i] = 0.0f;
      }
      add_steps();
      store(targets);
    }
  }

 private:
  __device__ __forceinline__ static std::uint32_t steps_of(std::uint32_t taps) {
    if constexpr (kTapsOfStep >= 2) {
      taps |= taps >> 1;
    }
    if constexpr (kTapsOfStep == 8) {
      taps |= taps >> 2;
      taps |= taps >> 4;
    }
    return taps & (kTapsOfStep == 1 ? 0xffffffffu : kTapsOfStep == 2 ? 0x55555555u : 0x01010101u);
  }

  /// The rows of the next tile's taps: a line for each.
  __device__ __forceinline__ void prefetch(const TileTaps& tile) const {
    if (tile.taps[0] >> lane_ & 1u) {
      ptx::prefetch_l2(conv_.sources + lane_ * conv_.padded_rows + static_cast<std::int64_t>(tile.tile) * kConvSetRows);
    }
  }

  __device__ __forceinline__ void next(Rows& to) {
    to.first_tap = -1;
    while (steps_ == 0) {
      if (walk_.is_last_word()) {
        return;
      }
      walk_.advance();
      steps_ = steps_of(walk_->taps[0]);
    }
    to.first_tap = walk_.word() * static_cast<int>(kWordTaps) + __ffs(static_cast<int>(steps_)) - 1;
    steps_ &= steps_ - 1;
#pragma unroll
    for (int l = 0; l < Rows::kLists; ++l) {
      const int tap = to.first_tap + tap_ + l;
      int4 rows = make_int4(-1, -1, -1, -1);
      if (tap < conv_.taps) {
        rows = __ldg(reinterpret_cast<const int4*>(sources_ + tap * conv_.padded_rows));
      }
      to.rows[l][0] = rows.x;
      to.rows[l][1] = rows.y;
      to.rows[l][2] = rows.z;
      to.rows[l][3] = rows.w;
    }
  }

  struct Fragments {
    std::uint32_t at[4][4];  ///< four registers of each of the four rows
  };

  __device__ __forceinline__ void load(const Rows& step, Fragments& to) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if constexpr (In == 4) {
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int row = step.rows[l][q];
          uint2 pair = make_uint2(0, 0);
          if (row >= 0) {
            pair = __ldg(reinterpret_cast<const uint2*>(from_ + static_cast<std::uint64_t>(row) * conv_.x_row_bytes));
          }
          to.at[q][2 * l] = pair.x;
          to.at[q][2 * l + 1] = pair.y;
        }
      } else {
        const int row = step.rows[0][q];
        uint4 vector = make_uint4(0, 0, 0, 0);
        if (row >= 0 && reads_) {
          vector = __ldg(reinterpret_cast<const uint4*>(from_ + static_cast<std::uint64_t>(row) * conv_.x_row_bytes));
        }
        to.at[q][0] = vector.x;
        to.at[q][1] = vector.y;
        to.at[q][2] = vector.z;
        to.at[q][3] = vector.w;
      }
    }
  }

  /// Whether any row of a fragment has a source.
  __device__ __forceinline__ static bool any_row(const Rows& step, int fragment) {
    bool any = false;
#pragma unroll
    for (int l = 0; l < Rows::kLists; ++l) {
      any = any || step.rows[l][2 * fragment] >= 0 || step.rows[l][2 * fragment + 1] >= 0;
    }
    return __any_sync(0xffffffffu, any) != 0;
  }

  __device__ __forceinline__ void add_steps() {
    Rows now;
    Rows ahead;
    Fragments x;
    next(now);
    next(ahead);
    if (now.first_tap >= 0) {
      load(now, x);
    }
    while (now.first_tap >= 0) {
      Fragments x_ahead = x;
      if (ahead.first_tap >= 0) {
        load(ahead, x_ahead);
      }
      Rows after;
      next(after);
      add(now, x);
      now = ahead;
      ahead = after;
      x = x_ahead;
    }
  }

  __device__ __forceinline__ void add(const Rows& step, const Fragments& x) {
    const bool needed[2] = {any_row(step, 0), any_row(step, 1)};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      std::uint32_t b[4];
      load_columns<In, Out, ByRows>(weights_, step.first_tap, block, b);
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        if (needed[f]) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::uint32_t a[4] = {x.at[2 * f][2 * half], x.at[2 * f + 1][2 * half], x.at[2 * f][2 * half + 1],
                                        x.at[2 * f + 1][2 * half + 1]};
            ptx::mma_m16n8k16<T>(sums_[f][block], a, b[2 * half], b[2 * half + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(const int (&targets)[4]) {
    const int t = lane_ % 4;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (conv_.finish.any && targets[q] >= 0) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          if (8 * block + 2 * t < conv_.out) {
            float(&pair)[4] = sums_[q / 2][block];
            conv_.finish.apply(targets[q], 8 * block + 2 * t, pair[q % 2 * 2], pair[q % 2 * 2 + 1]);
          }
        }
      }
      T* const y = conv_.y + targets[q] * conv_.y_stride;
      std::uint32_t words[kBlocks];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float(&pair)[4] = sums_[q / 2][block];
        words[block] = ptx::cvt_rn_x2<T>(pair[q % 2 * 2], pair[q % 2 * 2 + 1]);
      }
      if constexpr (kBlocks == 4) {
        if (conv_.out % kUnitElements == 0) {
          transpose_quad(words, t);
          if (targets[q] >= 0 && 8 * t < conv_.out) {
            *reinterpret_cast<uint4*>(y + 8 * t) = make_uint4(words[0], words[1], words[2], words[3]);
          }
          continue;
        }
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (targets[q] >= 0 && 8 * block + 2 * t < conv_.out) {
          *reinterpret_cast<std::uint32_t*>(y + 8 * block + 2 * t) = words[block];
        }
      }
    }
  }

  const SmallConv<T>& conv_;
  const uint4* weights_;
  TileWalk<InTurns> walk_;
  const std::int32_t* sources_ = nullptr;
  std::uint32_t steps_ = 0;
  int lane_, quad_, tap_;
  bool reads_;
  const char* from_;
  float sums_[2][kBlocks][4];
};

constexpr int kBlocksOfProcessor = 2;

template <int In, int Out, bool ByRows, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksOfProcessor)
    conv_small_kernel(const __grid_constant__ SmallConv<T> conv) {
  extern __shared__ uint4 weights[];
  SmallWeights<In, Out, ByRows>::fill(conv, weights);
  SmallWarp<In, Out, ByRows, T>(conv, weights).run();
}

template <int In, int Out, typename T>
void run(const ConvArgs& args, const SmallConv<T>& conv, const CudaExecutor& executor) {
  const Launch shape{"conv_small",
                     std::min<std::int64_t>(blocks_for(conv.tiles.count, kWarps),
                                            std::int64_t{device_facts().processors} * kBlocksOfProcessor),
                     kThreads, small_weight_bytes(conv.taps, In, Out)};
  if (args.transposed) {
    launch(shape, executor, conv_small_kernel<In, Out, true, T>, conv);
  } else {
    launch(shape, executor, conv_small_kernel<In, Out, false, T>, conv);
  }
}

template <int In, typename T>
void run(const ConvArgs& args, const ConvChoice& choice, const SmallConv<T>& conv, const CudaExecutor& executor) {
  switch (choice.columns) {
    case 8: return run<In, 8>(args, conv, executor);
    case 16: return run<In, 16>(args, conv, executor);
    default: return run<In, 32>(args, conv, executor);
  }
}

template <typename T>
void run(const ConvArgs& args, const ConvChoice& choice, const ConvTablesAt& at, const CudaExecutor& executor) {
  const ConvTables& tables = at.tables;
  void* const memory = const_cast<void*>(at.memory);
  const std::int64_t last = args.map.taps - 1;
  for (std::int64_t group = 0; group < args.groups; ++group) {
    const SmallConv<T> conv{
        static_cast<const char*>(args.x) + group * args.in * 2,
        static_cast<std::uint32_t>(args.x_stride * 2),
        static_cast<int>(args.in),
        static_cast<T*>(args.y) + group * args.out,
        args.groups * args.out,
        static_cast<int>(args.out),
        static_cast<const T*>(args.weight),
        static_cast<int>((at.mirrored ? last * args.groups : 0) + group),
        static_cast<int>(at.mirrored ? -args.groups : args.groups),
        static_cast<int>(args.map.taps),
        tables.sources.at(memory),
        tables.padded_rows,
        {tables.tiles_at(memory, 0, ConvTile::one_set), static_cast<std::int32_t>(tables.tiles(ConvTile::one_set)),
         static_cast<std::int32_t>(tables.words)},
        tables.parts[0].rows.at(memory),
        FinishRows<T>(args, group * args.out)};
    switch (padded_small_side(args.in, 4)) {
      case 4: run<4>(args, choice, conv, executor); break;
      case 16: run<16>(args, choice, conv, executor); break;
      default: run<32>(args, choice, conv, executor);
    }
  }
}

}  // namespace

void conv_small(const ConvArgs& args, const ConvChoice& choice, const ConvTablesAt& at, const CudaExecutor& executor) {
  if (args.type == ScalarType::f16) {
    run<Half>(args, choice, at, executor);
  } else {
    run<BFloat16>(args, choice, at, executor);
  }
}

}  // namespace lacewing::kernels::cuda
