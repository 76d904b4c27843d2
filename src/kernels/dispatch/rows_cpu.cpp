#include "kernels/dispatch/rows_impl.h"

namespace lacewing::kernels {

RowKernels<Device::cpu> cpu_row_kernels() { return TabledRowKernels<Device::cpu>::kernels(); }

}  // namespace lacewing::kernels
