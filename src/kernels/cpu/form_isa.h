// The entry points of each ISA level.
#pragma once

#include "kernels/cpu/form_schedule.h"

#define LACEWING_DECLARE_LEVEL(isa)                                                                            \
  namespace lacewing::kernels::cpu::isa {                                                                      \
  void form(const FormArgs& args, const FormSchedule& schedule, const CpuExecutor& executor, void* workspace); \
  }

LACEWING_DECLARE_LEVEL(baseline)
LACEWING_DECLARE_LEVEL(avx2)
LACEWING_DECLARE_LEVEL(avx512)

#undef LACEWING_DECLARE_LEVEL
