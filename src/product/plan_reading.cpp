#include "product/plan_reading.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros_like.h>

#include "common/transforms.h"
#include "kernels/terms.h"
#include "product/plan_fields.h"

namespace lacewing::products {
namespace {

using kernels::Terms;
using structure::PlanMeta;
using OptionalTensor = std::optional<at::Tensor>;

/// One array of a plan, as a view of it.
OptionalTensor part_of(const InfoPlan& plan, const void* Terms::*part, std::int64_t length) {
  const char* const base = static_cast<const char*>(plan.array.const_data_ptr());
  const void* const here = structure::terms_of(description(plan), base).*part;
  if (here == nullptr) {
    return std::nullopt;
  }
  const std::int64_t start = (static_cast<const char*>(here) - base) / plan.array.element_size();
  return plan.array.narrow(0, start, length);
}

OptionalTensor segments_of(const InfoPlan& plan) { return part_of(plan, &Terms::segments, description(plan).rows + 1); }
OptionalTensor order_of(const InfoPlan& plan) { return part_of(plan, &Terms::order, description(plan).terms); }

OptionalTensor owned(const OptionalTensor& part) { return part ? OptionalTensor(part->clone()) : std::nullopt; }

/// The rows of an input in the order of scale.
OptionalTensor by_entry(const InfoPlan& plan, const void* Terms::*part) {
  const PlanMeta meta = description(plan);
  const OptionalTensor index = part_of(plan, part, meta.terms);
  const OptionalTensor order = order_of(plan);
  if (!order && meta.entries == meta.terms) {
    return index;
  }
  const at::Tensor identity = at::arange(meta.entries, plan.array.options());
  const at::Tensor terms = identity.narrow(0, 0, meta.terms);
  const at::Tensor rows =
      at::zeros_like(identity).index_copy_(0, order.value_or(terms).to(at::kLong), index.value_or(terms));
  return rows.equal(identity) ? std::nullopt : OptionalTensor(rows);
}

}  // namespace

PlanFields read_fields(const InfoPlan& plan) {
  return {owned(by_entry(plan, &Terms::index1)), owned(by_entry(plan, &Terms::index2)), owned(segments_of(plan)),
          owned(order_of(plan))};
}

PlanTerms read_terms(const InfoPlan& plan) {
  const PlanMeta meta = description(plan);
  const at::Tensor identity = at::arange(meta.terms, plan.array.options().dtype(at::kLong));
  const auto column = [&](const OptionalTensor& part) { return part ? part->to(at::kLong) : identity; };
  const OptionalTensor segments = segments_of(plan);
  const at::Tensor row =
      segments ? at::repeat_interleave(at::arange(meta.rows, identity.options()), segments->to(at::kLong).diff())
               : identity;
  return {column(part_of(plan, &Terms::index1, meta.terms)), column(part_of(plan, &Terms::index2, meta.terms)), row,
          column(order_of(plan))};
}

std::optional<BackwardByTerm> backward_by_term(const InfoPlan& plan, std::int64_t in1_size, std::int64_t in2_size) {
  if (!description(plan).has(PlanMeta::has_inverse)) {
    return std::nullopt;
  }
  const OutsideTransforms outside;
  const PlanTerms terms = read_terms(plan);
  const InfoPlan bwd1 = sparse_product_info(terms.index2, terms.row, terms.index1, {}, in1_size).plan();
  const InfoPlan bwd2 = sparse_product_info(terms.row, terms.index1, terms.index2, {}, in2_size).plan();
  return BackwardByTerm{terms.entry, bwd1, bwd2};
}

void check_backward_sizes(const InfoPlan& plan, std::int64_t in1_size, std::int64_t in2_size) {
  constexpr const char* kPrefix = "[lacewing.derive_backward] ";
  const PlanMeta meta = description(plan);
  const auto check = [&](const char* argument, std::int64_t size, const char* index, std::int64_t needed) {
    TORCH_CHECK_VALUE(size >= 0, kPrefix, argument, " must be at least 0, not ", size);
    TORCH_CHECK(size <= kLargestSize, kPrefix, argument, " must lie in [0, ", kLargestSize, "], not ", size);
    TORCH_CHECK(size >= needed, kPrefix, argument, " is ", size, " but ", index, " reaches ", needed - 1);
  };
  check("in1_size", in1_size, "index1", meta.need1);
  check("in2_size", in2_size, "index2", meta.need2);
  TORCH_CHECK_VALUE(!meta.is_dynamic() || in1_size == in2_size, kPrefix,
                    "an info whose fields are all absent takes as many rows of input1 as of input2, not ", in1_size,
                    " and ", in2_size);
}

}  // namespace lacewing::products
