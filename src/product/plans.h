// The plans of a product, its value's and its two gradients', as they pass through an op and its derivatives.
//
// An op takes them as one argument of two parts: `Tensor[] plan`, the arrays of the value, of the gradient of input1
// and of that of input2, and `SymInt[] sizes`, the numbers of structure::PlanNumbers for each of them. Those at the end
// may be missing; one that is missing between others is an empty array with `kAbsent` as its first number.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "structure/plan.h"

namespace lacewing::products {

/// The numbers of a plan; symbols where it is traced.
using PlanSizes = structure::PlanNumbers<c10::SymInt>;

/// An array and its numbers; no array where the plan is not there.
struct Plan {
  std::optional<at::Tensor> array;
  PlanSizes sizes;

  Plan() = default;
  Plan(at::Tensor array_, PlanSizes sizes_) : array(std::move(array_)), sizes(std::move(sizes_)) {}
  /// The numbers as functions of C++ and Python hold them.
  Plan(at::Tensor array_, at::IntArrayRef numbers);

  bool present() const { return array.has_value(); }
  Plan mirror() const { return present() ? Plan{*array, sizes.mirror()} : *this; }
};

/// Those of the value, of the gradient of input1 and of the gradient of input2.
using Plans = std::array<Plan, 3>;

/// What an op takes for plans.
struct PlanArguments {
  std::vector<at::Tensor> plan;
  std::vector<c10::SymInt> sizes;

  explicit PlanArguments(const Plans& plans);
};

/// The plans that an op was given; `op` is whom errors name.
Plans read_plans(const char* op, at::TensorList plan, c10::SymIntArrayRef sizes);

/// The numbers of one plan.
PlanSizes read_sizes(const char* op, c10::SymIntArrayRef numbers);

/// The numbers where nothing is traced.
structure::PlanMeta known(const PlanSizes& sizes);

/// (bwd1, bwd2, fwd): the plans of the gradient of input1. Applied twice: those of input2. Three times: the plans.
inline Plans rotated(const Plans& plans) { return {plans[1], plans[2], plans[0]}; }

/// The plans of a product with its operands exchanged.
Plans exchanged(const Plans& plans);

/// All three plans with T settled; those that are absent are derived by lacewing::derive_plan. `rows1` and `rows2` are
/// the rows of the inputs.
Plans complete(const Plans& plans, const c10::SymInt& rows1, const c10::SymInt& rows2, bool unary);

}  // namespace lacewing::products
