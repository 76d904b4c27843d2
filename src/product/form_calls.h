// Calls of the registered ops of the formula, through the dispatcher: gradients are made of them.
#pragma once

#include "common/typed_op.h"
#include "product/form_call.h"

namespace lacewing::products {

/// product(operands, scale, plan, sizes, form, role): the role that is computed, from the tensors of all others; see
/// by_role.
using FormSignature = at::Tensor(at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                                 c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role);

/// The gradients of such a call: `wanted` are places among its operands, the coefficients behind them.
using FormBackwardSignature = std::vector<at::Tensor>(at::TensorList operands, const std::optional<at::Tensor>& scale,
                                                      const at::Tensor& grad, at::TensorList plan,
                                                      c10::SymIntArrayRef sizes, std::string_view form,
                                                      std::int64_t role, at::IntArrayRef wanted);

/// What such a call will do, in words.
using FormExplainSignature = std::string(at::TensorList operands, const std::optional<at::Tensor>& scale,
                                         at::TensorList plan, c10::SymIntArrayRef sizes, std::string_view form,
                                         std::int64_t role);

inline const auto& form_op() { return typed_op<"product", FormSignature>(); }
inline const auto& form_explain_op() { return typed_op<"product_explain", FormExplainSignature>(); }
inline const auto& form_backward_op() { return typed_op<"product_backward", FormBackwardSignature>(); }

/// A role of a form from the tensors of all others; tensors[role] is not read.
at::Tensor call_form(const FormCall& call, int role, const std::vector<at::Tensor>& tensors, at::TensorList plan);

/// Another role of the call is computed, from conjugates of what it read and an upstream gradient in its place.
std::vector<at::Tensor> backward_tensors(const FormCall& call, std::vector<at::Tensor> tensors, const at::Tensor& grad);

}  // namespace lacewing::products
