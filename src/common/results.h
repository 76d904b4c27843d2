// Tensors that a kernel writes as a whole.
#pragma once

#include <ATen/core/Tensor.h>

namespace lacewing {

/// As at::empty; large ones on the CPU lie in memory that is kept (see <lacewing/memory.h>), unless the program has an
/// allocator of its own.
at::Tensor empty_result(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace lacewing
