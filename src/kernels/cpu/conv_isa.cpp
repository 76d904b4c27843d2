// Sparse convolution on output tiles. Compiled once for each ISA level.
//
// A task owns a tile of outputs and adds the taps' products into its rows, in the order of the taps: no two threads
// touch one output, and the order of a sum depends on nothing but the plan.
#include "kernels/cpu/conv_isa.h"

#include <atomic>

#include "kernels/cpu/conv_blocks.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Multiply-adds below which a second thread costs more than it brings.
constexpr std::int64_t kSerial = 1 << 16;

/// Calls f(worker, task) for every task; workers take the next one when they are done.
template <typename F>
void share_out(const CpuExecutor& executor, std::int64_t tasks, std::int64_t work, F&& f) {
  const std::int64_t workers = work < kSerial ? 1 : std::min<std::int64_t>(executor.max_threads(), tasks);
  std::atomic<std::int64_t> next{0};
  executor.parallel_for(0, workers, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t worker = first; worker < last; ++worker) {
      for (std::int64_t task = next++; task < tasks; task = next++) {
        f(worker, task);
      }
    }
  });
}

template <typename T>
class TileConv {
 public:
  using Acc = accumulate_t<T>;

  TileConv(const ConvArgs& args, const ConvSchedule& schedule, Acc* scratch, Acc* sums)
      : args_(args),
        schedule_(schedule),
        width_(args.groups * args.out),
        weight_(scratch),
        rows_(scratch + (schedule.packs_weight ? args.groups * args.in * args.out : 0)),
        sums_(sums) {}

  /// Outputs of the sorted voxels [begin, end).
  void run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      start(target(i));
    }
    const ConvMap& map = args_.map;
    const std::int64_t stride = map.tiles() + 1;
    const std::int64_t first = begin / kConvTileRows;
    const std::int64_t last = (end + kConvTileRows - 1) / kConvTileRows;
    for (std::int64_t tap = 0; tap < map.taps; ++tap) {
      const std::int32_t* const table = map.target_tiles + tap * stride;
      const std::int64_t offset = map.tap_offsets[tap];
      if (table[first] < table[last]) {
        add_tap(tap, offset + table[first], offset + table[last]);
      }
    }
    if constexpr (is_narrow_v<T>) {
      for (std::int64_t i = begin; i < end; ++i) {
        narrow_row<T>(sums_ + target(i) * width_, static_cast<T*>(args_.y) + target(i) * width_, width_);
      }
    }
  }

 private:
  std::int64_t target(std::int64_t sorted) const {
    return args_.map.target_order == nullptr ? sorted : args_.map.target_order[sorted];
  }

  Acc* sum_row(std::int64_t row) const {
    if constexpr (is_narrow_v<T>) {
      return sums_ + row * width_;
    } else {
      return static_cast<T*>(args_.y) + row * width_;
    }
  }

  void start(std::int64_t row) {
    Acc* const y = sum_row(row);
    if (args_.bias != nullptr) {
      widen_row(static_cast<const T*>(args_.bias), y, width_);
    } else {
      std::fill_n(y, width_, Acc{});
    }
  }

  /// The weight of a tap, (groups, in, out), in place or in scratch.
  const Acc* weight(std::int64_t tap) {
    const std::int64_t matrix = args_.in * args_.out;
    const T* const from = static_cast<const T*>(args_.weight) + tap * args_.groups * matrix;
    if constexpr (!is_narrow_v<T>) {
      if (!schedule_.packs_weight) {
        return from;
      }
    }
    for (std::int64_t g = 0; g < args_.groups; ++g) {
      pack(from + g * matrix, weight_ + g * matrix);
    }
    return weight_;
  }

  void pack(const T* from, Acc* to) {
    if (!args_.transposed) {
      widen_row(from, to, args_.in * args_.out);
    } else if constexpr (is_narrow_v<T>) {
      for (std::int64_t i = 0; i < args_.in; ++i) {
        for (std::int64_t o = 0; o < args_.out; ++o) {
          to[i * args_.out + o] = widen(from[o * args_.in + i]);
        }
      }
    } else {
      transpose_block(from, args_.in, to, args_.in, args_.out);
    }
  }

  void add_tap(std::int64_t tap, std::int64_t begin, std::int64_t end) {
    const Acc* const w = weight(tap);
    for (std::int64_t p = begin; p < end; p += kConvPackedRows) {
      const std::int64_t count = std::min(kConvPackedRows, end - p);
      const Acc* source[kConvPackedRows];
      Acc* sum[kConvPackedRows];
      for (std::int64_t i = 0; i < count; ++i) {
        source[i] = source_row(args_.map.source[p + i], i);
        sum[i] = sum_row(args_.map.target[p + i]);
      }
      if (schedule_.depthwise) {
        add_depthwise(w, source, sum, count);
      } else {
        for (std::int64_t g = 0; g < args_.groups; ++g) {
          add_rows(w + g * args_.in * args_.out, g, source, sum, count);
        }
      }
    }
  }

  const Acc* source_row(std::int64_t row, std::int64_t slot) {
    const T* const from = static_cast<const T*>(args_.x) + row * args_.x_stride;
    if constexpr (is_narrow_v<T>) {
      const std::int64_t channels = args_.groups * args_.in;
      Acc* const to = rows_ + slot * channels;
      widen_row(from, to, channels);
      return to;
    } else {
      return from;
    }
  }

  void add_depthwise(const Acc* w, const Acc* const* source, Acc* const* sum, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const Acc* const x = source[i];
      Acc* const y = sum[i];
      for (std::int64_t c = 0; c < width_; ++c) {
        y[c] += x[c] * w[c];
      }
    }
  }

  void add_rows(const Acc* w, std::int64_t group, const Acc* const* source, Acc* const* sum, std::int64_t count) const {
    const Acc* a[kConvPackedRows];
    for (std::int64_t i = 0; i < count; ++i) {
      a[i] = source[i] + group * args_.in;
    }
    for_column_blocks<Acc>(
        args_.out, [&](auto vectors, auto is_part, std::int64_t column, int part) LACEWING_INLINE_LAMBDA {
          Acc* c[kConvPackedRows];
          for (std::int64_t i = 0; i < count; ++i) {
            c[i] = sum[i] + group * args_.out + column;
          }
          for_row_blocks<decltype(vectors)::value>(count, [&](auto rows, std::int64_t at) LACEWING_INLINE_LAMBDA {
            row_block<Acc, decltype(rows)::value, decltype(vectors)::value, decltype(is_part)::value>(
                a + at, c + at, w + column, args_.out, args_.in, part);
          });
        });
  }

  const ConvArgs& args_;
  const ConvSchedule& schedule_;
  std::int64_t width_;
  Acc* weight_;
  Acc* rows_;
  Acc* sums_;
};

