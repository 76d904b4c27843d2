// The fused trace update on the CPU: one pass over the trace, vectors over the batch. Compiled once for each ISA level.
#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/etp_isa.h"
#include "kernels/cpu/lanes.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Shares of the entries that are dealt to threads; results do not depend on how they are dealt.
constexpr std::int64_t kShares = 64;
/// Elements of the trace below which one thread does it all.
constexpr std::int64_t kSerialElements = 1 << 14;
/// Bytes of the trace that stay in cache while several steps pass over them.
constexpr std::int64_t kPieceBytes = 1 << 18;
/// Bytes from what a lone step takes to what is fetched meanwhile.
constexpr std::int64_t kAheadBytes = 1 << 14;
/// Bytes of the derivatives that are made at once, which stay in cache until the trace has taken them.
constexpr std::int64_t kMadeBytes = 1 << 14;

/// States is known at compile time where it is small, or 0. First is 1 where the first state is kept for each row.
template <typename T, int States, int First>
struct Columns {
  using Acc = accumulate_t<T>;
  using L = Lanes<T>;
  using Vec = typename L::Vec;
  static constexpr int kRows = States > 0 ? States : static_cast<int>(kMaxStates);
  static constexpr bool kShared = First > 0;

  const TraceArgs& args;
  /// Elements from an entry to one that comes next in memory, which is fetched meanwhile; 0: none.
  std::int64_t ahead;

  LACEWING_INLINE int states() const { return States > 0 ? States : static_cast<int>(args.states); }

  /// What the entries of one column share, for lanes [b, b + count) of the batch: all of a vector where it is Full.
  template <bool Updates, bool Contracts, bool Full>
  LACEWING_INLINE void run(std::int64_t column, std::int64_t begin, std::int64_t end, std::int64_t b, int count) const {
    const int n = states();
    const std::int64_t batch = args.batch;
    Vec decay[kRows][kRows];
    Vec df[kRows];
    Vec g[kRows];
    const std::int64_t rows = (column - args.first) * n;
    for (int a = 0; Contracts && a < n; ++a) {
      g[a] = L::load(static_cast<const T*>(args.g) + (rows + a) * batch + b, count);
    }
    for (int a = First; Updates && a < n; ++a) {
      df[a] = L::load(static_cast<const T*>(args.df) + (rows + a) * batch + b, count);
      for (int c = 0; c < n; ++c) {
        decay[a][c] = L::load(static_cast<const T*>(args.decay) + ((rows + a) * n + c) * batch + b, count);
      }
      if constexpr (kShared) {
        decay[a][0] -= static_cast<Acc>(args.shared_decay) * df[a];  // what y does comes with u' already
      }
    }
    const T* const x = static_cast<const T*>(kShared ? args.shared_after : args.x);
    const T* const before = static_cast<const T*>(args.shared_before);
    const int own = n - First;
    Acc* const grad = static_cast<Acc*>(args.grad);
    T* trace = static_cast<T*>(args.trace) + begin * own * batch + b;
    // One entry: its vector of g * e over the lanes, summed over the states.
    const auto entry = [&](std::int64_t p) LACEWING_INLINE_LAMBDA {
      Vec e[kRows];
      for (int a = First; a < n; ++a) {
        e[a] = L::load(trace + (a - First) * batch, count);
      }
      if (ahead != 0) {
        for (int a = 0; a < own; ++a) {
          __builtin_prefetch(trace + a * batch + ahead, 1, 2);
        }
      }
      Vec input{};
      if constexpr (Updates || kShared) {
        input = kShared || x != nullptr ? L::load(x + args.row[p] * batch + b, count) : Vec{} + Acc{1};
      }
      if constexpr (Updates) {
        if constexpr (kShared) {
          e[0] = L::load(before + args.row[p] * batch + b, count);
        }
        Vec next[kRows];
        for (int a = First; a < n; ++a) {
          next[a] = input * df[a];
          for (int c = 0; c < n; ++c) {
            next[a] += decay[a][c] * e[c];
          }
        }
        for (int a = First; a < n; ++a) {
          e[a] = L::store(trace + (a - First) * batch, next[a], count);
        }
      }
      if constexpr (kShared) {
        e[0] = input;
      }
      trace += own * batch;
      Vec sum{};
      if constexpr (Contracts) {
        for (int a = 0; a < n; ++a) {
          sum += g[a] * e[a];
        }
      }
      return sum;
    };
    std::int64_t p = begin;
    if constexpr (Contracts) {
      // A vector's worth of entries at a time: their sums over the lanes come out side by side.
      for (; p + L::lanes <= end; p += L::lanes) {
        Vec sums[L::lanes];
        if constexpr (Full && States > 0 && L::direct) {
#pragma GCC unroll 16
          for (int i = 0; i < L::lanes; ++i) {
            sums[i] = entry(p + i);  // in registers; elsewhere the unrolled loop would take minutes to compile
          }
        } else {
          for (int i = 0; i < L::lanes; ++i) {
            sums[i] = entry(p + i);
          }
        }
        const Vec found = sum_each<Acc, L::lanes / 2>(sums);
        if (args.order == nullptr) {
          Simd<Acc>::store(grad + p, Simd<Acc>::load(grad + p) + found);
        } else {
          for (int i = 0; i < L::lanes; ++i) {
            grad[args.order[p + i]] += found[i];
          }
        }
      }
    }
    for (; p < end; ++p) {
      const Vec sum = entry(p);
      if constexpr (Contracts) {
        grad[args.order != nullptr ? args.order[p] : p] += Simd<Acc>::sum(sum);
      }
    }
  }

