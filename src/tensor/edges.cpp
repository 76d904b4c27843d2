#include <lacewing/dispatch/torch.h>
#include <lacewing/tensor.h>

namespace lacewing {

Edges edges_of(const at::Tensor& sparse) {
  TORCH_CHECK(is_sparse_tensor(sparse) && sparse_dim(sparse) == 2,
              "[lacewing.edges_of] sparse must be a sparse tensor with two sparse dims, rows and columns, not ",
              is_sparse_tensor(sparse) ? "one of shape " : "a tensor of shape ", shape_text(sparse.sym_sizes()));
  const at::Tensor both = indices(sparse);
  return Edges({both.select(0, 1)}, both.select(0, 0), {.batch = {sparse.size(1)}, .out_batch = sparse.size(0)});
}

}  // namespace lacewing
