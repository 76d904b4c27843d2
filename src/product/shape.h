// The sizes of a product, and the sentences for operands that do not fit.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "product/kinds.h"
#include "product/plans.h"

namespace lacewing::products {

/// The sizes of a product whose operands fit together.
struct ProductShape {
  bool x_batched = false;  ///< has N
  bool y_batched = false;
  bool z_batched = false;
  c10::SymInt batch = 1;
  c10::SymInt rows_x = 0;
  c10::SymInt rows_y = 0;
  std::int64_t rows_dim_x = 0;  ///< the dim that the rows are
  std::int64_t rows_dim_y = 0;
  c10::SymInt extent_a = 1;
  c10::SymInt extent_b = 1;
  PlanSizes plan;  ///< with T settled

  /// The sizes of z for these channels of z, with the plan's rows or so many.
  c10::SymDimVector output(Channels z) const { return output(z, plan.rows); }
  c10::SymDimVector output(Channels z, const c10::SymInt& rows) const;
};

/// torch.result_type without torch's dispatcher, which would resolve a conjugated operand: a copy for a dtype.
at::ScalarType result_dtype(const at::Tensor& x, const at::Tensor& y);

/// A C++ caller may hand over a tensor that was never made.
void check_defined(const char* op, const char* argument, const at::Tensor& tensor);

/// The kind with this number, as ops take it.
Kind kind_of(const char* op, std::int64_t number);

/// The product of this name; `also_scale`: or sparse scale.
Kind kind_named(const char* op, std::string_view name, bool also_scale = false);

/// The sizes of a product but for its plan's; `op` is whom errors name, y is undefined for Kind::scale. Throws
/// c10::Error with one sentence.
ProductShape check_operands(Kind kind, const char* op, const at::Tensor& x, const at::Tensor& y, bool accumulated);

/// Checks that inputs which settle T have the same number of rows.
void check_same_rows(const char* op, const ProductShape& shape, bool unary);

/// As check_operands, and checks operands and plan against each other.
ProductShape check_product(Kind kind, const char* op, const at::Tensor& x, const at::Tensor& y,
                           const std::optional<at::Tensor>& scale, const Plan& plan, bool accumulated);
inline ProductShape check_product(Kind kind, const at::Tensor& x, const at::Tensor& y,
                                  const std::optional<at::Tensor>& scale, const Plan& plan, bool accumulated) {
  return check_product(kind, traits(kind).name, x, y, scale, plan, accumulated);
}

/// Checks that the plan of the gradient of input1 (or of input2, `second`) holds the terms of the forward plan.
void check_backward_plan(Kind kind, const char* argument, bool second, const PlanSizes& forward,
                         const PlanSizes& backward, const c10::SymInt& rows);

/// Checks the upstream gradient of check_product's shape.
void check_grad(Kind kind, const ProductShape& shape, const at::Tensor& x, const at::Tensor& grad);

/// "(8, 9, 64)".
std::string shape_text(c10::SymIntArrayRef sizes);

}  // namespace lacewing::products
