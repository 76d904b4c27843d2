// The user's layout of a weight, (Cout, Cin/groups, *size), and the one that convolutions read. Composed of torch's
// ops: gradients, traces and maps follow.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <lacewing/conv.h>
#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"

namespace lacewing {

at::Tensor weight_from_user(const at::Tensor& weight, std::int64_t groups, bool transposed) {
  check_dense("sparse_conv", {{"weight", weight}});
  TORCH_CHECK_VALUE(weight.dim() >= 3, "[lacewing.sparse_conv] a weight of shape ", shape_text(weight.sym_sizes()),
                    " is not in the user layout");
  const c10::SymInt first = weight.sym_size(0);
  TORCH_CHECK_VALUE(groups >= 1 && first % groups == 0, "[lacewing.sparse_conv] ", groups, " groups do not divide the ",
                    first, " channels of weight of shape ", shape_text(weight.sym_sizes()));
  const at::Tensor split = weight.reshape_symint({groups, first / groups, weight.sym_size(1), -1});
  return (transposed ? split.permute({3, 0, 1, 2}) : split.permute({3, 0, 2, 1})).contiguous();
}

at::Tensor weight_to_user(const at::Tensor& weight, at::IntArrayRef kernel_size, bool transposed) {
  check_dense("sparse_conv", {{"weight", weight}});
  TORCH_CHECK_VALUE(weight.dim() == 4,
                    "[lacewing.sparse_conv] weight must be (taps, groups, in/groups, out/groups), not of shape ",
                    shape_text(weight.sym_sizes()));
  const auto axes = static_cast<std::int64_t>(kernel_size.size());
  c10::SymDimVector shape(kernel_size.begin(), kernel_size.end());
  shape.append({weight.sym_size(1), weight.sym_size(2), weight.sym_size(3)});
  std::vector<std::int64_t> order{axes, transposed ? axes + 1 : axes + 2, transposed ? axes + 2 : axes + 1};
  for (std::int64_t a = 0; a < axes; ++a) {
    order.push_back(a);
  }
  return weight.view_symint(shape).permute(order).flatten(0, 1);
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("weight_from_user(Tensor weight, int groups, bool transposed) -> Tensor", weight_from_user);
  m.def("weight_to_user(Tensor weight, int[] kernel_size, bool transposed) -> Tensor", weight_to_user);
}

// vmap takes the composition apart too, instead of its fallback.
TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatchedDecomposition, m) {
  m.impl("weight_from_user", weight_from_user);
  m.impl("weight_to_user", weight_to_user);
}

}  // namespace lacewing
