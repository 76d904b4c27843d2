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
  // A symbol of a traced op holds 62 bits.
  const auto number = [](std::uint64_t bits) { return static_cast<std::int64_t>(bits >> 2); };
  meta.hash = number(views[start]);
  meta.hash_bwd1 = number(views[(start + 1) % cycle]);
  meta.hash_bwd2 = unary ? 0 : number(views[(start + 2) % cycle]);
  meta.order_hash = number(hash.order);
}

bool fits_narrow(std::int64_t largest) { return largest < std::numeric_limits<std::int32_t>::max(); }

std::int64_t group_flag(std::int64_t terms) {
  return terms > 0 && terms <= PlanMeta::grouped_terms ? PlanMeta::has_groups : 0;
}

}  // namespace lacewing::structure
