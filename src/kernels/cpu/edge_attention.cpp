// Settles the ISA level of a call.
#include "kernels/cpu/at_level.h"
#include "kernels/cpu/edge_attention_isa.h"

namespace lacewing::kernels::cpu {

void edge_attention(const EdgeAttentionForward& args, const CpuExecutor& executor) {
  LACEWING_AT_LEVEL(edge_attention(args, executor))
}

void edge_attention_backward(const EdgeAttentionBackward& args, const CpuExecutor& executor) {
  LACEWING_AT_LEVEL(edge_attention_backward(args, executor))
}

}  // namespace lacewing::kernels::cpu
