// Stands in for pool.cu in builds without CUDA.
#include <stdexcept>

#include "kernels/pool.h"

namespace lacewing::kernels {

PoolKernels<Device::cuda> cuda_pool_kernels() {
  throw std::runtime_error("[lacewing.sparse_max_pool] a tensor is on cuda, but this build has no CUDA kernels");
}

}  // namespace lacewing::kernels
