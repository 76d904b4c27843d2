// A reduction of a sparse tensor along dims: which entries meet, and how many elements of a group are fill.
#pragma once

#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "common/sum_type.h"
#include "tensor/call.h"

namespace lacewing::tensor {

/// Entries grouped by the sparse dims that stay. Rows keep the dense dims that are reduced, as 1, until result().
class Reduction {
 public:
  /// No dims: all of them.
  Reduction(const Components& c, const Dims& dims, bool keepdim);

  Components c;              ///< coalesced
  Dims dense_dims;           ///< the dims of `values` that are reduced
  std::int64_t extent;       ///< elements that meet in one
  const Grouping* grouping;  ///< null where only dense dims are reduced

  /// Elements along the sparse dims that are reduced.
  std::int64_t sparse_extent() const { return missing_of_; }
  std::int64_t groups() const;
  /// (groups,): the elements of each group without an entry.
  at::Tensor missing() const;
  /// (nse,): the group of each entry.
  at::Tensor group_of() const;
  /// (groups,) as a column that broadcasts against rows of so many dims.
  static at::Tensor column(const at::Tensor& per_group, std::int64_t dims);
  /// count * fill, where 0 times an infinite fill is 0.
  static at::Tensor fill_share(const at::Tensor& count, const at::Tensor& fill) {
    return at::where(count == 0, at::zeros({}, fill.options()), count.to(fill.scalar_type()) * fill);
  }

  /// The tensor of reduced rows (groups, ...) and reduced fill (1, ...): strided where no sparse dim stays.
  at::Tensor result(at::Tensor values, at::Tensor fill) const;
  bool give(Call& call, const std::vector<std::pair<at::Tensor, at::Tensor>>& results) const;

 private:
  Dims kept_, reduced_;
  std::int64_t missing_of_ = 1;
  bool keepdim_;
};

/// A rule on argument 0 in a wider type, where its type (or that of the result, if dtype= names one) has one. Results
/// are narrowed at the end.
bool widened(Call& call, Rule rule, at::ScalarType (*wider)(at::ScalarType) = sum_type);

/// The same as a row of a table.
template <Rule rule>
bool accumulated(Call& call) {
  return widened(call, rule);
}

/// The largest (or smallest) element of each group, and of the fill alone. Differentiable: ties share the gradient.
std::pair<at::Tensor, at::Tensor> attained(const Reduction& r, bool largest);

}  // namespace lacewing::tensor
