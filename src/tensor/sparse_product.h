// Sparse times sparse.
#pragma once

#include "tensor/sparse_impl.h"

namespace lacewing::tensor {

/// The product of two coalesced tensors with fill 0 over the dims that they share, which lead in b; in a the rows lead,
/// and rows and shared dims may have dims (of a batch) in common. Entries (rows of a, columns of b), coalesced.
Components times_sparse(const Components& a, const at::Tensor& a_values, const Dims& a_rows, const Dims& a_shared,
                        const Components& b, const at::Tensor& b_values, const Dims& b_shared, const Dims& b_columns);

}  // namespace lacewing::tensor
