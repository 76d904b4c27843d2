#pragma once

#include "kernels/conv.h"

namespace lacewing::kernels::cuda {

/// At most 32 channels on either side; x has 4 or a multiple of 8, grad too.
std::int64_t conv_weight_small_workspace(const ConvWeightGradArgs& args);
void conv_weight_small(const ConvWeightGradArgs& args, const CudaExecutor& executor, void* workspace);

}  // namespace lacewing::kernels::cuda
