// The three plans of a product as views of one set of terms, and their descriptions: the same for plans that are built
// on the host and on a device. Torch-free.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/term_hash.h"
#include "structure/plan.h"
#include "structure/term.h"

namespace lacewing::structure {

/// Which of a product's three plans: the value, the gradient of input1, the gradient of input2.
enum class View : int { forward, backward1, backward2 };

/// The roles of a term's keys in a view: which are index1, index2 and the row.
struct Roles {
  Key index1, index2, row;
};
Roles roles_of(View view, bool unary);

/// Writes what a view's hashes are.
void write_hash(const kernels::TermHash& hash, PlanMeta& meta, View view, bool unary);

/// Whether sizes and indices up to so many are kept as int32.
bool fits_narrow(std::int64_t largest);

/// PlanMeta::has_groups where a plan of so many terms has them.
std::int64_t group_flag(std::int64_t terms);

/// Whether the terms of the plan of a gradient are the plan's in their order: each is the row of its own number.
template <typename Number>
bool derives_in_order(const PlanNumbers<Number>& meta, View view, const std::type_identity_t<Number>& rows) {
  const bool second = (view == View::backward2) != meta.has(PlanMeta::mirrored);
  return !meta.has(second ? PlanMeta::has_index2 : PlanMeta::has_index1) && rows == meta.terms;
}

/// The description of the plan of a gradient, from that of the plan alone, so that it can be traced.
template <typename Number>
PlanNumbers<Number> derived_meta(const PlanNumbers<Number>& meta, View view, const std::type_identity_t<Number>& rows,
                                 bool unary) {
  PlanNumbers<Number> derived = meta;
  if (meta.is_identity() && rows == meta.rows) {
    derived.need1 = meta.terms;
    derived.need2 = unary ? Number(0) : meta.terms;
    return derived;
  }
  const bool second = view == View::backward2;
  derived.hash = second ? meta.hash_bwd2 : meta.hash_bwd1;
  derived.hash_bwd1 = unary || second ? meta.hash : meta.hash_bwd2;
  derived.hash_bwd2 = unary ? Number(0) : second ? meta.hash_bwd1 : meta.hash;
  derived.rows = rows;
  derived.flags = (meta.flags & (PlanMeta::wide | PlanMeta::has_inverse | PlanMeta::has_groups)) | PlanMeta::has_index1;
  if (derives_in_order(meta, view, rows)) {
    derived.flags |= meta.flags & PlanMeta::has_order;
  } else {
    derived.flags |= PlanMeta::has_segments | PlanMeta::has_order;
  }
  if (unary) {
    derived.need1 = meta.rows;
  } else {
    derived.flags |= PlanMeta::has_index2;
    derived.need1 = view == View::backward1 ? meta.need2 : meta.rows;
    derived.need2 = view == View::backward1 ? meta.rows : meta.need1;
  }
  return derived;
}

}  // namespace lacewing::structure