template <typename T>
class TileWeightGrad {
 public:
  using Acc = accumulate_t<T>;

  TileWeightGrad(const ConvWeightGradArgs& args, const WeightGradSchedule& schedule, Acc* scratch)
      : args_(args), schedule_(schedule), scratch_(scratch) {}

  /// Adds the outer products of the pairs [begin, end), all of one tap, to sum (groups, in, out).
  void run(std::int64_t begin, std::int64_t end, Acc* sum) {
    for (std::int64_t p = begin; p < end; p += schedule_.block) {
      const std::int64_t count = std::min(schedule_.block, end - p);
      const Acc* left[kMostPairs];
      const Acc* right[kMostPairs];
      for (std::int64_t i = 0; i < count; ++i) {
        left[i] = row(args_.x, args_.map.source[p + i] * args_.x_stride, args_.groups * args_.in, 0, i);
        right[i] = row(args_.grad, args_.map.target[p + i] * args_.grad_stride, args_.groups * args_.out,
                       schedule_.block * args_.groups * args_.in, i);
      }
      if (args_.in == 1 && args_.out == 1) {
        add_depthwise(left, right, count, sum);
        continue;
      }
      for (std::int64_t g = 0; g < args_.groups; ++g) {
        add_group(left, right, count, g, sum + g * args_.in * args_.out);
      }
    }
  }

 private:
  static constexpr std::int64_t kMostPairs = 128;

  const Acc* row(const void* base, std::int64_t offset, std::int64_t channels, std::int64_t start, std::int64_t slot) {
    const T* const from = static_cast<const T*>(base) + offset;
    if constexpr (is_narrow_v<T>) {
      Acc* const to = scratch_ + start + slot * channels;
      widen_row(from, to, channels);
      return to;
    } else {
      return from;
    }
  }

