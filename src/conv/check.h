// What the operands of a convolution must look like; symbolic sizes allowed.
#pragma once

#include <ATen/core/Tensor.h>

#include "conv/calls.h"
#include "conv/plan.h"

namespace lacewing::conv {

/// A checked call: the plan's description and the sizes.
struct ConvShape {
  PlanMeta plan;
  c10::SymInt groups;
  c10::SymInt in;   ///< channels of the input in a group
  c10::SymInt out;  ///< channels of the output in a group
};

/// The description of a plan whose array and integers belong together.
PlanMeta check_plan(const char* op, const at::Tensor& plan, at::IntArrayRef meta);

ConvShape check_conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                     const at::Tensor& plan, at::IntArrayRef meta, bool transposed);

ConvShape check_weight_grad(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                            at::IntArrayRef meta, std::int64_t groups);

/// (rows, channels) features of a plan's side, of one of the four dtypes and on the plan's device.
void check_rows(const char* op, const char* argument, const at::Tensor& tensor, std::int64_t rows, const char* side,
                const at::Tensor& plan);

}  // namespace lacewing::conv
