// Torch's own ops with their result in memory that is kept.
#pragma once

#include "tensor/call.h"

namespace lacewing::tensor {

/// A pointwise op on arguments of a joint shape. A large result on the CPU that no gradient follows lies in memory that
/// is kept (see <lacewing/memory.h>): where torch allocates it, its pages are fresh in every call, which costs more
/// than most ops compute.
std::vector<c10::IValue> call_pointwise(const Call& call, std::vector<c10::IValue> args, at::IntArrayRef shape);

}  // namespace lacewing::tensor
