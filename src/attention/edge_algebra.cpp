#include "attention/edge_algebra.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "product/form_calls.h"

namespace lacewing::attention {
namespace {

// Numbers of an edge times vectors of its column, summed over the edges of a row; h are heads, c channels.
constexpr const char* kForm = "h.,hc.->hc.;|o@@";
enum Role : std::uint8_t { kNumbers, kColumns, kRows };

/// The sizes of that form over some edges; letters are told by the operands.
std::vector<c10::SymInt> form_sizes(const EdgeSizes& edges) {
  using products::FormSizes;
  FormSizes sizes;
  sizes.terms = 1;
  const FormSizes::Role one_row{structure::RoleRows::none, 0, 0, 0, 0};
  sizes.roles = {one_row, one_row, one_row, {1, 0, 0, 0, 0}};
  sizes.roles[kColumns].batch = edges.columns;
  sizes.roles[kRows].batch = edges.rows;
  sizes.extents = {FormSizes::kUnknown, FormSizes::kUnknown};
  sizes.edges = edges.edges;
  sizes.edges_wide = edges.wide;
  sizes.edges_sorted = edges.sorted * 2;  // a bit for each role, and here the numbers come first
  return sizes.to_vector();
}

}  // namespace

EdgeAlgebra::EdgeAlgebra(const at::Tensor& edges, const EdgeSizes& sizes)
    : plan_{at::empty({0}, edges.options().dtype(at::kInt)), edges}, form_sizes_(form_sizes(sizes)), sizes_(sizes) {}

at::Tensor EdgeAlgebra::product(int role, const at::Tensor& first, const at::Tensor& second) const {
  return products::form_op().call({first, second}, std::nullopt, plan_, form_sizes_, kForm, role);
}

at::Tensor EdgeAlgebra::ones(const c10::SymInt& rows, const at::Tensor& numbers) {
  return at::ones_symint({rows, numbers.sym_size(1), 1}, numbers.options());
}

at::Tensor EdgeAlgebra::to_rows(const at::Tensor& numbers, const at::Tensor& columns) const {
  return product(kRows, numbers, columns);
}
at::Tensor EdgeAlgebra::to_columns(const at::Tensor& numbers, const at::Tensor& rows) const {
  return product(kColumns, numbers, rows);
}
at::Tensor EdgeAlgebra::dots(const at::Tensor& rows, const at::Tensor& columns) const {
  return product(kNumbers, columns, rows);
}

at::Tensor EdgeAlgebra::row_sums(const at::Tensor& numbers) const {
  return to_rows(numbers, ones(sizes_.columns, numbers)).squeeze(-1);
}
at::Tensor EdgeAlgebra::column_sums(const at::Tensor& numbers) const {
  return to_columns(numbers, ones(sizes_.rows, numbers)).squeeze(-1);
}
at::Tensor EdgeAlgebra::of_rows(const at::Tensor& numbers) const {
  return dots(numbers.unsqueeze(-1), ones(sizes_.columns, numbers));
}
at::Tensor EdgeAlgebra::of_columns(const at::Tensor& numbers) const {
  return dots(ones(sizes_.rows, numbers), numbers.unsqueeze(-1));
}

}  // namespace lacewing::attention
