// Where index structures are made. Tests put their own in its place.
#pragma once

#include <ATen/core/Tensor.h>

namespace lacewing::index {

/// By the device's kernels, on its current stream.
inline bool is_on_device(const at::Tensor& tensor) { return tensor.is_cuda(); }
/// By src/structure, on torch's threads. On meta there is nothing to look at, so neither holds.
inline bool is_on_host(const at::Tensor& tensor) { return tensor.is_cpu(); }

}  // namespace lacewing::index
