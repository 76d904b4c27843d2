// vmap of gather_rows and scatter_add_rows: a batch of matrices is one matrix with more columns; a batch of indices is
// walked through.
#include <torch/library.h>

#include "common/batched.h"
#include "dispatch/rows_ops.h"

namespace lacewing {
namespace {

template <typename Call>
at::Tensor mapped(const at::Tensor& src, const at::Tensor& index, Call&& call) {
  const BatchScope scope{src, index};
  const Batched matrix = scope.unwrap(src);
  const Batched rows = scope.unwrap(index);
  if (rows.batched) {
    return scope.wrap(
        each_of_batch(rows.value.sym_size(0), [&](std::int64_t i) { return call(matrix.at(i), rows.at(i)); }));
  }
  if (!matrix.batched || matrix.value.dim() != 3) {  // of a wrong rank: the op says so
    return call(matrix.at(0), rows.value);
  }
  const at::Tensor wide = matrix.value.movedim(0, 1);
  const at::Tensor out = call(wide.flatten(1, 2), rows.value);
  return scope.wrap(out.view_symint({out.sym_size(0), wide.sym_size(1), wide.sym_size(2)}), 1);
}

at::Tensor gather_rows(const at::Tensor& src, const at::Tensor& index, bool check) {
  return mapped(src, index, [&](const at::Tensor& matrix, const at::Tensor& rows) {
    return gather_rows_op().call(matrix, rows, check);
  });
}

at::Tensor scatter_add_rows(const at::Tensor& src, const at::Tensor& index, c10::SymInt rows, std::string_view mode,
                            bool check) {
  return mapped(src, index, [&](const at::Tensor& matrix, const at::Tensor& targets) {
    return scatter_add_rows_op().call(matrix, targets, rows, mode, check);
  });
}

TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) {
  m.impl("gather_rows", gather_rows);
  m.impl("scatter_add_rows", scatter_add_rows);
}

}  // namespace
}  // namespace lacewing