  void add_depthwise(const Acc* const* left, const Acc* const* right, std::int64_t count, Acc* sum) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const Acc* const x = left[i];
      const Acc* const g = right[i];
      for (std::int64_t c = 0; c < args_.groups; ++c) {
        sum[c] += x[c] * g[c];
      }
    }
  }

  void add_group(const Acc* const* left, const Acc* const* right, std::int64_t count, std::int64_t group,
                 Acc* sum) const {
    for_column_blocks<Acc>(
        args_.out, [&](auto vectors, auto is_part, std::int64_t column, int part) LACEWING_INLINE_LAMBDA {
          for_row_blocks<decltype(vectors)::value>(args_.in, [&](auto rows, std::int64_t at) LACEWING_INLINE_LAMBDA {
            outer_block<Acc, decltype(rows)::value, decltype(vectors)::value, decltype(is_part)::value>(
                left, group * args_.in + at, right, group * args_.out + column, count, sum + at * args_.out + column,
                args_.out, part);
          });
        });
  }

  const ConvWeightGradArgs& args_;
  const WeightGradSchedule& schedule_;
  Acc* scratch_;
};

template <typename T>
void conv_typed(const ConvArgs& args, const ConvSchedule& schedule, const CpuExecutor& executor, void* workspace) {
  using Acc = accumulate_t<T>;
  Acc* const scratch = static_cast<Acc*>(workspace);
  Acc* const sums = scratch + schedule.scratch * executor.max_threads();
  const std::int64_t rows = args.map.target_rows;
  const std::int64_t tasks = (rows + schedule.tile_rows - 1) / schedule.tile_rows;
  const std::int64_t work = args.map.pairs() * args.groups * args.in * args.out;
  share_out(executor, tasks, work, [&](std::int64_t worker, std::int64_t task) {
    TileConv<T> tile(args, schedule, scratch + worker * schedule.scratch, sums);
    tile.run(task * schedule.tile_rows, std::min((task + 1) * schedule.tile_rows, rows));
  });
}

template <typename T>
void weight_grad_typed(const ConvWeightGradArgs& args, const WeightGradSchedule& schedule, const CpuExecutor& executor,
                       void* workspace) {
  using Acc = accumulate_t<T>;
  const std::int64_t* const offsets = args.map.tap_offsets;
  const std::int64_t pairs = args.map.pairs();
  const std::int64_t matrix = schedule.matrix;
  Acc* const scratch = static_cast<Acc*>(workspace);
  Acc* const partials = scratch + schedule.scratch * executor.max_threads();
  Acc* sums = nullptr;
  if constexpr (is_narrow_v<T>) {
    sums = partials + schedule.partials();
  } else {
    sums = static_cast<T*>(args.weight_grad);
  }
  std::fill_n(sums, args.map.taps * matrix, Acc{});
  std::fill_n(partials, schedule.partials(), Acc{});
  const auto share_begin = [&](std::int64_t share) { return pairs * share / schedule.shares; };
  share_out(executor, schedule.shares, pairs * matrix, [&](std::int64_t worker, std::int64_t share) {
    TileWeightGrad<T> tile(args, schedule, scratch + worker * schedule.scratch);
    const std::int64_t begin = share_begin(share);
    const std::int64_t end = share_begin(share + 1);
    for (std::int64_t tap = 0; tap < args.map.taps; ++tap) {
      const std::int64_t from = std::max(begin, offsets[tap]);
      const std::int64_t to = std::min(end, offsets[tap + 1]);
      if (from < to) {
        // A share that begins inside a tap adds to its own partial sum of it.
        const bool inside = offsets[tap] < begin;
        tile.run(from, to, inside ? partials + (share - 1) * matrix : sums + tap * matrix);
      }
    }
  });
  for (std::int64_t share = 1; share < schedule.shares; ++share) {
    const std::int64_t begin = share_begin(share);
    const std::int64_t tap = std::upper_bound(offsets, offsets + args.map.taps, begin) - offsets - 1;
    if (offsets[tap] < begin) {
      Acc* const sum = sums + tap * matrix;
      const Acc* const partial = partials + (share - 1) * matrix;
      for (std::int64_t i = 0; i < matrix; ++i) {
        sum[i] += partial[i];
      }
    }
  }
  if constexpr (is_narrow_v<T>) {
    narrow_row<T>(sums, static_cast<T*>(args.weight_grad), args.map.taps * matrix);
  }
}

}  // namespace

void conv(const ConvArgs& args, const ConvSchedule& schedule, const CpuExecutor& executor, void* workspace) {
  visit_conv_type(args.type, [&](auto scalar) { conv_typed<decltype(scalar)>(args, schedule, executor, workspace); });
}

void conv_weight_grad(const ConvWeightGradArgs& args, const WeightGradSchedule& schedule, const CpuExecutor& executor,
                      void* workspace) {
  visit_conv_type(args.type,
                  [&](auto scalar) { weight_grad_typed<decltype(scalar)>(args, schedule, executor, workspace); });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
