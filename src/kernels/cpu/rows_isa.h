// Rows of floats whose entries lie side by side, at each ISA level.
#pragma once

#include "kernels/dispatch/rows.h"

#define LACEWING_DECLARE_LEVEL(isa)                                                                                  \
  namespace lacewing::kernels::cpu::isa {                                                                            \
  void gather_rows(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index);      \
  void scatter_add_rows(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index); \
  }

LACEWING_DECLARE_LEVEL(baseline)
LACEWING_DECLARE_LEVEL(avx2)
LACEWING_DECLARE_LEVEL(avx512)

#undef LACEWING_DECLARE_LEVEL
