// Calls one of the functions that are compiled once per ISA level.
#pragma once

#include "kernels/cpu/isa.h"

/// Returns `call`, a call of a function of the namespaces baseline, avx2 and avx512, at the level in use.
#if LACEWING_HAVE_X86_ISA
#define LACEWING_AT_LEVEL(call)                                           \
  switch (::lacewing::kernels::cpu::isa()) {                              \
    case ::lacewing::kernels::cpu::Isa::avx512: return cpu::avx512::call; \
    case ::lacewing::kernels::cpu::Isa::avx2: return cpu::avx2::call;     \
    default: return cpu::baseline::call;                                  \
  }
#else
#define LACEWING_AT_LEVEL(call) return cpu::baseline::call;
#endif
