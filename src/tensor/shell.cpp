// Shells: the objects of Python that stand for sparse tensors and hold nothing. Code of torch that goes past its own
// functions (a custom autograd.Function, DLPack) sees the shell, and finds here what the sparse tensor would say.
#include <memory>
#include <mutex>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/index.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "autograd/node.h"
#include "tensor/construct.h"

namespace lacewing::tensor {
namespace {

using torch::autograd::Edge;
using torch::autograd::impl::gradient_edge;

struct ShellGrad;

/// The sparse tensor that a shell stands for; another tensor is itself.
at::Tensor stood_for(const at::Tensor& tensor);

/// The gradient of a sparse tensor, strided or sparse, turned into those of its values and its fill.
struct ToComponents : torch::autograd::Node {
  explicit ToComponents(Components c, const at::Tensor& shell) : c_(std::move(c)) {
    add_next_edge(gradient_edge(c_.values));
    add_next_edge(learns(c_) ? gradient_edge(c_.fill.value) : Edge());
    add_input_metadata(shell);
  }

  static bool learns(const Components& c) { return c.has_fill() && c.fill.value.requires_grad(); }

  /// Whether gradients of these components would flow where this node sends them.
  bool is_of(const Components& c) const {
    return next_edge(0) == gradient_edge(c.values) &&
           next_edge(1) == (learns(c) ? gradient_edge(c.fill.value) : Edge());
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor(), at::Tensor()};
    }
    const at::Tensor g = stood_for(grads[0]);
    return {task_should_compute_output(0) ? elements(g, c_) : at::Tensor(),
            task_should_compute_output(1) ? rest(g) : at::Tensor()};
  }
  std::string name() const override { return "SparseTensorComponents"; }

 private:
  /// (nse, *dense): the elements of g at the entries.
  static at::Tensor elements(const at::Tensor& g, const Components& c) {
    if (c.sparse_dim() == 0) {
      return g.unsqueeze(0).expand(c.values.sizes());
    }
    c10::List<std::optional<at::Tensor>> places;
    for (const at::Tensor& row : c.pattern->indices().unbind(0)) {
      places.push_back(row);
    }
    const at::Tensor found = at::index(g, places);
    return is_sparse(found) ? lacewing::to_dense(found) : found;
  }

  /// The sum of what has no entry, over the blocks or over all elements.
  at::Tensor rest(const at::Tensor& g) const {
    const Components once = coalesced(c_);
    const at::Tensor entries = elements(g, once).sum(0);
    const at::Tensor all = c_.sparse_dim() == 0 ? g : g.sum(all_dims(c_.sparse_dim()));
    const at::Tensor blocks = (is_sparse(all) ? lacewing::to_dense(all) : all) - entries;
    return c_.fill.kind == FillKind::array ? blocks : blocks.sum();
  }

  Components c_;
};

/// requires_grad of a shell is that of its sparse tensor, and its grad_fn leads to the components.
struct ShellGrad : torch::autograd::AutogradMeta {
  ShellGrad(c10::TensorImpl* shell, at::Tensor sparse) : shell_(shell), sparse_(std::move(sparse)) {}

  bool requires_grad() const override {
    const std::lock_guard lock(making_);
    const bool wanted = sparse_.requires_grad();
    auto* const self = const_cast<ShellGrad*>(this);
    const Components& c = components(sparse_);
    const auto* const own = dynamic_cast<const ToComponents*>(grad_fn_.get());
    TORCH_CHECK(own != nullptr || !grad_fn_,
                "[lacewing.SparseTensor] a sparse tensor that a custom autograd.Function gives has no gradient: return "
                "its values, and make the tensor of them outside");
    if (!wanted) {
      self->grad_fn_.reset();
    } else if (own == nullptr || !own->is_of(c)) {
      self->grad_fn_ = autograd::make_node<ToComponents>(
          c, at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(shell_)));
    }
    return wanted;
  }
  const at::Tensor& grad() const override { return sparse_.grad(); }
  at::Tensor& mutable_grad() override { return sparse_.mutable_grad(); }

  c10::TensorImpl* shell_;
  at::Tensor sparse_;
  mutable std::mutex making_;  ///< of grad_fn_
};

at::Tensor stood_for(const at::Tensor& tensor) {
  const auto* const grad = dynamic_cast<const ShellGrad*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  return grad == nullptr ? tensor : grad->sparse_;
}

void stand_for(const at::Tensor& shell, const at::Tensor& sparse) {
  TORCH_CHECK(is_sparse(sparse), "[lacewing.SparseTensor] it stands for a sparse tensor, not for a strided one");
  auto* const impl = shell.unsafeGetTensorImpl();
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(kNoMemory);
  impl->set_autograd_meta(std::make_unique<ShellGrad>(impl, sparse));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) { m.def("tensor_stand_for(Tensor shell, Tensor sparse) -> ()"); }

// Not by way of the fallback: the shell is to be seen as it is.
TORCH_LIBRARY_IMPL(lacewing, DeferredInit, m) { m.impl("tensor_stand_for", stand_for); }

}  // namespace lacewing::tensor
