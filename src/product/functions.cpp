// The public C++ functions: infos to plans, then the registered ops.
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <lacewing/product.h>

#include "product/calls.h"
#include "product/resolve.h"
#include "product/shape.h"

namespace lacewing {
namespace {

using products::Kind;
using products::Plan;
using products::Plans;
using products::traits;
using structure::PlanMeta;

bool needs_grad(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

/// A backward info's plan, where it serves; else one is derived.
template <typename Info>
std::optional<InfoPlan> usable(const Info& fwd, const std::optional<Info>& bwd, bool second) {
  if (!bwd) {
    return std::nullopt;
  }
  const bool usable = products::serves(PlanMeta::from(fwd.plan().sizes), PlanMeta::from(bwd->plan().sizes), second,
                                       fwd.scale().has_value());
  return usable ? std::optional<InfoPlan>(bwd->plan()) : std::nullopt;
}

Plan to_plan(const std::optional<InfoPlan>& plan) { return plan ? Plan(plan->array, plan->sizes) : Plan(); }

/// The rows of an operand with so many channel dims; 0 where its rank is wrong, which the op reports.
std::int64_t rows_of(const at::Tensor& tensor, products::Channels channels) {
  const std::int64_t dim = 1 + channels.count();
  return tensor.dim() >= dim ? tensor.size(-dim) : 0;
}

at::Tensor apply(Kind kind, const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& given,
                 const OptionalInfo& info_bwd1, const OptionalInfo& info_bwd2, bool out_accumulated) {
  products::check_defined(traits(kind).name, "input1", input1);
  products::check_defined(traits(kind).name, "input2", input2);
  const std::int64_t in1 = rows_of(input1, traits(kind).x);
  const std::int64_t in2 = rows_of(input2, traits(kind).y);
  const SparseProductInfo info = products::resolved_for(kind, traits(kind).name, given, input1, input2);
  const std::optional<at::Tensor>& scale = info.scale();
  std::optional<InfoPlan> bwd1 = usable(info, info_bwd1, false);
  std::optional<InfoPlan> bwd2 = usable(info, info_bwd2, true);
  const PlanMeta meta = PlanMeta::from(info.plan().sizes);
  const bool differentiable =
      c10::GradMode::is_enabled() && (needs_grad(input1) || needs_grad(input2) || (scale && needs_grad(*scale)));
  if (differentiable && meta.need1 <= in1 && meta.need2 <= in2) {
    bwd1 = bwd1 ? bwd1 : info.backward_plan(1, in1, in2);
    bwd2 = bwd2 ? bwd2 : info.backward_plan(2, in1, in2);
  }
  const Plans plans{to_plan(info.plan()), to_plan(bwd1), to_plan(bwd2)};
  return products::call_product(kind, input1, input2, scale, plans, out_accumulated);
}

}  // namespace

at::Tensor sparse_product(const char* op, const at::Tensor& input1, const at::Tensor& input2,
                          const SparseProductInfo& info_fwd, const OptionalInfo& info_bwd1,
                          const OptionalInfo& info_bwd2, bool out_accumulated) {
  return apply(products::kind_named("sparse_product", op), input1, input2, info_fwd, info_bwd1, info_bwd2,
               out_accumulated);
}

at::Tensor sparse_scale(const at::Tensor& input, const SparseScaleInfo& given,
                        const std::optional<SparseScaleInfo>& info_bwd) {
  products::check_defined("sparse_scale", "input", input);
  const SparseScaleInfo info_fwd = given.resolved(input.dim() >= 2 ? input.size(-2) : 0);
  const std::optional<at::Tensor>& scale = info_fwd.scale();
  std::optional<InfoPlan> bwd = usable(info_fwd, info_bwd, false);
  const bool differentiable = c10::GradMode::is_enabled() && (needs_grad(input) || (scale && needs_grad(*scale)));
  if (!bwd && differentiable && input.dim() >= 2 && PlanMeta::from(info_fwd.plan().sizes).need1 <= input.size(-2)) {
    bwd = info_fwd.backward_plan(input.size(-2));
  }
  const Plans plans{to_plan(info_fwd.plan()), to_plan(bwd), Plan{}};
  return products::call_product(Kind::scale, input, {}, scale, plans, false);
}

std::int64_t workspace_bytes(const std::string& op, const at::Tensor& input1, const at::Tensor& input2,
                             const InfoPlan& plan, bool out_accumulated) {
  return products::call_workspace(products::kind_named("workspace_bytes", op, /*also_scale=*/true), input1, input2,
                                  {plan.array, plan.sizes}, out_accumulated);
}

}  // namespace lacewing
