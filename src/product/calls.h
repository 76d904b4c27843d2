// Calls of this library's own registered ops, through the dispatcher: so gradients are made of registered ops only.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "product/kinds.h"
#include "product/plans.h"
#include "structure/plan_views.h"

namespace lacewing::products {

using OptionalTensor = std::optional<at::Tensor>;

/// Signatures of the registered ops; see schema.cpp.
using ProductSignature = at::Tensor(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
                                    at::TensorList plan, c10::SymIntArrayRef sizes, bool out_accumulated);
using ScaleSignature = at::Tensor(const at::Tensor& input, const OptionalTensor& scale, at::TensorList plan,
                                  c10::SymIntArrayRef sizes);
using ScaleGradSignature = at::Tensor(std::int64_t kind, const at::Tensor& input1, const OptionalTensor& input2,
                                      const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                      bool out_accumulated);
using ProductBackwardSignature = std::vector<at::Tensor>(std::int64_t kind, const at::Tensor& input1,
                                                         const OptionalTensor& input2, const OptionalTensor& scale,
                                                         const at::Tensor& grad, at::TensorList plan,
                                                         c10::SymIntArrayRef sizes, bool out_accumulated,
                                                         at::IntArrayRef wanted);
using RawSignature = at::Tensor(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
                                const OptionalTensor& index1, const OptionalTensor& index2,
                                const OptionalTensor& seg_out, const OptionalTensor& gather_index,
                                const OptionalTensor& index_out, std::optional<c10::SymInt> out_size,
                                bool out_accumulated);
using DerivePlanSignature = at::Tensor(const at::Tensor& plan, c10::SymIntArrayRef sizes, std::int64_t view,
                                       c10::SymInt rows, bool unary);

using WorkspaceSignature = std::int64_t(std::int64_t kind, const at::Tensor& input1, const OptionalTensor& input2,
                                        at::TensorList plan, c10::SymIntArrayRef sizes, bool out_accumulated);

/// A product, or sparse scale (without y) for Kind::scale.
at::Tensor call_product(Kind kind, const at::Tensor& x, const at::Tensor& y, const OptionalTensor& scale,
                        const Plans& plans, bool accumulated);

/// "indexed_mul_scale_gather" for sparse_mul.
std::string raw_name(Kind kind);

/// The registered raw form of a product.
const c10::TypedOperatorHandle<RawSignature>& raw_handle(Kind kind);

/// The gradient of scale: (T,).
at::Tensor call_scale_grad(Kind kind, const at::Tensor& x, const at::Tensor& y, const at::Tensor& grad,
                           const Plans& plans, bool accumulated);

/// The gradients of the arguments `wanted` (0: x, 1: y, 2: scale), in this order.
std::vector<at::Tensor> call_product_backward(Kind kind, const at::Tensor& x, const at::Tensor& y,
                                              const OptionalTensor& scale, const at::Tensor& grad, const Plans& plans,
                                              bool accumulated, at::IntArrayRef wanted);

/// The bytes that a product allocates beside its output.
std::int64_t call_workspace(Kind kind, const at::Tensor& x, const at::Tensor& y, const Plan& plan, bool accumulated);

at::Tensor call_derive_plan(const at::Tensor& plan, const PlanSizes& sizes, structure::View view,
                            const c10::SymInt& rows, bool unary);

}  // namespace lacewing::products
