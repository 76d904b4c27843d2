// gather_rows and scatter_add_rows: rows of a matrix by index, each the other's gradient.
//
// Both are registered operators (torch.ops.lacewing.*), run on CPU and CUDA, and are differentiable in src to any
// order, in reverse and forward mode. dtypes: float16, bfloat16, float32, float64, complex64, complex128, int32,
// int64; index: int32 or int64.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>

namespace lacewing {

/// out[k, c] = src[index[k], c].
///
/// src (n, c), any strides; index (m,); out (m, c). Allocates the output. Deterministic.
/// With `check`, an index outside [0, n) throws c10::Error with its position and value; on CUDA that reads one
/// integer back. `check = false` promises that the indices are in range, and reads nothing back.
LACEWING_API at::Tensor gather_rows(const at::Tensor& src, const at::Tensor& index, bool check = true);

/// out[r, c] = sum of src[k, c] over the k with index[k] = r; rows without any are zero.
///
/// src (m, c), any strides; index (m,); out (rows, c). Modes:
///   "deterministic"  the terms of a row are added in the order of k, in float for float16 and bfloat16: the same
///                    bits for every run and thread count. Sorts the index: allocates two vectors of length m.
///   "distinct"       no index may occur twice (with `check`: throws c10::Error, and allocates one vector of length
///                    rows to find out). Deterministic, allocates the output only without `check`.
///   "atomic"         atomic additions in any order; the last bits differ from run to run. Allocates the output.
/// `check` as for gather_rows.
LACEWING_API at::Tensor scatter_add_rows(const at::Tensor& src, const at::Tensor& index, c10::SymInt rows,
                                         std::string_view mode = "deterministic", bool check = true);

}  // namespace lacewing
