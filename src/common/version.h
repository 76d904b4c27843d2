// Whether a tensor was written to since it was looked at.
#pragma once

#include <ATen/core/Tensor.h>

namespace lacewing {

/// How often a tensor was changed in place; tensors of inference mode do not tell.
inline std::int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

}  // namespace lacewing
