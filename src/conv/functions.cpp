// The C++ API over the registered ops.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <lacewing/conv.h>

#include "conv/calls.h"
#include "conv/plan.h"

namespace lacewing {
namespace {

using conv::PlanMeta;

std::vector<std::int64_t> or_ones(const std::vector<std::int64_t>& values, std::size_t axes) {
  return values.empty() ? std::vector<std::int64_t>(axes, 1) : values;
}

}  // namespace

ConvolutionPlan ConvolutionPlan::make(const std::optional<at::Tensor>& fine, const std::optional<at::Tensor>& coarse,
                                      const ConvolutionKernel& kernel, const char* targets) {
  ConvolutionPlan plan;
  plan.kernel_ = {kernel.size, or_ones(kernel.stride, kernel.size.size()),
                  or_ones(kernel.dilation, kernel.size.size())};
  const auto [array, meta, made] = conv::plan_op().call(fine, coarse, plan.kernel_.size, plan.kernel_.stride,
                                                        plan.kernel_.dilation, targets, "convolution_plan");
  const std::int64_t* const values = meta.const_data_ptr<std::int64_t>();
  plan.array_ = array;
  plan.meta_.assign(values, values + meta.numel());
  plan.source_ = fine ? *fine : made;
  plan.target_ = coarse ? *coarse : std::string_view(targets) == "same" ? *fine : made;
  return plan;
}

ConvolutionPlan ConvolutionPlan::build(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                       ConvolutionTargets targets) {
  constexpr const char* kNames[] = {"same", "strided", "reachable"};
  return make(coordinates, std::nullopt, kernel, kNames[static_cast<int>(targets)]);
}

ConvolutionPlan ConvolutionPlan::build(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                       const at::Tensor& targets) {
  return make(coordinates, targets, kernel, "given");
}

ConvolutionPlan ConvolutionPlan::build_transposed(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                                  const std::optional<at::Tensor>& targets) {
  return make(targets, coordinates, kernel, targets ? "given" : "reachable").transposed();
}

ConvolutionPlan ConvolutionPlan::transposed() const {
  ConvolutionPlan plan = *this;
  plan.meta_ = PlanMeta::from(meta_).reverse().to_vector();
  std::swap(plan.source_, plan.target_);
  return plan;
}

ConvolutionPlan ConvolutionPlan::with_algorithm(ConvolutionAlgorithm algorithm) const {
  ConvolutionPlan plan = *this;
  PlanMeta meta = PlanMeta::from(meta_);
  meta.algorithm = static_cast<std::int64_t>(algorithm);
  plan.meta_ = meta.to_vector();
  return plan;
}

ConvolutionPlan ConvolutionPlan::to(at::Device device) const {
  ConvolutionPlan plan = *this;
  plan.array_ = array_.to(device);
  plan.source_ = source_.to(device);
  plan.target_ = target_.is_same(source_) ? plan.source_ : target_.to(device);
  return plan;
}

bool ConvolutionPlan::is_transposed() const { return PlanMeta::from(meta_).has(PlanMeta::reversed); }

std::int64_t ConvolutionPlan::taps() const { return PlanMeta::from(meta_).taps; }

std::tuple<at::Tensor, at::Tensor> ConvolutionPlan::pairs(std::int64_t tap) const {
  const PlanMeta meta = PlanMeta::from(meta_);
  TORCH_CHECK(tap >= 0 && tap < meta.taps, "[lacewing.convolution_plan] tap ", tap, " is out of range: there are ",
              meta.taps);
  const std::int64_t begin = meta.tap_offsets[static_cast<std::size_t>(tap)];
  const std::int64_t count = meta.tap_offsets[static_cast<std::size_t>(tap) + 1] - begin;
  const at::Tensor fine = array_.narrow(0, begin, count);
  const at::Tensor coarse = array_.narrow(0, meta.pairs() + begin, count);
  return meta.has(PlanMeta::reversed) ? std::tuple(coarse, fine) : std::tuple(fine, coarse);
}

at::Tensor sparse_conv(const at::Tensor& features, const at::Tensor& weight, const ConvolutionPlan& plan,
                       const std::optional<at::Tensor>& bias) {
  return conv::conv_op().call(features, weight, bias, plan.array(), plan.meta(), false);
}

std::int64_t sparse_conv_workspace(const at::Tensor& features, const at::Tensor& weight, const ConvolutionPlan& plan) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("lacewing::sparse_conv_workspace", "")
          .typed<std::int64_t(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef, bool)>();
  return op.call(features, weight, plan.array(), plan.meta(), false);
}

std::tuple<at::Tensor, at::Tensor> sparse_max_pool(const at::Tensor& features, const ConvolutionPlan& plan) {
  return conv::max_pool_op().call(features, plan.array(), plan.meta());
}

at::Tensor conv_weight_from_user(const at::Tensor& weight, std::int64_t groups, bool transposed) {
  TORCH_CHECK(weight.dim() >= 3 && groups > 0 && weight.size(0) % groups == 0, "[lacewing.sparse_conv] ", groups,
              " groups do not divide the channels of a weight in the user layout with ", weight.dim(), " dimensions");
  const at::Tensor split = weight.reshape({groups, weight.size(0) / groups, weight.size(1), -1});
  return (transposed ? split.permute({3, 0, 1, 2}) : split.permute({3, 0, 2, 1})).contiguous();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_voxels(const at::Tensor& coordinates) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lacewing::unique_voxels", "")
                             .typed<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&)>();
  return op.call(coordinates);
}

}  // namespace lacewing
