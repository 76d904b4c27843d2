// The fused trace update on the CPU: one pass over the trace, vectors over the batch. Compiled once for each ISA level.
#include <algorithm>

#include "kernels/cpu/etp_isa.h"
#include "kernels/cpu/lanes.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Shares of the entries that are dealt to threads; results do not depend on how they are dealt.
constexpr std::int64_t kShares = 64;
/// Elements of the trace below which one thread does it all.
constexpr std::int64_t kSerialElements = 1 << 14;

/// States is known at compile time where it is small, or 0.
template <typename T, int States>
struct Columns {
  using Acc = accumulate_t<T>;
  using L = Lanes<T>;
  using Vec = typename L::Vec;
  static constexpr int kRows = States > 0 ? States : static_cast<int>(kMaxStates);

  const TraceArgs& args;

  LACEWING_INLINE int states() const { return States > 0 ? States : static_cast<int>(args.states); }

  /// What the entries of one column share, for lanes [b, b + count) of the batch.
  template <bool Updates, bool Contracts>
  LACEWING_INLINE void run(std::int64_t column, std::int64_t begin, std::int64_t end, std::int64_t b, int count) const {
    const int n = states();
    const std::int64_t batch = args.batch;
    Vec decay[kRows][kRows];
    Vec df[kRows];
    Vec g[kRows];
    for (int a = 0; a < n; ++a) {
      const std::int64_t at = (column * n + a) * batch + b;
      if constexpr (Updates) {
        df[a] = L::load(static_cast<const T*>(args.df) + at, count);
        for (int c = 0; c < n; ++c) {
          decay[a][c] = L::load(static_cast<const T*>(args.decay) + ((column * n + a) * n + c) * batch + b, count);
        }
      }
      if constexpr (Contracts) {
        g[a] = L::load(static_cast<const T*>(args.g) + at, count);
      }
    }
    const T* const x = static_cast<const T*>(args.x);
    Acc* const grad = static_cast<Acc*>(args.grad);
    T* trace = static_cast<T*>(args.trace) + begin * n * batch + b;
    // One entry: its vector of g * e over the lanes, summed over the states.
    const auto entry = [&](std::int64_t p) LACEWING_INLINE_LAMBDA {
      Vec e[kRows];
      for (int a = 0; a < n; ++a) {
        e[a] = L::load(trace + a * batch, count);
      }
      if constexpr (Updates) {
        const Vec input = x != nullptr ? L::load(x + args.row[p] * batch + b, count) : Vec{} + Acc{1};
        Vec next[kRows];
        for (int a = 0; a < n; ++a) {
          next[a] = input * df[a];
          for (int c = 0; c < n; ++c) {
            next[a] += decay[a][c] * e[c];
          }
        }
        for (int a = 0; a < n; ++a) {
          e[a] = L::store(trace + a * batch, next[a], count);
        }
      }
      trace += n * batch;
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
        for (int i = 0; i < L::lanes; ++i) {
          sums[i] = entry(p + i);
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
  void share(std::int64_t first, std::int64_t last) const {
    for (std::int64_t column = first; column < last; ++column) {
      const std::int64_t begin = args.segments != nullptr ? args.segments[column] : column;
      const std::int64_t end = args.segments != nullptr ? args.segments[column + 1] : column + 1;
      if (begin == end) {
        continue;
      }
      // Whole vectors first, so that the compiler sees a constant count.
      std::int64_t b = 0;
      for (; b + L::lanes <= args.batch; b += L::lanes) {
        run<Updates, Contracts>(column, begin, end, b, L::lanes);
      }
      if (b < args.batch) {
        run<Updates, Contracts>(column, begin, end, b, static_cast<int>(args.batch - b));
      }
    }
  }
};

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

template <typename T, int States>
void trace_typed(const TraceArgs& args, const CpuExecutor& executor) {
  const Columns<T, States> columns{args};
  const bool serial = args.entries * args.states * args.batch < kSerialElements;
  executor.parallel_for(0, kShares, serial ? kShares : 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = share_boundary(args, begin);
    const std::int64_t last = share_boundary(args, end);
    if (args.df == nullptr) {
      columns.template share<false, true>(first, last);
    } else if (args.g == nullptr) {
      columns.template share<true, false>(first, last);
    } else {
      columns.template share<true, true>(first, last);
    }
  });
}

}  // namespace

void trace(const TraceArgs& args, const CpuExecutor& executor) {
  visit_real(args.type, [&](auto scalar) {
    using T = decltype(scalar);
    switch (args.states) {
      case 1: return trace_typed<T, 1>(args, executor);
      case 2: return trace_typed<T, 2>(args, executor);
      case 3: return trace_typed<T, 3>(args, executor);
      default: return trace_typed<T, 0>(args, executor);
    }
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
