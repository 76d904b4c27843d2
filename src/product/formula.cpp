// The public C++ functions of the formula: their arguments put into those of the registered ops.
#include <algorithm>

#include <c10/util/Exception.h>

#include <lacewing/formula.h>

#include "product/form_calls.h"
#include "product/form_plan.h"

namespace lacewing {
namespace {

using products::FormSizes;
using products::OptionalTensors;

constexpr std::int64_t kAbsent = -1;

/// The arguments of the ops that take a call.
struct Arguments {
  std::vector<at::Tensor> operands, plan;
  std::optional<at::Tensor> scale;
  std::vector<c10::SymInt> sizes;
  std::string form;
  std::int64_t role = 0;
};

Arguments arguments(const char* op, const ProductPlan& plan, at::TensorList operands, const std::optional<Edges>& edges,
                    const std::optional<at::Tensor>& scale) {
  TORCH_CHECK(plan.array.defined(), "[lacewing.", op, "] the plan is empty: make it with product_plan");
  const std::size_t places = plan.slots.size();
  Arguments all;
  for (const std::int64_t slot : plan.slots) {
    TORCH_CHECK(slot >= 0 && slot < static_cast<std::int64_t>(operands.size()), "[lacewing.", op,
                "] the plan's slots name operands[", slot, "], of ", operands.size(), " operands");
    all.operands.push_back(operands[static_cast<std::size_t>(slot)]);
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    TORCH_CHECK(std::find(plan.slots.begin(), plan.slots.end(), static_cast<std::int64_t>(i)) != plan.slots.end(),
                "[lacewing.", op, "] operands[", i, "] stands nowhere in \"", plan.form, "\": it takes ", places,
                " operands less those that stand several times");
  }
  all.scale = scale ? scale : plan.scale;
  const std::string maps = edges ? edges->maps : std::string(places + 1, '?');
  TORCH_CHECK(maps.size() == places + 1, "[lacewing.", op, "] the edges have maps for ", maps.size() - 1,
              " operands, but \"", plan.form, "\" has ", places);
  all.form = plan.form + "|" + maps;
  all.role = static_cast<std::int64_t>(places);
  all.sizes.assign(plan.sizes.begin(), plan.sizes.end());
  if (edges) {
    all.sizes.insert(all.sizes.end(), edges->sizes.begin(), edges->sizes.end());
    all.plan = {plan.array, edges->array};
  } else {
    all.sizes.insert(all.sizes.end(), {FormSizes::kUnknown, 0, 0});
    all.sizes.insert(all.sizes.end(), maps.size(), c10::SymInt(kAbsent));
    all.plan = {plan.array, plan.array.new_empty({0}, at::kInt)};
  }
  return all;
}

}  // namespace

ProductPlan ProductPlan::to(at::Device device) const {
  ProductPlan moved = *this;
  moved.array = array.to(device);
  moved.scale = scale ? std::optional<at::Tensor>(scale->to(device)) : std::nullopt;
  return moved;
}

ProductPlan product_plan(std::string_view form, const ProductFields& fields) {
  constexpr const char* op = "product_plan";
  const auto operands = static_cast<std::size_t>(products::Form::of_letters(op, form).operands());
  const auto count = [&](const char* argument, std::size_t given, std::size_t expected) {
    TORCH_CHECK(given == 0 || given == expected, "[lacewing.", op, "] ", argument, " has ", given, " entries, but \"",
                form, "\" takes ", expected);
  };
  count("index", fields.index.size(), operands);
  count("rows", fields.rows.size(), operands);
  count("slots", fields.slots.size(), operands);
  count("layout", fields.layout.size(), operands + 1);
  OptionalTensors index;
  OptionalTensors layout;
  std::vector<std::int64_t> rows;
  for (std::size_t r = 0; r < operands; ++r) {
    index.push_back(fields.index.empty() ? std::nullopt : fields.index[r]);
    rows.push_back(fields.rows.empty() ? kAbsent : fields.rows[r].value_or(kAbsent));
  }
  index.push_back(fields.out);
  rows.push_back(fields.out_rows.value_or(kAbsent));
  for (const std::optional<RowLayout>& given : fields.layout) {
    layout.push_back(given ? given->offset : std::nullopt);
    layout.push_back(given ? std::optional<at::Tensor>(given->extent) : std::nullopt);
    layout.push_back(given ? given->stride : std::nullopt);
  }
  std::string letters;
  std::vector<std::int64_t> extents;
  for (const auto& [letter, extent] : fields.extents) {
    letters += letter;
    extents.push_back(extent);
  }
  TORCH_CHECK(!fields.scale || fields.scale->dim() == 1, "[lacewing.", op, "] scale must have shape (T,), not ",
              fields.scale->sizes());
  ProductPlan plan;
  std::tie(plan.array, plan.sizes, plan.form) = products::plan_terms(
      form, index, rows, layout, letters, extents, fields.scale ? fields.scale->size(0) : kAbsent, op);
  plan.scale = fields.scale;
  plan.slots = fields.slots;
  for (std::size_t r = 0; fields.slots.empty() && r < operands; ++r) {
    plan.slots.push_back(static_cast<std::int64_t>(r));
  }
  return plan;
}

Edges::Edges(const std::vector<EdgeMap>& operands, const EdgeMap& out, const Sizes& given) {
  constexpr const char* op = "Edges";
  TORCH_CHECK(given.batch.empty() || given.batch.size() == operands.size(), "[lacewing.", op, "] batch has ",
              given.batch.size(), " entries for ", operands.size(), " maps");
  OptionalTensors lists;
  std::vector<std::int64_t> batch;
  const auto add = [&](const EdgeMap& map, std::optional<std::int64_t> rows) {
    lists.push_back(map.kind == EdgeMap::Kind::list ? std::optional<at::Tensor>(map.list) : std::nullopt);
    maps += map.kind == EdgeMap::Kind::list ? '@' : map.kind == EdgeMap::Kind::shared ? '!' : 'o';
    batch.push_back(rows.value_or(kAbsent));
  };
  for (std::size_t r = 0; r < operands.size(); ++r) {
    add(operands[r], given.batch.empty() ? std::nullopt : given.batch[r]);
  }
  add(out, given.out_batch);
  std::tie(array, sizes) = products::plan_edges(lists, maps, given.edges.value_or(kAbsent), batch, given.sorted, op);
}

Edges Edges::to(at::Device device) const {
  Edges moved = *this;
  moved.array = array.to(device);
  return moved;
}

at::Tensor product(const ProductPlan& plan, at::TensorList operands, const std::optional<Edges>& edges,
                   const std::optional<at::Tensor>& scale) {
  const Arguments all = arguments("product", plan, operands, edges, scale);
  return products::form_op().call(all.operands, all.scale, all.plan, all.sizes, all.form, all.role);
}

std::string product_explain(const ProductPlan& plan, at::TensorList operands, const std::optional<Edges>& edges,
                            const std::optional<at::Tensor>& scale) {
  const Arguments all = arguments("product_explain", plan, operands, edges, scale);
  return products::form_explain_op().call(all.operands, all.scale, all.plan, all.sizes, all.form, all.role);
}

}  // namespace lacewing
