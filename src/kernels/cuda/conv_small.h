#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/conv_wgmma.h"

namespace lacewing::kernels::cuda {

/// choice.columns is 8, 16 or 32.
void conv_small(const ConvArgs& args, const ConvChoice& choice, const ConvTablesAt& at, const CudaExecutor& executor);

}  // namespace lacewing::kernels::cuda