  template <bool Updates, bool Contracts>
  LACEWING_INLINE void batches(std::int64_t column, std::int64_t begin, std::int64_t end) const {
    // Whole vectors first, so that the compiler sees a constant count.
    std::int64_t b = 0;
    for (; b + L::lanes <= args.batch; b += L::lanes) {
      run<Updates, Contracts, true>(column, begin, end, b, L::lanes);
    }
    if (b < args.batch) {
      run<Updates, Contracts, false>(column, begin, end, b, static_cast<int>(args.batch - b));
    }
  }

  /// Not inline: it is large, and there are several callers.
  [[gnu::noinline]] void step(std::int64_t column, std::int64_t begin, std::int64_t end) const {
    if (args.df == nullptr) {
      batches<false, true>(column, begin, end);
    } else if (args.g == nullptr) {
      batches<true, false>(column, begin, end);
    } else {
      batches<true, true>(column, begin, end);
    }
  }
};

/// Columns [first, last), a piece of the trace after the other: each takes all of the steps while it is in cache.
/// Pieces begin at multiples of a vector's entries, so that sums have the same bits whatever the number of steps.
template <typename T, int States, int First>
void run_columns(std::span<const TraceArgs> steps, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t lanes = Lanes<T>::lanes;
  const TraceArgs& common = steps.front();
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t entry = common.own_states() * common.batch;
  const std::int64_t piece =
      std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(entry * bytes * lanes, 1)) * lanes;
  for (std::int64_t column = first; column < last; ++column) {
    const std::int64_t end = common.segments != nullptr ? common.segments[column + 1] : column + 1;
    for (std::int64_t p = common.segments != nullptr ? common.segments[column] : column; p < end; p += piece) {
      const std::int64_t stop = std::min(p + piece, end);
      for (std::size_t t = 0; t < steps.size(); ++t) {
        // Of several steps the first waits for memory, the others for arithmetic: one of them fetches the next piece.
        const std::int64_t wanted = steps.size() == 1 ? kAheadBytes / bytes : t == 1 ? (stop - p) * entry : 0;
        const std::int64_t ahead = std::min(wanted, (common.entries - stop) * entry);
        Columns<T, States, First>{steps[t], ahead}.step(column, p, stop);
      }
    }
  }
}

