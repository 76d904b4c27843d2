#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/conv_choose.h"

namespace lacewing::kernels::cuda {

/// Where the tables of a call's targets lie. Mirrored: they are those of the other direction of a map onto itself,
/// whose tap t is this one's tap taps - 1 - t.
struct ConvTablesAt {
  const ConvTables& tables;
  const void* memory;
  bool mirrored;
};

/// Bytes for the sums that one part of the taps leaves to the next.
std::int64_t conv_wgmma_workspace(const ConvArgs& args, const ConvChoice& choice);
void conv_wgmma(const ConvArgs& args, const ConvChoice& choice, const ConvTablesAt& at, const CudaExecutor& executor,
                void* workspace);

}  // namespace lacewing::kernels::cuda
