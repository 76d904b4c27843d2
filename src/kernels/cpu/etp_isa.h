// The entry points of each ISA level for traces and cells.
#pragma once

#include "kernels/cell.h"
#include "kernels/factor.h"
#include "kernels/trace.h"

#define LACEWING_DECLARE_LEVEL(isa)                                                                 \
  namespace lacewing::kernels::cpu::isa {                                                           \
  void trace(std::span<const TraceArgs> steps, const CpuExecutor& executor);                        \
  void cell_step(const CellArgs& args, const CpuExecutor& executor);                                \
  /* neurons [begin, end) on this thread */                                                         \
  void cell_neurons(const CellArgs& args, std::int64_t begin, std::int64_t end);                    \
  void spike_gradient_neurons(const SpikeGradientArgs& args, std::int64_t begin, std::int64_t end); \
  void spike_gradient(const SpikeGradientArgs& args, const CpuExecutor& executor);                  \
  void contract_factors(const FactorArgs& args, const CpuExecutor& executor);                       \
  }

LACEWING_DECLARE_LEVEL(baseline)
LACEWING_DECLARE_LEVEL(avx2)
LACEWING_DECLARE_LEVEL(avx512)

#undef LACEWING_DECLARE_LEVEL
