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

/// Calls f(worker, begin, end) on tiles of the rows; workers take the next one when they are done. Tiles have up to
/// `tile_rows` rows, and fewer towards the end, so that all workers are done at about the same time. No tile depends on
/// the number of threads: a compiler may round a sum differently in blocks of another height.
template <typename F>
void share_tiles(const CpuExecutor& executor, std::int64_t rows, std::int64_t tile_rows, std::int64_t work, F&& f) {
  constexpr std::int64_t kLeast = 2 * kConvTileRows;
  constexpr std::int64_t kShares = 16;
  const std::int64_t workers =
      work < kSerial ? 1 : std::min<std::int64_t>(executor.max_threads(), (rows + kLeast - 1) / kLeast);
  const auto end_of = [&](std::int64_t begin) {
    const std::int64_t share = (rows - begin) / kShares / kConvTileRows * kConvTileRows;
    return std::min(rows, begin + std::clamp(share, kLeast, tile_rows));
  };
  std::atomic<std::int64_t> next{0};
  executor.parallel_for(0, workers, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t worker = first; worker < last; ++worker) {
      std::int64_t begin = next.load();
      while (begin < rows) {
        if (next.compare_exchange_weak(begin, end_of(begin))) {
          f(worker, begin, end_of(begin));
          begin = next.load();
        }
      }
    }
  });
}

/// The row of x that a pair reads.
template <typename T, typename Args>
const T* x_row(const Args& args, std::int64_t pair) {
  return static_cast<const T*>(args.x) + args.map.source[pair] * args.x_stride;
}

/// The pairs of a tap that lie in a tile.
struct TapPairs {
  std::int64_t tap = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;

  std::int64_t count() const { return last - first; }
};

