// Sparse tensors in text files: Matrix Market (.mtx) and FROSTT (.tns).
//
// Files are read and written on all threads. Threads may call every function here at once, for different files. A
// damaged one gives an error with its line, and one that announces more entries than its bytes can hold is refused
// before memory is taken for them.
#pragma once

#include <string>

#include <lacewing/tensor.h>

namespace lacewing {

/// The matrix of a Matrix Market file, in COO with fill 0 and its entries in the file's order.
///
/// Coordinate and array files; real, integer, complex and pattern (values 1) fields become float64, int64, complex128
/// and float64; of symmetric, skew-symmetric and hermitian matrices the other triangle's entries follow those of the
/// file. Throws c10::Error with one sentence that names the line.
LACEWING_API at::Tensor read_mtx(const std::string& path);

/// Writes a matrix with fill 0: real, integer, complex, or pattern for booleans (which must all be true). Values are
/// the shortest text that reads back as the same number.
LACEWING_API void write_mtx(const at::Tensor& sparse, const std::string& path);

/// The tensor of a FROSTT file: lines of 1-based indices and a value, float64 or `dtype`, in COO with fill 0. Values of
/// an integer dtype are read as integers. Without `size`, sizes are the largest indices.
LACEWING_API at::Tensor read_tns(const std::string& path, at::OptionalIntArrayRef size = {},
                                 std::optional<at::ScalarType> dtype = {});

/// Writes a tensor of real numbers with fill 0 and no dense dims.
LACEWING_API void write_tns(const at::Tensor& sparse, const std::string& path);

}  // namespace lacewing
