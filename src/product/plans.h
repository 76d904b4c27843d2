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

#include <lacewing/info.h>

#include "structure/plan_views.h"

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

structure::PlanMeta read_meta(const char* op, at::IntArrayRef numbers);

/// Whether the plan of a gradient (of input2: `second`) can stand beside the forward plan: not where it has the same
/// terms but its entries of scale in another order, then one is derived. The op refuses one with other terms.
template <typename Number>
bool serves(const structure::PlanNumbers<Number>& forward, const structure::PlanNumbers<Number>& backward, bool second,
            bool scaled) {
  return !scaled || backward.hash != (second ? forward.hash_bwd2 : forward.hash_bwd1) ||
         (backward.order_hash == forward.order_hash && backward.entries == forward.entries);
}

/// The numbers where nothing is traced.
structure::PlanMeta known(const PlanSizes& sizes);

/// (bwd1, bwd2, fwd): the plans of the gradient of input1. Applied twice: those of input2. Three times: the plans.
inline Plans rotated(const Plans& plans) { return {plans[1], plans[2], plans[0]}; }

/// The plans of a product with its operands exchanged.
Plans exchanged(const Plans& plans);

/// The plan of a gradient of so many rows, from a plan whose T is settled.
InfoPlan derived_plan(const InfoPlan& plan, structure::View view, std::int64_t rows, bool unary);

/// All three plans with T settled; those that are absent are derived by lacewing::derive_plan. `rows1` and `rows2` are
/// the rows of the inputs.
Plans complete(const Plans& plans, const c10::SymInt& rows1, const c10::SymInt& rows2, bool unary);

}  // namespace lacewing::products
