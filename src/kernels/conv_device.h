// Sparse convolution of half types on the tensor cores of a CUDA device. Torch-free; each call works on the executor's
// stream, in the workspace that it tells, and reads nothing back.
//
// The kernels read tables of one direction of a map, derived from its pairs on the device: one piece of memory whose
// size follows from numbers that the host knows. Sums are float, and the same on every run and for every grid; what is
// added to a target's sum, and in which order, follows from its own pairs. A weight that is not finite may reach rows
// without a source under its tap: zeros are multiplied by it.
#pragma once

#include <cstdint>

#include <lacewing/executor.h>

#include "kernels/conv.h"

namespace lacewing::kernels {

struct ConvTableSizes {
  std::int64_t rows = 0;  ///< targets
  std::int64_t taps = 0;
  int parts = 1;  ///< the taps are cut into so many parts, each with a sorted order of the rows of its own

  bool operator==(const ConvTableSizes&) const = default;
};

/// Tables that were made. Mirrored: they are those of the other direction of a map of voxels onto themselves, whose tap
/// t is this one's tap taps - 1 - t.
struct ConvTableMemory {
  const void* memory = nullptr;
  bool mirrored = false;
};

namespace cuda {

/// Whether what is launched becomes part of a graph instead of running.
bool is_capturing(const CudaExecutor& executor);

std::int64_t conv_tables_bytes(const ConvTableSizes& sizes);
std::int64_t conv_tables_workspace(const ConvTableSizes& sizes);
/// Of the map's target side. `memory` and `workspace` are aligned to 256 bytes.
void make_conv_tables(const ConvMap& map, const ConvTableSizes& sizes, void* memory, const CudaExecutor& executor,
                      void* workspace);

/// Whether the current device has a kernel for a call with these types, channels and places in memory; if not, the
/// functions below may not be called. Here the map of a call is its sizes alone.
bool has_conv(const ConvArgs& args);
/// Of the tables that a call reads.
ConvTableSizes conv_table_sizes(const ConvArgs& args);
std::int64_t conv_workspace(const ConvArgs& args);
void conv(const ConvArgs& args, const ConvTableMemory& tables, const CudaExecutor& executor, void* workspace);

/// Of the weight: it reads the map's pairs as they are.
bool has_conv_weight_grad(const ConvWeightGradArgs& args);
std::int64_t conv_weight_grad_workspace(const ConvWeightGradArgs& args);
void conv_weight_grad(const ConvWeightGradArgs& args, const CudaExecutor& executor, void* workspace);

}  // namespace cuda

}  // namespace lacewing::kernels
