#include "product/plans.h"

#include "product/calls.h"
#include "structure/plan_builder.h"

namespace lacewing::product {
namespace {

using structure::PlanMeta;
using structure::View;

std::vector<std::int64_t> to_vector(const PlanMeta& meta) {
  const auto values = meta.to_array();
  return {values.begin(), values.end()};
}

Plan derived(const Plan& forward, const PlanMeta& meta, View view, std::int64_t rows, bool unary) {
  return {call_derive_plan(*forward.array, to_vector(meta), static_cast<std::int64_t>(view), rows, unary),
          to_vector(structure::derived_meta(meta, view, rows, unary))};
}

}  // namespace

Plan Plan::mirror() const { return present() ? Plan{array, to_vector(description().mirror())} : *this; }

Plans exchanged(const Plans& plans) { return {plans[0].mirror(), plans[2].mirror(), plans[1].mirror()}; }

Plans complete(const Plans& plans, std::int64_t rows1, std::int64_t rows2, bool unary) {
  const PlanMeta forward = plans[0].description().resolved(rows1);
  Plans full = plans;
  full[0].meta = to_vector(forward);
  const std::array<std::int64_t, 3> rows{0, rows1, rows2};
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (unary && i == 2) {
      continue;
    }
    if (full[i].present()) {
      full[i].meta = to_vector(full[i].description().resolved(rows[i]));
    } else {
      full[i] = derived(plans[0], forward, static_cast<View>(i), rows[i], unary);
    }
  }
  return full;
}

}  // namespace lacewing::product
