// What a plan that a sort has made says, as tensors.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <lacewing/info.h>

#include "structure/plan.h"

namespace lacewing::products {

inline structure::PlanMeta description(const InfoPlan& plan) { return structure::PlanMeta::from(plan.sizes); }

/// The fields of an info, each absent where it is the identity. Copies: what the user gets is not the plan's own
/// memory.
struct PlanFields {
  std::optional<at::Tensor> index1;  ///< in the order of scale; no entry may have two terms, one without any has row 0
  std::optional<at::Tensor> index2;
  std::optional<at::Tensor> seg_out;
  std::optional<at::Tensor> gather_index;
};
PlanFields read_fields(const InfoPlan& plan);

/// The rows and the entry of scale of each term, in the order of the plan; int64.
struct PlanTerms {
  at::Tensor index1, index2, row, entry;
};
PlanTerms read_terms(const InfoPlan& plan);

/// The plans of both gradients where several terms use one entry of scale: with an entry for each term, which is
/// `entry` of the scale.
struct BackwardByTerm {
  at::Tensor entry;
  InfoPlan bwd1, bwd2;
};
/// Nothing where no entry has several terms.
std::optional<BackwardByTerm> backward_by_term(const InfoPlan& plan, std::int64_t in1_size, std::int64_t in2_size);

/// Throws where a plan has no gradients of inputs of so many rows.
void check_backward_sizes(const InfoPlan& plan, std::int64_t in1_size, std::int64_t in2_size);

}  // namespace lacewing::products
