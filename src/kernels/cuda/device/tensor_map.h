// Tensors in global memory as the copy engine sees them.
#pragma once

#include <cstdint>

#include <cuda.h>

namespace lacewing::kernels::cuda {

/// A dense tensor (matrices, rows, columns) of 2-byte elements, aligned to 16 bytes as its rows are, read in boxes of
/// (1, box_rows, 64), each in rows of 128 bytes, swizzled. What lies outside reads as zeros.
CUtensorMap half_matrices(const void* data, std::int64_t matrices, std::int64_t rows, std::int64_t columns,
                          int box_rows);

}  // namespace lacewing::kernels::cuda
