#include "kernels/dispatch/rows_impl.h"

namespace lacewing::kernels {

RowKernels<Device::cuda> cuda_row_kernels() { return TabledRowKernels<Device::cuda>::kernels(); }

}  // namespace lacewing::kernels
