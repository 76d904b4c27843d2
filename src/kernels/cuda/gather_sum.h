// Sums of gathered rows, z[n, r] = sum over terms t of row r of s[t] y[n, i2[t]] x[n, i1[t]]: SpMM, its transpose,
// sparse scale, coalescing. Launched by product() where a call has this form.
#pragma once

#include "kernels/cuda/gather_sum_choose.h"
#include "kernels/product.h"

namespace lacewing::kernels::cuda {

/// Whether a call has the form: x gives vectors (or single numbers), y numbers or nothing.
bool is_gather_sum(const ProductArgs& args);
std::int64_t gather_sum_workspace(const ProductArgs& args);
void gather_sum(const ProductArgs& args, const CudaExecutor& executor, void* workspace);

/// Dots of rows, one for each term: z[n, t] = s[t] <x[n, i1[t]], y[n, i2[t]]>: the gradient of a matrix's values.
bool is_entry_dots(const ProductArgs& args);
void entry_dots(const ProductArgs& args, const CudaExecutor& executor);

}  // namespace lacewing::kernels::cuda
