// torch::autograd::Node in one form for all versions of torch: nodes are intrusive_ptr since 2.13 and were
// shared_ptr with torch's own deleter before.
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/version.h>

namespace lacewing::autograd {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)

template <typename NodeType>
using NodePtr = c10::intrusive_ptr<NodeType>;

/// A new node of a Node subclass.
template <typename NodeType, typename... Args>
NodePtr<NodeType> make_node(Args&&... args) {
  return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
}

#else

template <typename NodeType>
using NodePtr = std::shared_ptr<NodeType>;

/// A new node of a Node subclass.
template <typename NodeType, typename... Args>
NodePtr<NodeType> make_node(Args&&... args) {
  return NodePtr<NodeType>(new NodeType(std::forward<Args>(args)...), torch::autograd::deleteNode);
}

#endif

/// Makes the node the tensor's grad_fn; a null node leaves the tensor without one.
template <typename NodeType>
void set_history(const at::Tensor& output, const NodePtr<NodeType>& node) {
  if (node) {
    torch::autograd::set_history(output, node);
  }
}

/// The forward-mode tangent of a tensor, undefined where it has none.
inline at::Tensor tangent(const at::Tensor& tensor) {
  return tensor.defined() ? tensor._fw_grad(/*level=*/0) : at::Tensor();
}

}  // namespace lacewing::autograd
