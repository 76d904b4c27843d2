// Settles the ISA level of a call.
#include "kernels/cpu/etp_isa.h"
#include "kernels/cpu/isa.h"

namespace lacewing::kernels::cpu {

void trace(const TraceArgs& args, const CpuExecutor& executor) {
  switch (isa()) {
#if LACEWING_HAVE_X86_ISA
    case Isa::avx512: return avx512::trace(args, executor);
    case Isa::avx2: return avx2::trace(args, executor);
#endif
    default: return baseline::trace(args, executor);
  }
}

void cell_step(const CellArgs& args, const CpuExecutor& executor) {
  switch (isa()) {
#if LACEWING_HAVE_X86_ISA
    case Isa::avx512: return avx512::cell_step(args, executor);
    case Isa::avx2: return avx2::cell_step(args, executor);
#endif
    default: return baseline::cell_step(args, executor);
  }
}

void cell_output(const CellOutputArgs& args, const CpuExecutor& executor) {
  switch (isa()) {
#if LACEWING_HAVE_X86_ISA
    case Isa::avx512: return avx512::cell_output(args, executor);
    case Isa::avx2: return avx2::cell_output(args, executor);
#endif
    default: return baseline::cell_output(args, executor);
  }
}

}  // namespace lacewing::kernels::cpu
