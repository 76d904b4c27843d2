#include "product/plans.h"

#include "product/calls.h"

namespace lacewing::products {
namespace {

using structure::PlanMeta;
using structure::View;

/// The first number of a plan that is not there.
constexpr std::int64_t kAbsent = -2;

std::int64_t flags_of(c10::SymIntArrayRef numbers) { return numbers[PlanMeta::flags_at].guard_int(__FILE__, __LINE__); }

}  // namespace

Plan::Plan(at::Tensor array_, at::IntArrayRef numbers) : array(std::move(array_)) {
  const PlanMeta meta = PlanMeta::from(numbers);
  const std::vector<c10::SymInt> symbols(numbers.begin(), numbers.end());
  sizes = PlanSizes::from(symbols, meta.flags);
}

PlanArguments::PlanArguments(const Plans& plans) {
  std::size_t count = plans.size();
  while (count > 1 && !plans[count - 1].present()) {
    --count;
  }
  for (std::size_t view = 0; view < count; ++view) {
    const Plan& given = plans[view];
    plan.push_back(given.present() ? *given.array : plans[0].array->narrow(0, 0, 0));
    std::vector<c10::SymInt> numbers = given.sizes.to_vector();
    numbers[0] = given.present() ? numbers[0] : c10::SymInt(kAbsent);
    sizes.insert(sizes.end(), numbers.begin(), numbers.end());
  }
}

PlanSizes read_sizes(const char* op, c10::SymIntArrayRef numbers) {
  TORCH_CHECK(numbers.size() == PlanMeta::size, "[lacewing.", op, "] sizes must have ", PlanMeta::size,
              " integers, not ", numbers.size());
  return PlanSizes::from(numbers, flags_of(numbers));
}

PlanMeta read_meta(const char* op, at::IntArrayRef numbers) {
  TORCH_CHECK(numbers.size() == PlanMeta::size, "[lacewing.", op, "] sizes must have ", PlanMeta::size,
              " integers, not ", numbers.size());
  return PlanMeta::from(numbers);
}

Plans read_plans(const char* op, at::TensorList plan, c10::SymIntArrayRef sizes) {
  TORCH_CHECK(!plan.empty() && plan.size() <= 3, "[lacewing.", op, "] plan must be 1 to 3 arrays, not ", plan.size());
  TORCH_CHECK(sizes.size() == plan.size() * PlanMeta::size, "[lacewing.", op, "] sizes must have ", PlanMeta::size,
              " integers for each array of the plan, not ", sizes.size(), " for ", plan.size());
  Plans plans;
  for (std::size_t view = 0; view < plan.size(); ++view) {
    const c10::SymIntArrayRef numbers = sizes.slice(view * PlanMeta::size, PlanMeta::size);
    if (numbers[0].maybe_as_int() != kAbsent) {
      plans[view] = Plan(plan[view], PlanSizes::from(numbers, flags_of(numbers)));
    }
  }
  TORCH_CHECK(plans[0].present(), "[lacewing.", op, "] plan must begin with the plan of the value");
  return plans;
}

PlanMeta known(const PlanSizes& sizes) {
  const auto number = [](const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); };
  return {number(sizes.entries),   number(sizes.terms),     number(sizes.rows),
          number(sizes.need1),     number(sizes.need2),     sizes.flags,
          number(sizes.hash),      number(sizes.hash_bwd1), number(sizes.hash_bwd2),
          number(sizes.order_hash)};
}

Plans exchanged(const Plans& plans) { return {plans[0].mirror(), plans[2].mirror(), plans[1].mirror()}; }

InfoPlan derived_plan(const InfoPlan& plan, View view, std::int64_t rows, bool unary) {
  const Plan settled(plan.array, plan.sizes);
  return {call_derive_plan(plan.array, settled.sizes, view, rows, unary),
          structure::derived_meta(PlanMeta::from(plan.sizes), view, rows, unary).to_vector()};
}

Plans complete(const Plans& plans, const c10::SymInt& rows1, const c10::SymInt& rows2, bool unary) {
  Plans full = plans;
  full[0].sizes = plans[0].sizes.resolved(rows1);
  for (const View view : {View::backward1, View::backward2}) {
    if (unary && view == View::backward2) {
      continue;
    }
    const c10::SymInt& rows = view == View::backward1 ? rows1 : rows2;
    Plan& derived = full[static_cast<std::size_t>(view)];
    if (derived.present()) {
      derived.sizes = derived.sizes.resolved(rows);
    } else {
      derived = Plan(call_derive_plan(*full[0].array, full[0].sizes, view, rows, unary),
                     structure::derived_meta(full[0].sizes, view, rows, unary));
    }
  }
  return full;
}

}  // namespace lacewing::products
