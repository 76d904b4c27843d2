// Sparse times sparse: row by row where no gradient is wanted; else as a product of the engine over the pairs of
// entries that meet, which knows its gradients.
#include "tensor/sparse_product.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>
#include <lacewing/product.h>

#include "common/results.h"
#include "index/keys.h"
#include "kernels/sparse_matmul.h"

namespace lacewing::tensor {
namespace {

/// Columns are numbered in 32 bits.
constexpr std::int64_t kMostColumns = (std::int64_t{1} << 31) - 1;

const std::int64_t* data(const at::Tensor& t) { return t.const_data_ptr<std::int64_t>(); }

/// (groups + 1,), int64; the groups are in the order of the entries.
at::Tensor bounds_of(const Grouping& grouping, std::int64_t nse) {
  return grouping.distinct() ? at::arange(nse + 1, at::kLong) : grouping.segments.to(at::kLong);
}

/// The groups of a leading set of dims.
const Pattern& groups_of(const Components& c, const Grouping& grouping) {
  return grouping.pattern ? *grouping.pattern : *c.pattern;
}

struct Operands {
  const Components &a, &b;
  at::Tensor a_values, b_values;
  Dims a_rows, a_shared, b_shared, b_columns;

  Dims shape() const {
    Dims sizes = sizes_at(a.pattern->sizes(), a_rows);
    const Dims columns = sizes_at(b.pattern->sizes(), b_columns);
    sizes.insert(sizes.end(), columns.begin(), columns.end());
    return sizes;
  }
};

Components row_by_row(const Operands& o) {
  const Grouping& a_groups = o.a.pattern->grouping(o.a_rows);
  const Grouping& b_groups = o.b.pattern->grouping(o.b_shared);
  const at::Tensor a_bounds = bounds_of(a_groups, o.a.pattern->nse());
  const at::Tensor b_bounds = bounds_of(b_groups, o.b.pattern->nse());
  const at::Tensor a_columns = o.a.pattern->reduced(o.a_shared);
  at::Tensor b_columns = o.b.pattern->reduced(o.b_columns);
  const std::int64_t shared = product_of(sizes_at(o.a.pattern->sizes(), o.a_shared));
  const std::int64_t width = product_of(sizes_at(o.b.pattern->sizes(), o.b_columns));
  std::int64_t columns = width;
  at::Tensor column_keys;
  if (columns > std::min(4 * o.b.pattern->nse(), kMostColumns)) {
    // Few of the columns have an entry: those are numbered.
    const Grouping& used = o.b.pattern->grouping(o.b_columns);
    b_columns = used.group().to(at::kLong);
    column_keys = groups_of(o.b, used).keys().contiguous();
    columns = column_keys.numel();
  }
  const Pattern& a_pattern = groups_of(o.a, a_groups);
  const Pattern& b_pattern = groups_of(o.b, b_groups);
  const at::Tensor a_keys = a_pattern.keys().contiguous();
  const at::Tensor b_keys = b_pattern.keys().contiguous();
  const kernels::RowsView a{data(a_keys), data(a_bounds), a_pattern.nse(), data(a_columns), o.a.pattern->nse()};
  const kernels::RowsView b{data(b_keys), data(b_bounds), b_pattern.nse(), data(b_columns), o.b.pattern->nse()};
  const auto a_values = o.a_values.contiguous();
  const auto b_values = o.b_values.contiguous();
  const auto multiplied = [&](const auto& product) -> Components {
    const at::Tensor keys = empty_result({product.count()}, a_keys.options());
    const at::Tensor values = empty_result({product.count()}, a_values.options().requires_grad(false));
    product.write(*find_scalar_type(a_values.scalar_type()), a_values.const_data_ptr(), b_values.const_data_ptr(),
                  column_keys.defined() ? data(column_keys) : nullptr, width, keys.mutable_data_ptr<std::int64_t>(),
                  values.mutable_data_ptr());
    return {Pattern::of_keys(keys, o.shape()), values, known_fill(0, values)};
  };
  return backend() == Backend::reference ? multiplied(kernels::SparseMatmulReference(a, b))
                                         : multiplied(kernels::SparseMatmul(a, b, shared, columns, torch_executor()));
}

Components by_pairs(const Operands& o) {
  const auto options = o.a.pattern->indices().options();
  const Grouping& groups = o.b.pattern->grouping(o.b_shared);
  const auto bounds = groups.distinct() ? at::arange(o.b.pattern->nse() + 1, options) : groups.segments.to(at::kLong);
  const auto row = index::find_keys(groups_of(o.b, groups).keys(), o.a.pattern->reduced(o.a_shared));
  const auto meets = at::nonzero(row >= 0).squeeze(1);
  const auto met = row.index_select(0, meets);
  const auto begin = bounds.index_select(0, met);
  const auto count = bounds.index_select(0, met + 1) - begin;
  const auto pair = at::repeat_interleave(count);
  const auto first = count.cumsum(0) - count;
  const auto in_a = meets.index_select(0, pair);
  const auto in_b = at::arange(pair.numel(), options) + (begin - first).index_select(0, pair);
  const auto rows_of = [&](const Components& c, const Dims& dims, const at::Tensor& entries) {
    return c.pattern->indices().index_select(0, at::tensor(at::IntArrayRef(dims), options)).index_select(1, entries);
  };
  const auto pairs = Pattern::make(at::cat({rows_of(o.a, o.a_rows, in_a), rows_of(o.b, o.b_columns, in_b)}), o.shape());
  const Grouping& grouping = pairs->coalescing();
  const PatternPtr pattern = pairs->coalesced();
  const at::Tensor group = grouping.pattern ? grouping.group() : at::arange(pairs->nse(), options);
  const auto infos =
      sparse_product_infos(in_a, in_b, group, std::nullopt, pattern->nse(), o.a.pattern->nse(), o.b.pattern->nse());
  const auto values =
      sparse_mul(o.a_values.unsqueeze(1), o.b_values.unsqueeze(1), infos.fwd, infos.bwd1, infos.bwd2).squeeze(1);
  return {pattern, values, known_fill(0, values)};
}

}  // namespace

Components times_sparse(const Components& a, const at::Tensor& a_values, const Dims& a_rows, const Dims& a_shared,
                        const Components& b, const at::Tensor& b_values, const Dims& b_shared, const Dims& b_columns) {
  const Operands o{a, b, a_values, b_values, a_rows, a_shared, b_shared, b_columns};
  const bool rows = is_plain_on_host(a_values) && is_plain_on_host(b_values) && b.pattern->nse() <= kMostColumns;
  return rows ? row_by_row(o) : by_pairs(o);
}

}  // namespace lacewing::tensor
