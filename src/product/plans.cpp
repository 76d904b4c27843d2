#include "product/plans.h"

#include "product/calls.h"
#include "structure/plan_builder.h"

namespace lacewing::products {
namespace {

using structure::PlanMeta;
using structure::View;

Plan derived(const Plan& forward, const PlanMeta& meta, View view, std::int64_t rows, bool unary) {
  return {call_derive_plan(*forward.array, meta.to_vector(), static_cast<std::int64_t>(view), rows, unary),
          structure::derived_meta(meta, view, rows, unary).to_vector()};
}

}  // namespace

Plan Plan::mirror() const { return present() ? Plan{array, description().mirror().to_vector()} : *this; }

Plans exchanged(const Plans& plans) { return {plans[0].mirror(), plans[2].mirror(), plans[1].mirror()}; }

Plans complete(const Plans& plans, std::int64_t rows1, std::int64_t rows2, bool unary) {
  const PlanMeta forward = plans[0].description().resolved(rows1);
  Plans full = plans;
  full[0].meta = forward.to_vector();
  const std::array<std::int64_t, 3> rows{0, rows1, rows2};
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (unary && i == 2) {
      continue;
    }
    if (full[i].present()) {
      full[i].meta = full[i].description().resolved(rows[i]).to_vector();
    } else {
      full[i] = derived(plans[0], forward, static_cast<View>(i), rows[i], unary);
    }
  }
  return full;
}

}  // namespace lacewing::products
