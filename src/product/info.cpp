#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/info.h>

#include "common/transforms.h"
#include "product/plan_ops.h"
#include "product/plan_reading.h"
#include "product/plans.h"
#include "structure/plan_builder.h"

namespace lacewing {
namespace {

using products::description;
using products::OptionalTensor;
using products::PlanFields;
using structure::PlanMeta;

/// The plans of triples, in the order of the views.
std::vector<InfoPlan> split(const std::tuple<std::vector<at::Tensor>, std::vector<std::int64_t>>& parts) {
  const auto& [arrays, sizes] = parts;
  std::vector<InfoPlan> plans;
  for (const at::Tensor& array : arrays) {
    const auto begin = sizes.begin() + static_cast<std::ptrdiff_t>(plans.size() * PlanMeta::size);
    plans.push_back({array, {begin, begin + static_cast<std::ptrdiff_t>(PlanMeta::size)}});
  }
  return plans;
}

/// A plan that a builder hands over.
InfoPlan checked(InfoPlan plan, const char* op) {
  TORCH_CHECK(plan.array.defined() && plan.sizes.size() == PlanMeta::size &&
                  (description(plan).is_dynamic() || plan.array.numel() == description(plan).length()),
              "[lacewing.", op, "] the plan is empty or its integers do not describe its array");
  return plan;
}

std::optional<std::int64_t> length_of(const OptionalTensor& scale, const char* op) {
  if (!scale) {
    return std::nullopt;
  }
  TORCH_CHECK(scale->layout() == at::kStrided && !scale->is_nested() && !scale->is_quantized(), "[lacewing.", op,
              "] scale must be a dense tensor");
  TORCH_CHECK(scale->dim() == 1, "[lacewing.", op, "] scale must have 1 dimension, not shape ",
              shape_text(scale->sizes()));
  return scale->size(0);
}

std::vector<OptionalTensor*> indices_of(SparseProductInfo::Fields& fields) {
  return {&fields.index1, &fields.index2, &fields.seg_out, &fields.gather_index, &fields.index_out};
}
std::vector<OptionalTensor*> indices_of(SparseScaleInfo::Fields& fields) {
  return {&fields.index, &fields.seg_out, &fields.gather_index};
}

/// A scale of integers is one of numbers, as a list of them is.
OptionalTensor as_numbers(OptionalTensor scale) {
  const bool integers = scale && scale->defined() && at::isIntegralType(scale->scalar_type(), /*includeBool=*/true);
  return integers ? OptionalTensor(scale->to(at::kDouble)) : scale;
}

/// The fields with their indices copied, as int64.
template <typename Fields>
Fields copied(Fields fields) {
  fields.scale = as_numbers(std::move(fields.scale));
  const OutsideTransforms outside;
  for (OptionalTensor* const index : indices_of(fields)) {
    *index = *index ? OptionalTensor((*index)->to(at::kLong, false, /*copy=*/true)) : std::nullopt;
  }
  return fields;
}

template <typename Fields>
Fields moved(Fields fields, at::Device device) {
  const auto move = [&](OptionalTensor& tensor) {
    tensor = tensor ? OptionalTensor(tensor->to(device)) : std::nullopt;
  };
  move(fields.scale);
  const OutsideTransforms outside;
  for (OptionalTensor* const index : indices_of(fields)) {
    move(*index);
  }
  return fields;
}

InfoPlan moved(const InfoPlan& plan, at::Device device) {
  const OutsideTransforms outside;
  return {plan.array.to(device), plan.sizes};
}

/// Outside of torch.func's transforms, which would wrap the plan for as long as they run: it is kept longer.
InfoPlan derived_plan(const InfoPlan& plan, const PlanMeta& meta, structure::View view, std::int64_t rows, bool unary) {
  const OutsideTransforms outside;
  return products::derived_plan({plan.array, meta.to_vector()}, view, rows, unary);
}

/// Plans derived from an info, kept for its copies too; those of a few sizes.
template <typename Key>
class Derived {
 public:
  template <typename Make>
  InfoPlan get(const Key& key, Make&& make) const {
    const std::lock_guard lock(mutex_);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      if (plans_.size() >= kKept) {
        plans_.clear();
      }
      found = plans_.emplace(key, make()).first;
    }
    return found->second;
  }

 private:
  static constexpr std::size_t kKept = 32;
  mutable std::mutex mutex_;
  mutable std::map<Key, InfoPlan> plans_;
};

}  // namespace

struct SparseProductInfo::State {
  Fields fields;  ///< of a sorted info: scale and out_size; the others are read from the plan
  InfoPlan plan;
  bool sorted = false;
  std::shared_ptr<const Derived<std::array<std::int64_t, 3>>> derived =
      std::make_shared<Derived<std::array<std::int64_t, 3>>>();
};

