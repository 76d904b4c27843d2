// The entry points of each ISA level.
#pragma once

#include "kernels/cpu/conv_schedule.h"

#define LACEWING_DECLARE_LEVEL(isa)                                                                            \
  namespace lacewing::kernels::cpu::isa {                                                                      \
  void conv(const ConvArgs& args, const ConvSchedule& schedule, const CpuExecutor& executor, void* workspace); \
  void conv_weight_grad(const ConvWeightGradArgs& args, const WeightGradSchedule& schedule,                    \
                        const CpuExecutor& executor, void* workspace);                                         \
  }

LACEWING_DECLARE_LEVEL(baseline)
LACEWING_DECLARE_LEVEL(avx2)
LACEWING_DECLARE_LEVEL(avx512)

#undef LACEWING_DECLARE_LEVEL
