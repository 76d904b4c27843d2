// What the operands of a convolution must look like; symbolic sizes allowed.
#pragma once

#include <ATen/core/Tensor.h>

#include "conv/calls.h"
#include "conv/plan.h"

namespace lacewing::conv {

/// What shapes tell of a plan, whose numbers are symbols where it is traced.
struct PlanSizes {
  c10::SymInt source_rows;
  c10::SymInt target_rows;
  c10::SymInt taps;
};

/// A checked call: the sizes.
struct ConvShape {
  PlanSizes plan;
  c10::SymInt groups;
  c10::SymInt in;   ///< channels of the input in a group
  c10::SymInt out;  ///< channels of the output in a group
};

/// The description of a plan whose array and integers belong together. Symbols are only compared with the array.
PlanSizes check_plan(const char* op, const at::Tensor& plan, c10::SymIntArrayRef sizes);

ConvShape check_conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                     const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed);

ConvShape check_weight_grad(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                            c10::SymIntArrayRef sizes, std::int64_t groups);

/// The description of a checked plan that is not traced.
PlanMeta known_plan(c10::SymIntArrayRef sizes);

/// Source and target rows of a tap, copied.
std::tuple<at::Tensor, at::Tensor> pairs_of(const at::Tensor& plan, const PlanMeta& meta, std::int64_t tap);

/// The numbers of the reversed plan.
std::vector<c10::SymInt> reversed(c10::SymIntArrayRef sizes);

/// (rows, channels) features of a plan's side, of one of the four dtypes and on the plan's device.
void check_rows(const char* op, const char* argument, const at::Tensor& tensor, const c10::SymInt& rows,
                const char* side, const at::Tensor& plan);

}  // namespace lacewing::conv