/// The same where a cell makes the derivatives: those of a few columns, then their traces.
template <typename T, int States, int First>
void run_made(std::span<const TraceArgs> given, std::int64_t first, std::int64_t last) {
  const std::int64_t states = given.front().states;
  const std::int64_t row = states * given.front().batch;
  // df, decay and g of a column, of all steps.
  const std::int64_t each = row * (states + 2);
  const auto steps = static_cast<std::int64_t>(given.size());
  const std::int64_t most =
      std::max<std::int64_t>(1, kMadeBytes / std::max<std::int64_t>(steps * each * std::int64_t{sizeof(T)}, 1));
  std::vector<T> made(static_cast<std::size_t>(steps * std::min(most, last - first) * each));
  std::vector<TraceArgs> now(given.begin(), given.end());
  const auto from = [](const void* rows, std::int64_t place) -> const void* {
    return rows != nullptr ? static_cast<const T*>(rows) + place : nullptr;
  };
  for (std::int64_t begin = first; begin < last; begin += most) {
    const std::int64_t end = std::min(begin + most, last);
    T* place = made.data();
    const auto room = [&](std::int64_t elements) { return std::exchange(place, place + (end - begin) * elements); };
    for (std::size_t t = 0; t < given.size(); ++t) {
      now[t].first = begin;
      now[t].df = from(given[t].df, begin * row);
      now[t].decay = from(given[t].decay, begin * row * states);
      now[t].g = from(given[t].g, begin * row);
      if (given[t].cell != nullptr) {
        CellArgs cell = *given[t].cell;
        cell.first = begin;
        now[t].df = cell.df = room(row);
        now[t].decay = cell.decay = room(row * states);
        cell_neurons(cell, begin, end);
      }
      if (given[t].spikes != nullptr) {
        SpikeGradientArgs spikes = *given[t].spikes;
        spikes.first = begin;
        now[t].g = spikes.g = room(row);
        spike_gradient_neurons(spikes, begin, end);
      }
    }
    run_columns<T, States, First>(now, begin, end);
  }
}

/// The first column of a share: shares have equal numbers of entries, up to one column.
std::int64_t share_boundary(const TraceArgs& args, std::int64_t share) {
  if (args.segments == nullptr) {
    return args.columns * share / kShares;
  }
  if (share == kShares) {
    return args.columns;
  }
  const std::int64_t wanted = args.entries * share / kShares;
  return std::lower_bound(args.segments, args.segments + args.columns, wanted) - args.segments;
}

template <typename T, int States, int First>
void trace_typed(std::span<const TraceArgs> steps, const CpuExecutor& executor) {
  const TraceArgs& common = steps.front();
  const bool serial = common.entries * common.states * common.batch < kSerialElements;
  const bool makes = std::any_of(steps.begin(), steps.end(),
                                 [](const TraceArgs& step) { return step.cell != nullptr || step.spikes != nullptr; });
  executor.parallel_for(0, kShares, serial ? kShares : 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = share_boundary(common, begin);
    const std::int64_t last = share_boundary(common, end);
    // A ready cell has f32 or f64 states, three at most.
    if constexpr (States > 0 && (std::is_same_v<T, float> || std::is_same_v<T, double>)) {
      if (makes && first < last) {
        return run_made<T, States, First>(steps, first, last);
      }
    }
    run_columns<T, States, First>(steps, first, last);
  });
}

template <typename T, int First>
void trace_states(std::span<const TraceArgs> steps, const CpuExecutor& executor) {
  // Traces of half precision are rare, and every instance takes a second to compile.
  if constexpr (Lanes<T>::direct) {
    switch (steps.front().states) {
      case 1: return trace_typed<T, 1, First>(steps, executor);
      case 2: return trace_typed<T, 2, First>(steps, executor);
      case 3: return trace_typed<T, 3, First>(steps, executor);
      default: break;
    }
  }
  trace_typed<T, 0, First>(steps, executor);
}

}  // namespace

void trace(std::span<const TraceArgs> steps, const CpuExecutor& executor) {
  visit_real(steps.front().type, [&](auto scalar) {
    using T = decltype(scalar);
    if (steps.front().first_own() == 0) {
      return trace_states<T, 0>(steps, executor);
    }
    trace_states<T, 1>(steps, executor);
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
