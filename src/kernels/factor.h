// The contraction of pp-prop's two factors with a gradient, on the CPU. Torch-free.
//
//   gy[o, b] = sum_a ef[o, a, b] * g[o, a, b]
//   grad[order p] += factor * sum_b x[row p, b] * gy[col p, b],   bias_grad[o] += bias_factor * sum_b gy[o, b]
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

#include "kernels/trace.h"

namespace lacewing::kernels {

/// Sparse weights with the factor of their inputs, entries sorted by column as a trace's.
struct FactorPart {
  const std::int64_t* segments = nullptr;  ///< (neurons + 1)
  const std::int32_t* row = nullptr;       ///< (entries)
  const std::int32_t* column = nullptr;    ///< (entries)
  const std::int64_t* order = nullptr;     ///< (entries): place in grad; null: the identity
  const void* x = nullptr;                 ///< (rows, batch)
  void* grad = nullptr;                    ///< (entries), added to
  void* bias_grad = nullptr;               ///< (neurons), added to; or null
};

/// dL/dh of one state, (neurons, batch) with strides; null where it is zero.
struct StateGradientView {
  const void* data = nullptr;
  std::int64_t neuron_stride = 0;
  std::int64_t batch_stride = 0;
};

/// All arrays are contiguous and of one type, f32 or f64, except g.
struct FactorArgs {
  ScalarType type = ScalarType::f32;
  std::int64_t neurons = 0;
  std::int64_t states = 1;
  std::int64_t batch = 1;
  const void* ef = nullptr;  ///< (neurons, states, batch)
  StateGradientView g[kMaxStates];
  FactorPart parts[2];
  int part_count = 0;
  double factor = 1;
  double bias_factor = 1;
};

namespace cpu {
/// Deterministic: blocks of neurons are the same for every number of threads.
void contract_factors(const FactorArgs& args, const CpuExecutor& executor);
}  // namespace cpu

}  // namespace lacewing::kernels
