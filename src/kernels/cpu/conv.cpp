// Settles the schedule and the ISA level of a convolution.
#include "kernels/cpu/at_level.h"
#include "kernels/cpu/conv_isa.h"

namespace lacewing::kernels::cpu {

std::int64_t conv_workspace(const ConvArgs& args, int threads) { return schedule_conv(args).workspace(threads); }

std::int64_t conv_weight_grad_workspace(const ConvWeightGradArgs& args, int threads) {
  return schedule_weight_grad(args).workspace(threads);
}

void conv(const ConvArgs& args, const CpuExecutor& executor, void* workspace) {
  const ConvSchedule schedule = schedule_conv(args);
  LACEWING_AT_LEVEL(conv(args, schedule, executor, workspace))
}

void conv_weight_grad(const ConvWeightGradArgs& args, const CpuExecutor& executor, void* workspace) {
  const WeightGradSchedule schedule = schedule_weight_grad(args);
  LACEWING_AT_LEVEL(conv_weight_grad(args, schedule, executor, workspace))
}

}  // namespace lacewing::kernels::cpu