SparseProductInfo::SparseProductInfo(const Fields& fields, const char* op) {
  auto state = std::make_shared<State>();
  const auto [array, sizes] =
      products::product_plan(length_of(fields.scale, op), fields.index1, fields.index2, fields.seg_out,
                             fields.gather_index, fields.index_out, fields.out_size, /*unary=*/false, op);
  const bool indexed = fields.index1 || fields.index2 || fields.seg_out || fields.gather_index || fields.index_out;
  state->plan = {indexed || !fields.scale ? array : array.to(fields.scale->device()), sizes};
  state->fields = copied(fields);
  state_ = std::move(state);
}

SparseProductInfo::SparseProductInfo(std::optional<at::Tensor> scale, InfoPlan plan) {
  auto state = std::make_shared<State>();
  state->fields.scale = as_numbers(std::move(scale));
  state->plan = checked(std::move(plan), "SparseProductInfo");
  state->fields.out_size = description(state->plan).rows;
  state->sorted = true;
  state_ = std::move(state);
}

SparseProductInfo::Fields SparseProductInfo::fields() const {
  Fields fields = state_->fields;
  if (state_->sorted) {
    PlanFields read = products::read_fields(plan());
    fields.index1 = std::move(read.index1);
    fields.index2 = std::move(read.index2);
    fields.seg_out = std::move(read.seg_out);
    fields.gather_index = std::move(read.gather_index);
  }
  return fields;
}
const std::optional<at::Tensor>& SparseProductInfo::scale() const { return state_->fields.scale; }
const InfoPlan& SparseProductInfo::plan() const { return state_->plan; }
at::Device SparseProductInfo::device() const { return state_->plan.array.device(); }

SparseProductInfo SparseProductInfo::to(at::Device device) const {
  auto state = std::make_shared<State>();
  state->fields = moved(state_->fields, device);
  state->plan = moved(state_->plan, device);
  state->sorted = state_->sorted;
  SparseProductInfo info(*this);
  info.state_ = std::move(state);
  return info;
}

SparseProductInfo SparseProductInfo::with_scale(std::optional<at::Tensor> scale) const {
  auto state = std::make_shared<State>(*state_);
  state->fields.scale = as_numbers(std::move(scale));
  SparseProductInfo info(*this);
  info.state_ = std::move(state);
  return info;
}

SparseProductInfo SparseProductInfo::resolved(std::int64_t rows) const {
  const auto& out_size = state_->fields.out_size;
  if (!description(state_->plan).is_dynamic() || !out_size || *out_size == rows) {
    return *this;
  }
  Fields fields;
  fields.index1 = at::arange(rows, at::device(device()).dtype(at::kLong));
  fields.out_size = out_size;
  return SparseProductInfo(fields).with_scale(state_->fields.scale);
}

InfoPlan SparseProductInfo::backward_plan(int input, std::int64_t in1_size, std::int64_t in2_size) const {
  return state_->derived->get({input, in1_size, in2_size}, [&] {
    const PlanMeta meta = description(state_->plan).resolved(in1_size);
    return derived_plan(state_->plan, meta, static_cast<structure::View>(input), input == 1 ? in1_size : in2_size,
                        /*unary=*/false);
  });
}

SparseProductInfo sparse_product_info(const std::optional<at::Tensor>& index1, const std::optional<at::Tensor>& index2,
                                      const std::optional<at::Tensor>& index, const std::optional<at::Tensor>& scale,
                                      std::optional<std::int64_t> out_size) {
  const char* const op = "sparse_product_info";
  const auto plans = split(products::sorted_plans(index1, index2, index, length_of(scale, op).value_or(-1), out_size,
                                                  {}, {}, /*unary=*/false, /*forward_only=*/true, op));
  return {scale, plans[0]};
}

SparseProductInfos sparse_product_infos(const std::optional<at::Tensor>& index1,
                                        const std::optional<at::Tensor>& index2, const std::optional<at::Tensor>& index,
                                        const std::optional<at::Tensor>& scale, std::optional<std::int64_t> out_size,
                                        std::optional<std::int64_t> in1_size, std::optional<std::int64_t> in2_size) {
  const char* const op = "sparse_product_infos";
  const auto plans = split(products::sorted_plans(index1, index2, index, length_of(scale, op).value_or(-1), out_size,
                                                  in1_size, in2_size, /*unary=*/false, /*forward_only=*/false, op));
  return {{scale, plans[0]}, {scale, plans[1]}, {scale, plans[2]}};
}

