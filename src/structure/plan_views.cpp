#include "structure/plan_views.h"

#include <array>
#include <limits>

namespace lacewing::structure {

Roles roles_of(View view, bool unary) {
  switch (view) {
    case View::backward1: return {unary ? Key::row : Key::second, unary ? Key::second : Key::row, Key::first};
    case View::backward2: return {Key::row, Key::first, Key::second};
    default: return {Key::first, Key::second, Key::row};
  }
}

void write_hash(const kernels::TermHash& hash, PlanMeta& meta, View view, bool unary) {
  const std::array<std::uint64_t, 3> views{hash.forward, hash.backward1, hash.backward2};
  const std::size_t start = static_cast<std::size_t>(view);
  const std::size_t cycle = unary ? 2 : 3;
  meta.hash = static_cast<std::int64_t>(views[start]);
  meta.hash_bwd1 = static_cast<std::int64_t>(views[(start + 1) % cycle]);
  meta.hash_bwd2 = unary ? 0 : static_cast<std::int64_t>(views[(start + 2) % cycle]);
  meta.order_hash = static_cast<std::int64_t>(hash.order);
}

bool fits_narrow(std::int64_t largest) { return largest < std::numeric_limits<std::int32_t>::max(); }

std::int64_t group_flag(std::int64_t terms) {
  return terms > 0 && terms <= PlanMeta::grouped_terms ? PlanMeta::has_groups : 0;
}

bool derives_in_order(const PlanMeta& meta, View view, std::int64_t rows) {
  const bool second = (view == View::backward2) != meta.has(PlanMeta::mirrored);
  return rows == meta.terms && !meta.has(second ? PlanMeta::has_index2 : PlanMeta::has_index1);
}

PlanMeta derived_meta(const PlanMeta& meta, View view, std::int64_t rows, bool unary) {
  PlanMeta derived = meta;
  if (meta.is_identity() && rows == meta.rows) {
    derived.need1 = meta.terms;
    derived.need2 = unary ? 0 : meta.terms;
    return derived;
  }
  const bool second = view == View::backward2;
  derived.hash = second ? meta.hash_bwd2 : meta.hash_bwd1;
  derived.hash_bwd1 = unary || second ? meta.hash : meta.hash_bwd2;
  derived.hash_bwd2 = unary ? 0 : second ? meta.hash_bwd1 : meta.hash;
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
