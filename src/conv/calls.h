// Signatures of the registered ops of sparse convolution, and calls of them through the dispatcher: so gradients are
// made of registered ops only.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace lacewing::conv {

using OptionalTensor = std::optional<at::Tensor>;

/// lacewing::sparse_conv; `meta` is conv::PlanMeta as integers, `plan` its array.
using ConvSignature = at::Tensor(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                                 const at::Tensor& plan, at::IntArrayRef meta, bool transposed);
/// lacewing::sparse_conv_weight_grad
using WeightGradSignature = at::Tensor(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                                       at::IntArrayRef meta, std::int64_t groups);

inline const auto& conv_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("lacewing::sparse_conv", "").typed<ConvSignature>();
  return op;
}

inline const auto& weight_grad_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lacewing::sparse_conv_weight_grad", "")
                             .typed<WeightGradSignature>();
  return op;
}

}  // namespace lacewing::conv
