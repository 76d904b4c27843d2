#include "kernels/pool_impl.h"

namespace lacewing::kernels {

PoolKernels<Device::cpu> cpu_pool_kernels() { return ForEachPoolKernels<Device::cpu>::kernels(); }
PoolKernels<Device::reference> reference_pool_kernels() { return ForEachPoolKernels<Device::reference>::kernels(); }

}  // namespace lacewing::kernels
