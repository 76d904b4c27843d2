// Gradients of gather_rows and scatter_add_rows: each is linear in src and the other's transpose.
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <lacewing/dispatch/rows.h>

#include "autograd/node.h"
#include "dispatch/rows_ops.h"

namespace lacewing {
namespace {

using autograd::NodePtr;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct GatherRowsBackward : torch::autograd::Node {
  SavedVariable index_;
  c10::SymInt rows_;

  std::string name() const override { return "GatherRowsBackward"; }
  void release_variables() override { index_.reset_data(); }

  variable_list apply(variable_list&& grads) override {
    variable_list result(1);
    if (grads[0].defined() && task_should_compute_output(0)) {
      result[0] = scatter_add_rows(grads[0], index_.unpack(), rows_, "deterministic", /*check=*/false);
    }
    return result;
  }
};

struct ScatterAddRowsBackward : torch::autograd::Node {
  SavedVariable index_;

  std::string name() const override { return "ScatterAddRowsBackward"; }
  void release_variables() override { index_.reset_data(); }

  variable_list apply(variable_list&& grads) override {
    variable_list result(1);
    if (grads[0].defined() && task_should_compute_output(0)) {
      result[0] = gather_rows(grads[0], index_.unpack(), /*check=*/false);
    }
    return result;
  }
};

/// A node with src's edge and the index saved, or null where no gradient is wanted.
template <typename NodeType>
NodePtr<NodeType> node_for(const at::Tensor& src, const at::Tensor& index) {
  if (!torch::autograd::compute_requires_grad(src)) {
    return {};
  }
  auto node = autograd::make_node<NodeType>();
  node->set_next_edges(torch::autograd::collect_next_edges(src));
  node->index_ = SavedVariable(index, /*is_output=*/false);
  return node;
}

at::Tensor gather_rows_autograd(c10::DispatchKeySet keys, const at::Tensor& src, const at::Tensor& index, bool check) {
  const auto node = node_for<GatherRowsBackward>(src, index);
  if (node) {
    node->rows_ = src.dim() == 0 ? c10::SymInt(0) : src.sym_size(0);
  }
  at::Tensor out;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    out = gather_rows_op().redispatch(keys & c10::after_autograd_keyset, src, index, check);
  }
  autograd::set_history(out, node);
  if (const at::Tensor t = autograd::tangent(src); t.defined()) {
    out._set_fw_grad(gather_rows(t, index, /*check=*/false), /*level=*/0, /*is_inplace_op=*/false);
  }
  return out;
}

at::Tensor scatter_add_rows_autograd(c10::DispatchKeySet keys, const at::Tensor& src, const at::Tensor& index,
                                     c10::SymInt rows, std::string_view mode, bool check) {
  const auto node = node_for<ScatterAddRowsBackward>(src, index);
  at::Tensor out;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    out = scatter_add_rows_op().redispatch(keys & c10::after_autograd_keyset, src, index, rows, mode, check);
  }
  autograd::set_history(out, node);
  if (const at::Tensor t = autograd::tangent(src); t.defined()) {
    out._set_fw_grad(scatter_add_rows(t, index, std::move(rows), mode, /*check=*/false), /*level=*/0,
                     /*is_inplace_op=*/false);
  }
  return out;
}

}  // namespace
}  // namespace lacewing

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("gather_rows", lacewing::gather_rows_autograd);
  m.impl("scatter_add_rows", lacewing::scatter_add_rows_autograd);
}
