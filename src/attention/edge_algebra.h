// Numbers of edges and rows of both sides, by the formula's registered ops: what derivatives of attention beyond the
// first are made of. Nothing of edges x heads x channels is ever in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "attention/calls.h"

namespace lacewing::attention {

/// Numbers are (edges, heads), vectors of a side (rows or columns, heads, channels), numbers of a side without
/// channels.
class EdgeAlgebra {
 public:
  EdgeAlgebra(const at::Tensor& edges, const EdgeSizes& sizes);

  /// Sums over the edges of a row of numbers times vectors of the columns.
  at::Tensor to_rows(const at::Tensor& numbers, const at::Tensor& columns) const;
  at::Tensor to_columns(const at::Tensor& numbers, const at::Tensor& rows) const;
  /// <rows[i, h], columns[j, h]> of each edge.
  at::Tensor dots(const at::Tensor& rows, const at::Tensor& columns) const;

  at::Tensor row_sums(const at::Tensor& numbers) const;
  at::Tensor column_sums(const at::Tensor& numbers) const;
  /// A number of its row for each edge.
  at::Tensor of_rows(const at::Tensor& numbers) const;
  at::Tensor of_columns(const at::Tensor& numbers) const;

 private:
  at::Tensor product(int role, const at::Tensor& first, const at::Tensor& second) const;
  /// (rows or columns, heads, 1).
  static at::Tensor ones(const c10::SymInt& rows, const at::Tensor& numbers);

  std::vector<at::Tensor> plan_;
  std::vector<c10::SymInt> form_sizes_;
  EdgeSizes sizes_;
};

}  // namespace lacewing::attention
