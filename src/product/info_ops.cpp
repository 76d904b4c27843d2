// Infos for other languages, which hold a plan as its array and its numbers: what the plan says, and the plans of its
// gradients. Ops that read values, so none of them is traced.
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <lacewing/info.h>

#include "common/refuse_layouts.h"
#include "common/transforms.h"
#include "product/calls.h"
#include "product/plan_reading.h"
#include "product/plans.h"

namespace lacewing::products {
namespace {

using structure::PlanMeta;
using structure::View;

/// Arrays, and their numbers one after the other.
using PlanParts = std::tuple<std::vector<at::Tensor>, std::vector<std::int64_t>>;

void add(PlanParts& parts, const InfoPlan& plan) {
  auto& [arrays, sizes] = parts;
  arrays.push_back(plan.array);
  sizes.insert(sizes.end(), plan.sizes.begin(), plan.sizes.end());
}

InfoPlan given_plan(const char* op, const at::Tensor& array, at::IntArrayRef sizes) {
  return {array, read_meta(op, sizes).to_vector()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_fields(const at::Tensor& plan, at::IntArrayRef sizes) {
  const PlanFields fields = read_fields(given_plan("plan_fields", plan, sizes));
  const auto or_none = [](const OptionalTensor& field) { return field.value_or(at::Tensor()); };
  return {or_none(fields.index1), or_none(fields.index2), or_none(fields.seg_out), or_none(fields.gather_index)};
}

std::int64_t plan_rows(at::IntArrayRef sizes) { return read_meta("plan_rows", sizes).rows; }

bool plan_serves(at::IntArrayRef forward, at::IntArrayRef backward, std::int64_t view) {
  return serves(read_meta("plan_serves", forward), read_meta("plan_serves", backward), view == 2,
                /*scaled=*/true);
}

PlanParts backward_plans(const at::Tensor& plan, at::IntArrayRef sizes, std::int64_t in1_size,
                         std::optional<std::int64_t> in2_size) {
  const OutsideTransforms outside;
  const bool unary = !in2_size.has_value();
  const PlanMeta meta = read_meta("backward_plans", sizes).resolved(in1_size);
  PlanParts parts;
  if (meta.need1 > in1_size || meta.need2 > in2_size.value_or(0)) {
    return parts;  // the product says so
  }
  for (const View view : {View::backward1, View::backward2}) {
    if (view == View::backward1 || !unary) {
      add(parts, derived_plan({plan, meta.to_vector()}, view, view == View::backward1 ? in1_size : *in2_size, unary));
    }
  }
  return parts;
}

/// Nothing where no entry of scale has several terms.
std::tuple<at::Tensor, std::vector<at::Tensor>, std::vector<std::int64_t>> by_term(const at::Tensor& plan,
                                                                                   at::IntArrayRef sizes,
                                                                                   std::int64_t in1_size,
                                                                                   std::int64_t in2_size) {
  const OutsideTransforms outside;
  const InfoPlan given = given_plan("derive_backward", plan, sizes);
  check_backward_sizes(given, in1_size, in2_size);
  const auto found = backward_by_term(given, in1_size, in2_size);
  PlanParts parts;
  if (!found) {
    return {};
  }
  add(parts, found->bwd1);
  add(parts, found->bwd2);
  return {found->entry, std::get<0>(parts), std::get<1>(parts)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(m, "plan_fields(Tensor plan, int[] sizes) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("plan_rows(int[] sizes) -> int", plan_rows);
  m.def("plan_serves(int[] forward, int[] backward, int view) -> bool", plan_serves);
  define_dense_op(m, "backward_plans(Tensor plan, int[] sizes, int in1_size, int? in2_size) -> (Tensor[], int[])");
  define_dense_op(m,
                  "backward_plans_by_term(Tensor plan, int[] sizes, int in1_size, int in2_size) -> (Tensor, Tensor[], "
                  "int[])");
}

TORCH_LIBRARY_IMPL(lacewing, CompositeExplicitAutograd, m) {
  m.impl("plan_fields", plan_fields);
  m.impl("backward_plans", backward_plans);
  m.impl("backward_plans_by_term", by_term);
}

}  // namespace lacewing::products
