// The three plans of a product, as they pass through an op and its derivatives.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "structure/plan.h"

namespace lacewing::products {

/// An array and its description; both empty where the plan is not there.
struct Plan {
  std::optional<at::Tensor> array;
  std::vector<std::int64_t> meta;

  bool present() const { return array.has_value(); }
  structure::PlanMeta description() const { return structure::PlanMeta::from(meta); }
  Plan mirror() const;
};

/// fwd, bwd1, bwd2.
using Plans = std::array<Plan, 3>;

/// (bwd1, bwd2, fwd): the plans of the gradient of input1. Applied twice: those of input2. Three times: the plans.
inline Plans rotated(const Plans& plans) { return {plans[1], plans[2], plans[0]}; }

/// The plans of a product with its operands exchanged.
Plans exchanged(const Plans& plans);

/// All three plans with T settled; those that are absent are derived by lacewing::derive_plan. `rows1` and `rows2` are
/// the rows of the inputs.
Plans complete(const Plans& plans, std::int64_t rows1, std::int64_t rows2, bool unary);

}  // namespace lacewing::products
