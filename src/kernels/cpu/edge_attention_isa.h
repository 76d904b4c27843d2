// The entry points of each ISA level.
#pragma once

#include "kernels/edge_attention.h"

#define LACEWING_DECLARE_LEVEL(isa)                                                             \
  namespace lacewing::kernels::cpu::isa {                                                       \
  void edge_attention(const EdgeAttentionForward& args, const CpuExecutor& executor);           \
  void edge_attention_backward(const EdgeAttentionBackward& args, const CpuExecutor& executor); \
  }

LACEWING_DECLARE_LEVEL(baseline)
LACEWING_DECLARE_LEVEL(avx2)
LACEWING_DECLARE_LEVEL(avx512)

#undef LACEWING_DECLARE_LEVEL