SparseProductInfos derive_backward(const SparseProductInfo& given, std::int64_t in1_size, std::int64_t in2_size) {
  products::check_backward_sizes(given.plan(), in1_size, in2_size);
  const SparseProductInfo info = given.resolved(in1_size);
  const OptionalTensor& scale = info.scale();
  if (const auto by_term = products::backward_by_term(info.plan(), in1_size, in2_size)) {
    const OptionalTensor gathered = scale ? OptionalTensor(scale->index_select(0, by_term->entry)) : std::nullopt;
    return {info, {gathered, by_term->bwd1}, {gathered, by_term->bwd2}};
  }
  return {info, {scale, info.backward_plan(1, in1_size, in2_size)}, {scale, info.backward_plan(2, in1_size, in2_size)}};
}

struct SparseScaleInfo::State {
  Fields fields;  ///< as in SparseProductInfo
  InfoPlan plan;
  bool sorted = false;
  std::shared_ptr<const Derived<std::int64_t>> derived = std::make_shared<Derived<std::int64_t>>();
};

SparseScaleInfo::SparseScaleInfo(const Fields& fields, const char* op) {
  auto state = std::make_shared<State>();
  const auto [array, sizes] =
      products::product_plan(length_of(fields.scale, op), fields.index, std::nullopt, fields.seg_out,
                             fields.gather_index, std::nullopt, fields.out_size, /*unary=*/true, op);
  const bool indexed = fields.index || fields.seg_out || fields.gather_index;
  state->plan = {indexed || !fields.scale ? array : array.to(fields.scale->device()), sizes};
  state->fields = copied(fields);
  state_ = std::move(state);
}

SparseScaleInfo::SparseScaleInfo(std::optional<at::Tensor> scale, InfoPlan plan) {
  auto state = std::make_shared<State>();
  state->fields.scale = as_numbers(std::move(scale));
  state->plan = checked(std::move(plan), "SparseScaleInfo");
  state->fields.out_size = description(state->plan).rows;
  state->sorted = true;
  state_ = std::move(state);
}

SparseScaleInfo::Fields SparseScaleInfo::fields() const {
  Fields fields = state_->fields;
  if (state_->sorted) {
    PlanFields read = products::read_fields(plan());
    fields.index = std::move(read.index1);
    fields.seg_out = std::move(read.seg_out);
    fields.gather_index = std::move(read.gather_index);
  }
  return fields;
}
const std::optional<at::Tensor>& SparseScaleInfo::scale() const { return state_->fields.scale; }
const InfoPlan& SparseScaleInfo::plan() const { return state_->plan; }
at::Device SparseScaleInfo::device() const { return state_->plan.array.device(); }

SparseScaleInfo SparseScaleInfo::to(at::Device device) const {
  auto state = std::make_shared<State>();
  state->fields = moved(state_->fields, device);
  state->plan = moved(state_->plan, device);
  state->sorted = state_->sorted;
  SparseScaleInfo info(*this);
  info.state_ = std::move(state);
  return info;
}

SparseScaleInfo SparseScaleInfo::with_scale(std::optional<at::Tensor> scale) const {
  auto state = std::make_shared<State>(*state_);
  state->fields.scale = as_numbers(std::move(scale));
  SparseScaleInfo info(*this);
  info.state_ = std::move(state);
  return info;
}

SparseScaleInfo SparseScaleInfo::resolved(std::int64_t rows) const {
  const auto& out_size = state_->fields.out_size;
  if (!description(state_->plan).is_dynamic() || !out_size || *out_size == rows) {
    return *this;
  }
  Fields fields;
  fields.index = at::arange(rows, at::device(device()).dtype(at::kLong));
  fields.out_size = out_size;
  return SparseScaleInfo(fields).with_scale(state_->fields.scale);
}

InfoPlan SparseScaleInfo::backward_plan(std::int64_t in_size) const {
  return state_->derived->get(in_size, [&] {
    const PlanMeta meta = description(state_->plan).resolved(in_size);
    return derived_plan(state_->plan, meta, structure::View::backward1, in_size, /*unary=*/true);
  });
}

SparseScaleInfos sparse_scale_infos(const std::optional<at::Tensor>& index_out,
                                    const std::optional<at::Tensor>& index_in, const std::optional<at::Tensor>& scale,
                                    std::optional<std::int64_t> out_size, std::optional<std::int64_t> in_size) {
  const char* const op = "sparse_scale_infos";
  const auto plans = split(products::sorted_plans(index_in, std::nullopt, index_out, length_of(scale, op).value_or(-1),
                                                  out_size, in_size, {}, /*unary=*/true, /*forward_only=*/false, op));
  return {{scale, plans[0]}, {scale, plans[1]}};
}

}  // namespace lacewing
