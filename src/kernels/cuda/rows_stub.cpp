// Stands in for rows.cu in builds without CUDA.
#include <stdexcept>

#include "kernels/dispatch/rows.h"

namespace lacewing::kernels {

RowKernels<Device::cuda> cuda_row_kernels() {
  throw std::runtime_error("[lacewing.dispatch] a tensor is on cuda, but this build of Lacewing has no CUDA kernels");
}

}  // namespace lacewing::kernels
