// Settles the ISA level of a call.
#include "kernels/cpu/at_level.h"
#include "kernels/cpu/etp_isa.h"

namespace lacewing::kernels::cpu {

void trace(std::span<const TraceArgs> steps, const CpuExecutor& executor) { LACEWING_AT_LEVEL(trace(steps, executor)) }

void cell_step(const CellArgs& args, const CpuExecutor& executor) { LACEWING_AT_LEVEL(cell_step(args, executor)) }

void spike_gradient(const SpikeGradientArgs& args, const CpuExecutor& executor) {
  LACEWING_AT_LEVEL(spike_gradient(args, executor))
}

void contract_factors(const FactorArgs& args, const CpuExecutor& executor) {
  LACEWING_AT_LEVEL(contract_factors(args, executor))
}

}  // namespace lacewing::kernels::cpu
