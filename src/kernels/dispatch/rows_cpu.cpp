// The CPU's row kernels: the tables of the public primitives, and for rows of floats side by side the ISA level's own.
#include "kernels/cpu/at_level.h"
#include "kernels/cpu/rows_isa.h"
#include "kernels/dispatch/rows_impl.h"

namespace lacewing::kernels {
namespace {

using Tabled = TabledRowKernels<Device::cpu>;

bool side_by_side(const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  const auto unit = [](const RowsArg& rows) { return rows.col_stride == 1 || rows.cols == 1; };
  return (src.type == ScalarType::f32 || src.type == ScalarType::f64) && unit(src) && unit(dst) && index.stride == 1;
}

void gather(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  if (!side_by_side(src, dst, index)) {
    return Tabled::gather(executor, src, dst, index);
  }
  LACEWING_AT_LEVEL(gather_rows(executor, src, dst, index))
}

void scatter_add(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  if (!side_by_side(src, dst, index)) {
    return Tabled::scatter_add(executor, src, dst, index);
  }
  LACEWING_AT_LEVEL(scatter_add_rows(executor, src, dst, index))
}

}  // namespace

RowKernels<Device::cpu> cpu_row_kernels() {
  RowKernels<Device::cpu> kernels = Tabled::kernels();
  kernels.gather = gather;
  kernels.scatter_add = scatter_add;
  return kernels;
}

}  // namespace lacewing::kernels
