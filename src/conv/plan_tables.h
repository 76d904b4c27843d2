// What the kernels of a CUDA device read of a plan beside its pairs: made when a call first needs it, and kept as long
// as the plan's array lives.
#pragma once

#include <ATen/core/Tensor.h>

#include "conv/plan.h"
#include "kernels/conv_device.h"

namespace lacewing::conv {

/// Tables of the target side of a plan, in memory that `keep` holds.
struct PlanTables {
  at::Tensor keep;
  kernels::ConvTableMemory memory;
};

/// Of the current stream: another one makes its own, because nothing orders the two. While a graph is captured, tables
/// of any stream will do; where there are none, they are made in the graph, which then makes them at every replay.
PlanTables plan_tables(const at::Tensor& plan, const PlanMeta& meta, const kernels::ConvTableSizes& sizes,
                       const CudaExecutor& executor);

}  // namespace lacewing::conv
