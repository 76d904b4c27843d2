#include "kernels/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lacewing::kernels::cpu {
namespace {

Isa best() {
#if LACEWING_HAVE_X86_ISA
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return Isa::avx2;
  }
#endif
  return Isa::baseline;
}

Isa wanted() {
  const char* const value = std::getenv("LACEWING_CPU_ISA");
  const std::string_view name = value != nullptr ? value : "";
  if (name != "" && name != "baseline" && name != "avx2" && name != "avx512") {
    throw std::invalid_argument("[lacewing.cpu_isa] LACEWING_CPU_ISA must be baseline, avx2 or avx512, not " +
                                std::string(name));
  }
  return name == "baseline" ? Isa::baseline : name == "avx2" ? Isa::avx2 : Isa::avx512;
}

}  // namespace

Isa isa() {
  static const Isa level = std::min(best(), wanted());
  return level;
}

}  // namespace lacewing::kernels::cpu
