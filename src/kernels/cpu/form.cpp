// Settles the schedule and the ISA level of a call.
#include "kernels/cpu/at_level.h"
#include "kernels/cpu/form_isa.h"

namespace lacewing::kernels::cpu {

std::int64_t form_workspace(const FormArgs& args, int threads) { return schedule_form(args).workspace(args, threads); }

void form(const FormArgs& args, const CpuExecutor& executor, void* workspace) {
  const FormSchedule schedule = schedule_form(args);
  LACEWING_AT_LEVEL(form(args, schedule, executor, workspace))
}

}  // namespace lacewing::kernels::cpu