/// Calls f(pairs, pairs of the next tap) for the taps that have some in the tile of sorted targets [begin, end); behind
/// the last one comes none. The one that has all of the tile's rows comes first.
template <typename F>
LACEWING_INLINE void for_tile_taps(const ConvMap& map, std::int64_t begin, std::int64_t end, F&& f) {
  TapPairs waiting;  // until the one behind it is found
  const std::int64_t first = begin / kConvTileRows;
  const std::int64_t last = (end + kConvTileRows - 1) / kConvTileRows;
  for (std::int64_t step = 0; step < map.taps; ++step) {
    const std::int64_t tap = map.tap_at(step);
    const std::int32_t* const table = map.target_tiles + tap * (map.tiles() + 1);
    const TapPairs found{tap, map.tap_offsets[tap] + table[first], map.tap_offsets[tap] + table[last]};
    if (found.count() > 0) {
      if (waiting.count() > 0) {
        f(waiting, found);
      }
      waiting = found;
    }
  }
  if (waiting.count() > 0) {
    f(waiting, TapPairs{});
  }
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
        rows_(scratch + schedule.weight_scratch),
        sums_(sums) {}

  /// Outputs of the sorted voxels [begin, end).
  void run(std::int64_t begin, std::int64_t end) {
    if (schedule_.depthwise) {
      start(begin, end, 0, width_);
      add_depthwise(begin, end);
      finish(begin, end, 0, width_);
    } else {
      for (std::int64_t g = 0; g < args_.groups; ++g) {
        add_group(g, begin, end);
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

  /// The bias, or zeros, in these columns of the tile.
  void start(std::int64_t begin, std::int64_t end, std::int64_t column, std::int64_t columns) {
    for (std::int64_t i = begin; i < end; ++i) {
      Acc* const y = sum_row(target(i)) + column;
      if (args_.bias != nullptr) {
        widen_row(static_cast<const T*>(args_.bias) + column, y, columns);
      } else {
        std::fill_n(y, columns, Acc{});
      }
    }
  }

  /// What follows the sums, in these columns of the tile, while they are in cache.
  void finish(std::int64_t begin, std::int64_t end, std::int64_t column, std::int64_t columns) {
    const ConvFinish& how = args_.finish;
    if (how.scale == nullptr && how.residual == nullptr && !how.relu) {
      return;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = target(i);
      Acc* const y = sum_row(row) + column;
      if (how.scale != nullptr) {
        const Acc* const scale = static_cast<const Acc*>(how.scale) + column;
        const Acc* const shift = static_cast<const Acc*>(how.shift) + column;
        for (std::int64_t c = 0; c < columns; ++c) {
          y[c] = y[c] * scale[c] + shift[c];
        }
      }
      if (how.residual != nullptr) {
        const T* const residual = static_cast<const T*>(how.residual) + row * how.residual_stride + column;
        for (std::int64_t c = 0; c < columns; ++c) {
          y[c] += widen(residual[c]);
        }
      }
      if (how.relu) {
        for (std::int64_t c = 0; c < columns; ++c) {
          y[c] = y[c] < 0 ? Acc{} : y[c];  // NaN stays
        }
      }
    }
  }

  /// Calls f(source rows, output rows, count) for the pairs of a tap, some at a time; channels from these columns.
  /// Behind the rows come those that f may ask for: the first ones of the next call, of the next tap in the end.
  template <typename F>
  LACEWING_INLINE void for_rows(const TapPairs& pairs, const TapPairs& next, std::int64_t channel,
                                std::int64_t channels, std::int64_t column, F&& f) {
    for (std::int64_t p = pairs.first; p < pairs.last; p += kConvPackedRows) {
      const std::int64_t count = std::min(kConvPackedRows, pairs.last - p);
      const Acc* source[kConvPackedRows + kMostRows];
      Acc* sum[kConvPackedRows + kMostRows];
      for (std::int64_t i = 0; i < count; ++i) {
        const T* const from = x_row<T>(args_, p + i) + channel;
        if constexpr (is_narrow_v<T>) {
          Acc* const to = rows_ + i * channels;
          widen_row(from, to, channels);
          source[i] = to;
        } else {
          source[i] = from;
        }
        sum[i] = sum_row(args_.map.target[p + i]) + column;
      }
      const TapPairs later = p + count < pairs.last ? TapPairs{pairs.tap, p + count, pairs.last} : next;
      for (std::int64_t i = 0; i < kMostRows; ++i) {
        source[count + i] = source[count - 1];
        sum[count + i] = sum[count - 1];
        if (i < later.count()) {
          sum[count + i] = sum_row(args_.map.target[later.first + i]) + column;
          if constexpr (!is_narrow_v<T>) {
            source[count + i] = x_row<T>(args_, later.first + i) + channel;
          }
        }
      }
      f(source, sum, count);
    }
  }

  /// Pieces of the weight go outermost, then the taps, then blocks of rows: under all columns of a piece, the inputs of
  /// a block stay in the first-level cache.
  void add_group(std::int64_t group, std::int64_t begin, std::int64_t end) {
    for_column_runs<Acc>(
        args_.out, conv_columns(sizeof(Acc)),
        [&](auto vectors, auto is_part, std::int64_t column, std::int64_t blocks, int part) LACEWING_INLINE_LAMBDA {
          const std::int64_t width = decltype(is_part)::value ? part : decltype(vectors)::value * Simd<Acc>::lanes;
          const std::int64_t columns = blocks * width;
          const FirstSums first_sums(args_, group * args_.out + column, columns);
          const bool starts_itself = args_.map.identity_tap >= 0 && args_.in > 0;
          if (!starts_itself) {
            start(begin, end, group * args_.out + column, columns);
          }
          for (std::int64_t channel = 0; channel < args_.in; channel += kConvDepth) {
            const std::int64_t depth = std::min(kConvDepth, args_.in - channel);
            for_tile_taps(
                args_.map, begin, end, [&](const TapPairs& pairs, const TapPairs& next) LACEWING_INLINE_LAMBDA {
                  const std::int64_t tap = pairs.tap;
                  const WeightPiece weight =
                      weight_piece(tap * args_.groups + group, channel, depth, column, columns, width);
                  const bool starts = starts_itself && channel == 0 && tap == args_.map.identity_tap;
                  using Ahead = WeightAhead<decltype(vectors)::value>;
                  const Ahead later = next.count() > 0
                                          ? Ahead(args_, next.tap * args_.groups + group, channel, depth, column)
                                          : Ahead();
                  std::int64_t block = 0;
                  for_rows(
                      pairs, next, group * args_.in + channel, depth, group * args_.out + column,
                      [&](const Acc* const* source, Acc* const* sum, std::int64_t count) LACEWING_INLINE_LAMBDA {
                        for_row_blocks<decltype(vectors)::value>(count, [&](auto rows,
                                                                            std::int64_t at) LACEWING_INLINE_LAMBDA {
                          for (std::int64_t c = 0; c < columns; c += width) {
                            // The next block's rows lie anywhere: they are on their way while this one is computed.
                            // A flat block has no time to ask for all of their columns.
                            if (depth < width) {
                              prefetch_rows<Acc>(sum + at + decltype(rows)::value, decltype(rows)::value, c, width);
                            }
                            row_block<Acc, decltype(rows)::value, decltype(vectors)::value, decltype(is_part)::value>(
                                source + at, starts ? first_sums.rows : sum + at, sum + at, c,
                                weight.data + c * weight.column, weight.stride, depth,
                                later.lines(block, c, source[at]), part);
                          }
                          ++block;
                        });
                      });
                });
          }
          finish(begin, end, group * args_.out + column, columns);
        });
  }

  /// What sums start from, the bias or zeros, as the rows of a block.
  struct FirstSums {
    FirstSums(const ConvArgs& args, std::int64_t column, std::int64_t columns) {
      if (args.bias != nullptr) {
        widen_row(static_cast<const T*>(args.bias) + column, values, columns);
      }
      std::fill_n(rows, kMostRows, &values[0]);
    }
    FirstSums(const FirstSums&) = delete;
    FirstSums& operator=(const FirstSums&) = delete;

    alignas(64) Acc values[kConvMostColumns] = {};
    Acc* rows[kMostRows];
  };

  /// Where the piece of the weight lies in memory that the next tap needs, and which of its lines the blocks of this
  /// tap ask for: those of the widest kind, of Vectors vectors, for the columns that they compute.
  template <int Vectors>
  class WeightAhead {
   public:
    WeightAhead() = default;
    WeightAhead(const ConvArgs& args, std::int64_t matrix, std::int64_t channel, std::int64_t depth,
                std::int64_t column)
        : first_(reinterpret_cast<const char*>(weight_at(args, matrix, channel, column))) {
      constexpr std::int64_t size = sizeof(T);
      constexpr std::int64_t lanes = Simd<Acc>::lanes;
      constexpr std::int64_t line = 64 / sizeof(Acc);
      const std::int64_t steps = (depth + line - 1) / line;
      if (args.transposed) {  // a block asks for some rows, from their begin to their end
        across_ = args.in * size;
        along_ = line * size;
        column_ = args.in * size;
        advance_ = Vectors * args.in * size;
        blocks_ = lanes;
      } else {  // a block asks for one row at each step
        across_ = lanes * size;
        along_ = args.out * size;
        column_ = size;
        advance_ = steps * args.out * size;
        blocks_ = (depth + steps - 1) / steps;
      }
    }

    /// Those of the block at `column` of the tap's block of rows number `block`; of one too many, lines that are near
    /// anyway.
    LACEWING_INLINE LinesAhead lines(std::int64_t block, std::int64_t column, const Acc* near) const {
      if constexpr (Vectors < kMostVectors<Acc>) {
        return {};
      }
      const bool asks = block < blocks_;
      return {asks ? first_ + block * advance_ + column * column_ : reinterpret_cast<const char*>(near),
              asks ? across_ : 0, asks ? along_ : 0};
    }

   private:
    const char* first_ = nullptr;
    std::int64_t across_ = 0;   ///< bytes between the lines of a step,
    std::int64_t along_ = 0;    ///< between steps,
    std::int64_t column_ = 0;   ///< between columns,
    std::int64_t advance_ = 0;  ///< between blocks of rows
    std::int64_t blocks_ = 0;
  };

  static LACEWING_INLINE const T* weight_at(const ConvArgs& args, std::int64_t matrix, std::int64_t channel,
                                            std::int64_t column) {
    const T* const whole = static_cast<const T*>(args.weight) + matrix * args.in * args.out;
    return args.transposed ? whole + column * args.in + channel : whole + channel * args.out + column;
  }

  /// A piece of a matrix of the weight, (depth, columns), in place or in scratch. Its block of columns at c lies at
  /// data + c * column and has rows of this stride.
  struct WeightPiece {
    const Acc* data;
    std::int64_t column;
    std::int64_t stride;
  };

  /// In scratch, a block of `width` columns follows the other.
  LACEWING_INLINE WeightPiece weight_piece(std::int64_t matrix, std::int64_t channel, std::int64_t depth,
                                           std::int64_t column, std::int64_t columns, std::int64_t width) {
    if constexpr (!is_narrow_v<T>) {
      if (!schedule_.packs_weight) {
        return {weight_at(args_, matrix, channel, column), 1, args_.out};
      }
    }
    for (std::int64_t c = 0; c < columns; c += width) {
      const T* const from = weight_at(args_, matrix, channel, column + c);
      Acc* const to = weight_ + c * depth;
      if constexpr (is_narrow_v<T>) {
        for (std::int64_t i = 0; i < depth; ++i) {
          for (std::int64_t o = 0; o < width; ++o) {
            to[i * width + o] = widen(args_.transposed ? from[o * args_.in + i] : from[i * args_.out + o]);
          }
        }
      } else {
        transpose_block(from, args_.in, to, depth, width);
      }
    }
    return {weight_, depth, width};
  }

  void add_depthwise(std::int64_t begin, std::int64_t end) {
    for_tile_taps(args_.map, begin, end, [&](const TapPairs& pairs, const TapPairs& next) {
      const T* const from = static_cast<const T*>(args_.weight) + pairs.tap * args_.groups;
      const Acc* weight = weight_;
      if constexpr (is_narrow_v<T>) {
        widen_row(from, weight_, args_.groups);
      } else {
        weight = from;
      }
      for_rows(pairs, next, 0, args_.groups, 0,
               [&](const Acc* const* source, Acc* const* sum, std::int64_t count) LACEWING_INLINE_LAMBDA {
                 for (std::int64_t i = 0; i < count; ++i) {
                   const Acc* const x = source[i];
                   Acc* const y = sum[i];
                   for (std::int64_t c = 0; c < args_.groups; ++c) {
                     y[c] += x[c] * weight[c];
                   }
                 }
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

/// A worker's rows of the gradient of the weight: of each tap, the rows (group, input channel) [begin, end).
struct RowShare {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Where the worker's share of tap `tap` begins, with the rows of all taps dealt out by their number of pairs.
/// Boundaries fall between blocks of rows.
std::int64_t share_boundary(const ConvMap& map, std::int64_t tap, std::int64_t rows, std::int64_t worker,
                            std::int64_t workers) {
  constexpr std::int64_t kBlock = 4;
  const std::int64_t pairs = map.tap_offsets[tap + 1] - map.tap_offsets[tap];
  const std::int64_t wanted = map.pairs() * worker / workers - map.tap_offsets[tap];
  if (worker == 0 || wanted < 0) {
    return 0;
  }
  if (worker == workers || wanted >= pairs) {
    return rows;
  }
  return std::min(rows, rows * wanted / pairs / kBlock * kBlock);
}

/// Pairs of a block: narrow vectors have smaller blocks of sums, which want the pairs' rows closer at hand.
constexpr std::int64_t kPairBlock = kMostVectors<float> == 4 ? kConvPairBlock : kConvPairBlock / 2;

/// Up to kPairBlock pairs of a tap, and the rows of its gradient that a worker adds them to.
struct PairBlock {
  std::int64_t tap = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  RowShare share;
};

template <typename T>
class TileWeightGrad {
 public:
  using Acc = accumulate_t<T>;

  TileWeightGrad(const ConvWeightGradArgs& args, Acc* scratch, Acc* sums)
      : args_(args), scratch_(scratch), sums_(sums) {}

  /// Adds the outer products of a block's pairs to the rows of its gradient; the rows of `next` are on their way
  /// meanwhile.
  void run(const PairBlock& block, const PairBlock& next) {
    Acc* const sum = sums_ + block.tap * args_.groups * args_.in * args_.out;
    const RowShare share = block.share;
    const Acc* left[kConvPairBlock];
    const Acc* right[kConvPairBlock];
    for (std::int64_t i = 0; i < block.count; ++i) {
      left[i] = row(x_row<T>(args_, block.first + i), args_.groups * args_.in, 0, i);
      right[i] = row(grad_row(block.first + i), args_.groups * args_.out, kConvPairBlock * args_.groups * args_.in, i);
    }
    if (args_.in == 1 && args_.out == 1) {
      add_depthwise(left, right, block.count, share, sum);
      return;
    }
    look_ahead(next, block.count, left);
    for (std::int64_t g = share.begin / args_.in; g * args_.in < share.end; ++g) {
      add_group(left, right, block.count, g, std::max(share.begin - g * args_.in, std::int64_t{0}),
                std::min(share.end - g * args_.in, args_.in), sum + g * args_.in * args_.out);
    }
  }

 private:
  const T* grad_row(std::int64_t pair) const {
    return static_cast<const T*>(args_.grad) + args_.map.target[pair] * args_.grad_stride;
  }

  const Acc* row(const T* from, std::int64_t channels, std::int64_t start, std::int64_t slot) {
    if constexpr (is_narrow_v<T>) {
      Acc* const to = scratch_ + start + slot * channels;
      widen_row(from, to, channels);
      return to;
    } else {
      return from;
    }
  }

  /// Notes the rows of the next block for the widest blocks of columns to ask for; where it has fewer, rows that are
  /// near.
  void look_ahead(const PairBlock& next, std::int64_t count, const Acc* const* near) {
    call_ = 0;
    if (args_.out < kMostVectors<Acc> * Simd<Acc>::lanes) {
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const bool has = i < next.count;
      ahead_[0][i] =
          has ? reinterpret_cast<const char*>(x_row<T>(args_, next.first + i)) : reinterpret_cast<const char*>(near[i]);
      ahead_[1][i] = has ? reinterpret_cast<const char*>(grad_row(next.first + i)) : ahead_[0][i];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      ahead_[2][i] = reinterpret_cast<const char*>(near[i]);
    }
  }

  void add_depthwise(const Acc* const* left, const Acc* const* right, std::int64_t count, RowShare share,
                     Acc* sum) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const Acc* const x = left[i];
      const Acc* const g = right[i];
      for (std::int64_t c = share.begin; c < share.end; ++c) {
        sum[c] += x[c] * g[c];
      }
    }
  }

  /// Rows [begin, end) of one group's gradient.
  void add_group(const Acc* const* left, const Acc* const* right, std::int64_t count, std::int64_t group,
                 std::int64_t begin, std::int64_t end, Acc* sum) {
    const std::int64_t left_lines = lines_of(args_.groups * args_.in);
    const std::int64_t lines = left_lines + lines_of(args_.groups * args_.out);
    // Runs of one block: all rows pass under it while its columns of the upstream gradient are near.
    for_column_runs<Acc>(
        args_.out, 1,
        [&](auto vectors, auto is_part, std::int64_t column, std::int64_t /*blocks*/, int part) LACEWING_INLINE_LAMBDA {
          for_row_blocks<decltype(vectors)::value>(end - begin, [&](auto rows, std::int64_t at) LACEWING_INLINE_LAMBDA {
            // One line of each of the next rows in each call, first of x, then of the upstream gradient, until all are
            // on their way.
            const std::int64_t call = call_++;
            const int side = call < left_lines ? 0 : call < lines ? 1 : 2;
            const std::int64_t line = side == 0 ? call : side == 1 ? call - left_lines : 0;
            Acc* const c = sum + (begin + at) * args_.out + column;
            const bool has_next = at + 2 * decltype(rows)::value <= end - begin;
            outer_block<Acc, decltype(rows)::value, decltype(vectors)::value, decltype(is_part)::value>(
                left, group * args_.in + begin + at, right, group * args_.out + column, count, ahead_[side], 64 * line,
                c, has_next ? c + decltype(rows)::value * args_.out : c, args_.out, part);
          });
        });
  }

  static std::int64_t lines_of(std::int64_t channels) {
    return (channels * static_cast<std::int64_t>(sizeof(T)) + 63) / 64;
  }

  const ConvWeightGradArgs& args_;
  Acc* scratch_;
  Acc* sums_;
  const char* ahead_[3][kConvPairBlock];
  std::int64_t call_ = 0;
};

template <typename T>
void conv_typed(const ConvArgs& args, const ConvSchedule& schedule, const CpuExecutor& executor, void* workspace) {
  using Acc = accumulate_t<T>;
  Acc* const scratch = static_cast<Acc*>(workspace);
  Acc* const sums = scratch + schedule.scratch * executor.max_threads();
  const std::int64_t rows = args.map.target_rows;
  const std::int64_t work = args.map.pairs() * args.groups * args.in * args.out;
  share_tiles(executor, rows, schedule.tile_rows, work, [&](std::int64_t worker, std::int64_t begin, std::int64_t end) {
    TileConv<T>(args, schedule, scratch + worker * schedule.scratch, sums).run(begin, end);
  });
}

template <typename T>
void weight_grad_typed(const ConvWeightGradArgs& args, const WeightGradSchedule& schedule, const CpuExecutor& executor,
                       void* workspace) {
  using Acc = accumulate_t<T>;
  const ConvMap& map = args.map;
  Acc* const scratch = static_cast<Acc*>(workspace);
  Acc* sums = nullptr;
  if constexpr (is_narrow_v<T>) {
    sums = scratch + schedule.scratch * executor.max_threads();
  } else {
    sums = static_cast<T*>(args.weight_grad);
  }
  const std::int64_t rows = args.groups * args.in;
  const std::int64_t workers = map.pairs() * schedule.matrix < kSerial ? 1 : executor.max_threads();
  executor.parallel_for(0, workers, 1, [&](std::int64_t first_worker, std::int64_t last_worker) {
    for (std::int64_t worker = first_worker; worker < last_worker; ++worker) {
      TileWeightGrad<T> tile(args, scratch + worker * schedule.scratch, sums);
      const auto share_of = [&](std::int64_t tap) {
        return RowShare{share_boundary(map, tap, rows, worker, workers),
                        share_boundary(map, tap, rows, worker + 1, workers)};
      };
      for (std::int64_t tap = 0; tap < map.taps; ++tap) {
        const RowShare share = share_of(tap);
        std::fill(sums + tap * schedule.matrix + share.begin * args.out,
                  sums + tap * schedule.matrix + share.end * args.out, Acc{});
      }
      PairBlock waiting;  // runs when the one behind it is known
      const auto push = [&](const PairBlock& next) {
        if (waiting.count > 0) {
          tile.run(waiting, next);
        }
        waiting = next;
      };
      for (std::int64_t row = 0; row < map.target_rows; row += schedule.tile_rows) {
        for_tile_taps(map, row, std::min(row + schedule.tile_rows, map.target_rows),
                      [&](const TapPairs& pairs, const TapPairs&) {
                        const RowShare share = share_of(pairs.tap);
                        for (std::int64_t p = pairs.first; p < pairs.last && share.begin < share.end; p += kPairBlock) {
                          push({pairs.tap, p, std::min(kPairBlock, pairs.last - p), share});
                        }
                      });
      }
      push({});
      if constexpr (is_narrow_v<T>) {
        for (std::int64_t tap = 0; tap < map.taps; ++tap) {
          const RowShare share = share_of(tap);
          const std::int64_t from = tap * schedule.matrix + share.begin * args.out;
          narrow_row<T>(sums + from, static_cast<T*>(args.weight_grad) + from, (share.end - share.begin) * args.out);
        }
      }
    }
  });
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
