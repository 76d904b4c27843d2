#pragma once

#include "kernels/conv.h"

namespace lacewing::kernels::cuda {

/// Channels of a group are multiples of 8.
std::int64_t conv_weight_wgmma_workspace(const ConvWeightGradArgs& args);
void conv_weight_wgmma(const ConvWeightGradArgs& args, const CudaExecutor& executor, void* workspace);

}  // namespace lacewing::kernels::cuda
