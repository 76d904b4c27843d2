// The instruction set that kernels are chosen by.
#pragma once

#include <cstdint>

namespace lacewing::kernels::cpu {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

/// The best level that both this build and this processor have, or the lower one that the environment variable
/// LACEWING_CPU_ISA (baseline, avx2, avx512) names. Read once.
Isa isa();

}  // namespace lacewing::kernels::cpu
