// Zeros that torch does not store: tangents of an operand that is not varied, such as a sparse tensor that a function
// under torch.func.jvp captures.
#pragma once

#include "tensor/call.h"

namespace lacewing::tensor {

/// Whether a tensor is of such zeros, and more of them than the densify policy lets pass without a word. Small ones
/// take part as strided tensors, because a tangent that is not strided as its tensor is stops torch at the next view.
bool are_large_zeros(const at::Tensor& tensor);

/// Such zeros as a tensor without entries, with the dense dims of the sparse operands where it can have them.
at::Tensor without_entries(const at::Tensor& zeros, const Call& call);

}  // namespace lacewing::tensor
