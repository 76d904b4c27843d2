// The sizes of a product, and the sentences for operands that do not fit.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "product/kinds.h"
#include "structure/plan.h"

namespace lacewing::product {

/// The sizes of a product whose operands fit together.
struct ProductShape {
  bool x_batched = false;  ///< has N
  bool y_batched = false;
  bool z_batched = false;
  c10::SymInt batch = 1;
  c10::SymInt rows_x = 0;
  c10::SymInt rows_y = 0;
  c10::SymInt extent_a = 1;
  c10::SymInt extent_b = 1;
  structure::PlanMeta plan;  ///< with T settled

  /// The sizes of z for these channels of z.
  c10::SymDimVector output(Channels z) const;
};

/// The description of a plan from the integers that an op was given; `op` is whom the error names.
structure::PlanMeta read_meta(const char* op, at::IntArrayRef meta);

/// The kind with this number, as ops take it.
Kind kind_of(const char* op, std::int64_t number);

/// Checks operands and plan of a product against each other; y is undefined for Kind::scale. Throws c10::Error with one
/// sentence.
ProductShape check_product(Kind kind, const at::Tensor& x, const at::Tensor& y, const std::optional<at::Tensor>& scale,
                           const at::Tensor& plan, at::IntArrayRef meta, bool accumulated);

/// Checks that the plan of the gradient of input1 (or of input2, `second`) holds the terms of the forward plan.
void check_backward_plan(Kind kind, const char* argument, bool second, const structure::PlanMeta& forward,
                         at::IntArrayRef meta, const c10::SymInt& rows);

/// Checks the upstream gradient of check_product's shape.
void check_grad(Kind kind, const ProductShape& shape, const at::Tensor& grad);

/// "(8, 9, 64)".
std::string shape_text(c10::SymIntArrayRef sizes);

}  // namespace lacewing::product
