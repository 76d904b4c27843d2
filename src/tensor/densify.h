// Densifying on behalf of an op, under the policy.
#pragma once

#include <string>

#include "tensor/sparse_impl.h"

namespace lacewing::tensor {

/// The strided tensor for an op that has no rule that keeps the format: warns or throws as the policy says, and is
/// recorded where somebody listens.
at::Tensor densified_for(const std::string& op, const at::Tensor& sparse);

/// The policy for a result of that shape, which has no sparse form.
void check_dense_result(const std::string& op, at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace lacewing::tensor
