// Both gradients of a sparse matrix times a dense one, from one reading of the upstream gradient. Torch-free.
#pragma once

#include "kernels/product.h"

namespace lacewing::kernels {

/// The sum  z[r] = sum over terms t of row r of numbers[i2[t]] vectors[i1[t]]  (a vecsca without scale, batch or
/// conjugation), and beside it, for each term,  dots[i2[t]] = <vectors[i1[t]], rows[r]>.
struct GatherSumDotsArgs {
  ProductArgs sum;
  const void* rows = nullptr;  ///< (rows of z, channels), channels contiguous
  std::int64_t row_stride = 0;
  void* dots = nullptr;
};

namespace cuda {
/// Whether the kernel takes rows of so many channels where they lie.
bool is_gather_sum_dots(const GatherSumDotsArgs& args);
std::int64_t gather_sum_dots_workspace(const GatherSumDotsArgs& args);
void gather_sum_dots(const GatherSumDotsArgs& args, const CudaExecutor& executor, void* workspace);
}  // namespace cuda

}  // namespace lacewing::kernels
