// Signatures of the registered ops of sparse convolution, and calls of them through the dispatcher: so gradients are
// made of registered ops only.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include "common/typed_op.h"

namespace lacewing::conv {

using OptionalTensor = std::optional<at::Tensor>;

/// lacewing::sparse_conv; `sizes` is conv::PlanMeta as integers, symbols where a plan is traced, `plan` its array.
using ConvSignature = at::Tensor(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                                 const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed);
/// lacewing::sparse_conv_weight_grad
using WeightGradSignature = at::Tensor(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                                       c10::SymIntArrayRef sizes, std::int64_t groups);

/// lacewing::sparse_conv_unit: relu(norm(convolution) + residual), with the norm by running statistics.
using UnitSignature = at::Tensor(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                                 const at::Tensor& plan, c10::SymIntArrayRef sizes, const OptionalTensor& mean,
                                 const OptionalTensor& variance, const OptionalTensor& gain,
                                 const OptionalTensor& offset, double eps, const OptionalTensor& residual, bool relu);

/// lacewing::sparse_conv_plan: the array, its integers, and the coordinates that were made.
using PlanSignature = std::tuple<at::Tensor, std::vector<std::int64_t>, at::Tensor>(
    const OptionalTensor& fine, const OptionalTensor& coarse, at::IntArrayRef kernel_size, at::IntArrayRef stride,
    at::IntArrayRef dilation, std::string_view targets, std::string_view op);
/// lacewing::check_conv_plan: throws where these are not the parts of a plan.
using CheckPlanSignature = void(const at::Tensor& array, const at::Tensor& source, const at::Tensor& target,
                                at::IntArrayRef meta, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                at::IntArrayRef dilation);
/// lacewing::sparse_max_pool: values and source rows.
using MaxPoolSignature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& features, const at::Tensor& plan,
                                                            c10::SymIntArrayRef sizes);
/// lacewing::sparse_max_pool_grad: of the features, from that of the values.
using MaxPoolGradSignature = at::Tensor(const at::Tensor& grad, const at::Tensor& arg, const at::Tensor& plan,
                                        c10::SymIntArrayRef sizes);

inline const auto& conv_op() { return typed_op<"sparse_conv", ConvSignature>(); }
inline const auto& unit_op() { return typed_op<"sparse_conv_unit", UnitSignature>(); }
inline const auto& weight_grad_op() { return typed_op<"sparse_conv_weight_grad", WeightGradSignature>(); }
inline const auto& plan_op() { return typed_op<"sparse_conv_plan", PlanSignature>(); }
inline const auto& max_pool_op() { return typed_op<"sparse_max_pool", MaxPoolSignature>(); }
inline const auto& max_pool_grad_op() { return typed_op<"sparse_max_pool_grad", MaxPoolGradSignature>(); }

}  // namespace lacewing::conv
