// The entry points of each ISA level.
#pragma once

#include "kernels/cpu/schedule.h"

#define LACEWING_DECLARE_LEVEL(isa)                                                                                   \
  namespace lacewing::kernels::cpu::isa {                                                                             \
  void product(const ProductArgs& args, const Schedule& schedule, const CpuExecutor& executor, void* workspace);      \
  void gathered(const ProductArgs& args, const Schedule& schedule, const CpuExecutor& executor);                      \
  void scale_grad(const ScaleGradArgs& args, const Schedule& schedule, const CpuExecutor& executor, void* workspace); \
  }

LACEWING_DECLARE_LEVEL(baseline)
LACEWING_DECLARE_LEVEL(avx2)
LACEWING_DECLARE_LEVEL(avx512)

#undef LACEWING_DECLARE_LEVEL
