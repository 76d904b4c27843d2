// Maximum pooling over the pairs of a convolution plan, one set of kernels per device. Torch-free.
#pragma once

#include "kernels/conv.h"

namespace lacewing::kernels {

/// y[target, c] = the largest x[source, c] over the pairs, the first of equals in the order of the taps, NaN above all;
/// arg[target, c] = its source. Targets without a pair keep what was there. All dense, (rows, channels).
struct MaxPoolArgs {
  ScalarType type = ScalarType::f32;
  ConvMap map;
  std::int64_t channels = 0;
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t* arg = nullptr;  ///< starts as -1
};

/// out[source, c] += grad[target, c] over the pairs whose source is arg[target, c].
struct MaxPoolGradArgs {
  ScalarType type = ScalarType::f32;  ///< float32 or float64
  ConvMap map;
  std::int64_t channels = 0;
  const void* grad = nullptr;
  const std::int64_t* arg = nullptr;
  void* out = nullptr;  ///< starts as 0
};

template <Device Dev>
struct PoolKernels {
  void (*max)(const executor_t<Dev>&, const MaxPoolArgs&);
  void (*max_grad)(const executor_t<Dev>&, const MaxPoolGradArgs&);
};

PoolKernels<Device::cpu> cpu_pool_kernels();
PoolKernels<Device::reference> reference_pool_kernels();
/// Throws std::runtime_error in builds without CUDA.
PoolKernels<Device::cuda> cuda_pool_kernels();

}  // namespace lacewing::kernels
