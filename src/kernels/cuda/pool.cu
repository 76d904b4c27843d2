#include "kernels/pool_impl.h"

namespace lacewing::kernels {

PoolKernels<Device::cuda> cuda_pool_kernels() { return ForEachPoolKernels<Device::cuda>::kernels(); }

}  // namespace lacewing::kernels
