// As src/index/where.h, for tensors of the CPU: by the device's kernels where the test says so.
#pragma once

#include <ATen/core/Tensor.h>

namespace lacewing::index {

inline bool on_device = false;

inline bool is_on_device(const at::Tensor&) { return on_device; }
inline bool is_on_host(const at::Tensor&) { return !on_device; }

}  // namespace lacewing::index
