// Eligibility traces, as every backend takes them. Torch-free.
//
//   e[p, a, b] <- sum_c D[col p, a, c, b] * e[p, c, b] + x[row p, b] * df[col p, a, b]
//   grad[order p] += sum_b sum_a g[col p, a, b] * e[p, a, b]
//
// Where the first state obeys h_0' = m h_0 + y + (terms without a derivative), its trace is u[row p, b] for every entry
// of a row, with u' = m u + x: it is kept once for each row, and y reaches the other states a >= 1 through it alone:
//
//   e[p, a, b] <- sum_{c >= 1} D[col p, a, c, b] * e[p, c, b]
//                 + (D[col p, a, 0, b] - m * df[col p, a, b]) * u[row p, b] + df[col p, a, b] * u'[row p, b]
//
// Entries p are sorted by column, and the batch b is the last, contiguous dim of every array: what a column needs (D,
// df, g) is read once for all of its entries, and the trace streams through vector registers without a shuffle.
#pragma once

#include <cstdint>
#include <span>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

struct CellArgs;
struct SpikeGradientArgs;

/// The most states that a hidden group may have.
inline constexpr std::int64_t kMaxStates = 16;

/// One step. All arrays are contiguous and of one floating type, except grad (its accumulator type) and the indices.
struct TraceArgs {
  ScalarType type = ScalarType::f32;  ///< f16, bf16, f32 or f64
  std::int64_t entries = 0;
  std::int64_t columns = 0;
  std::int64_t states = 1;  ///< at most kMaxStates
  std::int64_t batch = 1;
  const std::int64_t* segments = nullptr;  ///< (columns + 1): entries of each column; null: one entry per column
  const std::int32_t* row = nullptr;       ///< (entries): row of x, u and u'; null where there are none
  const std::int32_t* column = nullptr;    ///< (entries); null: one entry per column
  const std::int64_t* order = nullptr;     ///< (entries): place in grad; null: the identity
  void* trace = nullptr;                   ///< (entries, own_states(), batch)
  const void* x = nullptr;                 ///< (rows, batch); null: the constant 1, or u' stands for it
  const void* shared_before = nullptr;     ///< u, (rows, batch); null where df is
  const void* shared_after = nullptr;      ///< u', (rows, batch), u where df is null; null: entries have all states
  double shared_decay = 0;                 ///< m
  const void* df = nullptr;                ///< (columns, states, batch); null: the trace stays as it is
  const void* decay = nullptr;             ///< (columns, states, states, batch): D
  const void* g = nullptr;                 ///< (columns, states, batch); null: nothing is added to grad
  void* grad = nullptr;                    ///< (entries), added to
  // Of a ready cell, on the CPU (f32 and f64): what df and decay, or g, are made from a few columns at a time, so that
  // none of them is ever in memory as a whole.
  const CellArgs* cell = nullptr;             ///< without inputs; makes df and decay
  const SpikeGradientArgs* spikes = nullptr;  ///< makes g
  std::int64_t first = 0;                     ///< the column of the first row of df, decay and g, on the CPU

  /// The first state that each entry has a trace of its own for.
  LACEWING_HOST_DEVICE std::int64_t first_own() const { return shared_after != nullptr ? 1 : 0; }
  LACEWING_HOST_DEVICE std::int64_t own_states() const { return states - first_own(); }
};

/// Calls f(T{}) for the floating type at hand.
template <typename F>
void visit_real(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::f16: return f(Half{});
    case ScalarType::bf16: return f(BFloat16{});
    case ScalarType::f32: return f(float{});
    case ScalarType::f64: return f(double{});
    default: return;  // the ops layer admits no other type
  }
}

// Successive steps of one trace: they differ in x, u, u', df, decay and g alone. The result has the same bits as one
// call for each step.
namespace reference {
void trace(std::span<const TraceArgs> steps);
}  // namespace reference

namespace cpu {
/// One pass over memory for all of the steps.
void trace(std::span<const TraceArgs> steps, const CpuExecutor& executor);
}  // namespace cpu

namespace cuda {
void trace(std::span<const TraceArgs> steps, const CudaExecutor& executor);
}  // namespace cuda

}  // namespace lacewing::kernels
