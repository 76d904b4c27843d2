// Bringing sparse tensors to one shape, one split into sparse and dense dims, and one index set.
#pragma once

#include <vector>

#include "kernels/elements.h"
#include "tensor/sparse_impl.h"

namespace lacewing::tensor {

/// The first `count` dense dims become sparse. Not for an array fill.
Components dense_to_sparse_dims(const Components& c, std::int64_t count);

/// A strided tensor with an entry for every index of its leading dims, so that none of its elements is without one.
Components with_all_entries(const at::Tensor& dense, std::int64_t sparse_dims, Fill fill);

/// All sparse dims of the pattern over the given sizes (aligned at the right, sizes of 1 and missing dims repeat).
Components expand_sparse(const Components& c, at::IntArrayRef sparse_sizes);

/// The values of several operands on one pattern.
struct Aligned {
  PatternPtr pattern;
  std::vector<at::Tensor> values;  ///< (nse of the pattern, *dense), one for each operand
};

enum class Join {
  all,   ///< every index of an operand with a fill; of those without, the indices that all of them have
  both,  ///< the indices that all operands have
};

/// Operands over `out_shape` with so many dense dims, or nothing where an array fill is in the way.
std::optional<std::vector<Components>> same_shape(const std::vector<Components>& operands, at::IntArrayRef out_shape,
                                                  std::int64_t dense_dims);

/// Same-shape operands on one index set, their fills where they have no entry.
Aligned align(const std::vector<Components>& operands, Join join);

/// What is made of the elements of two same-shape operands, on one index set and in one pass: one tensor of values.
/// Nothing where they are no floats or doubles, where a derivative is wanted, or where they share their index set.
std::optional<Aligned> combine(const std::vector<Components>& operands, Join join, kernels::Combine with);

/// Rows of the values by position; the fill where it is -1.
at::Tensor pick_rows(const Components& c, const at::Tensor& positions);

}  // namespace lacewing::tensor
