// The C++ API over the registered ops.
#include <ATen/Functions.h>

#include <lacewing/conv.h>
#include <lacewing/dispatch/torch.h>

#include "common/enums.h"
#include "common/typed_op.h"
#include "common/version.h"
#include "conv/check.h"
#include "conv/voxels.h"

namespace lacewing {
namespace {

using conv::PlanMeta;

std::vector<std::int64_t> or_ones(const std::vector<std::int64_t>& values, std::size_t axes) {
  return values.empty() ? std::vector<std::int64_t>(axes, 1) : values;
}

c10::SymIntArrayRef numbers_of(const ConvolutionPlan& plan) { return c10::fromIntArrayRefSlow(plan.sizes()); }

std::string_view name(const char* op, PoolMode mode) {
  constexpr std::array<std::string_view, 3> kNames = {"sum", "avg", "max"};
  return enum_name(op, "mode", "PoolMode", mode, kNames);
}

}  // namespace

ConvolutionPlan ConvolutionPlan::make(const std::optional<at::Tensor>& fine, const std::optional<at::Tensor>& coarse,
                                      const ConvolutionKernel& kernel, std::string_view targets) {
  TORCH_CHECK((!fine || fine->defined()) && (!coarse || coarse->defined()),
              "[lacewing.convolution_plan] coordinates must be a tensor");
  ConvolutionPlan plan;
  plan.kernel_ = {kernel.size, or_ones(kernel.stride, kernel.size.size()),
                  or_ones(kernel.dilation, kernel.size.size())};
  auto [array, sizes, made] = conv::plan_op().call(fine, coarse, plan.kernel_.size, plan.kernel_.stride,
                                                   plan.kernel_.dilation, targets, "convolution_plan");
  plan.array_ = array;
  plan.sizes_ = std::move(sizes);
  plan.source_ = fine ? *fine : made;
  plan.target_ = coarse ? *coarse : targets == "same" ? *fine : made;
  plan.note_versions();
  return plan;
}

void ConvolutionPlan::note_versions() { versions_ = {version_of(source_), version_of(target_)}; }

ConvolutionPlan ConvolutionPlan::build(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                       ConvolutionTargets targets) {
  constexpr std::array<std::string_view, 3> kNames = {"same", "strided", "reachable"};
  return make(coordinates, std::nullopt, kernel,
              enum_name("convolution_plan", "targets", "ConvolutionTargets", targets, kNames));
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
  plan.sizes_ = PlanMeta::from(sizes_).reverse().to_vector();
  std::swap(plan.source_, plan.target_);
  std::swap(plan.versions_[0], plan.versions_[1]);
  return plan;
}

ConvolutionPlan ConvolutionPlan::with_algorithm(ConvolutionAlgorithm algorithm) const {
  ConvolutionPlan plan = *this;
  const ConvolutionAlgorithm pinned =
      checked_enum("convolution_plan", "algorithm", "ConvolutionAlgorithm", algorithm, 3);
  plan.sizes_ = PlanMeta::from(sizes_).with(static_cast<conv::Algorithm>(pinned)).to_vector();
  return plan;
}

ConvolutionPlan ConvolutionPlan::to(at::Device device) const {
  ConvolutionPlan plan = *this;
  plan.array_ = array_.to(device);
  plan.source_ = source_.to(device);
  plan.target_ = target_.is_same(source_) ? plan.source_ : target_.to(device);
  check_unchanged();
  plan.note_versions();
  return plan;
}

std::vector<at::Tensor> ConvolutionPlan::pack() const {
  check_unchanged();
  const auto integers = [](at::ArrayRef<std::int64_t> values) { return at::tensor(values, at::kLong); };
  return {array_,
          source_,
          target_,
          integers(sizes_),
          integers(kernel_.size),
          integers(kernel_.stride),
          integers(kernel_.dilation)};
}

ConvolutionPlan ConvolutionPlan::unpack(const std::vector<at::Tensor>& tensors) {
  constexpr const char* kRefusal = "[lacewing.convolution_plan] these tensors are not a packed plan";
  TORCH_CHECK(tensors.size() == 7, kRefusal);
  const auto integers = [&](std::size_t at) {
    TORCH_CHECK(tensors[at].defined() && tensors[at].scalar_type() == at::kLong && tensors[at].dim() == 1, kRefusal);
    const at::Tensor host = tensors[at].cpu().contiguous();
    return std::vector<std::int64_t>(host.const_data_ptr<std::int64_t>(),
                                     host.const_data_ptr<std::int64_t>() + host.numel());
  };
  ConvolutionPlan plan;
  plan.sizes_ = integers(3);
  plan.kernel_ = {integers(4), integers(5), integers(6)};
  TORCH_CHECK(tensors[0].defined() && tensors[1].defined() && tensors[2].defined(), kRefusal);
  typed_op<"check_conv_plan", conv::CheckPlanSignature>().call(
      tensors[0], tensors[1], tensors[2], plan.sizes_, plan.kernel_.size, plan.kernel_.stride, plan.kernel_.dilation);
  plan.array_ = tensors[0];
  plan.source_ = tensors[1];
  plan.target_ = tensors[2];
  plan.note_versions();
  return plan;
}

bool ConvolutionPlan::is_transposed() const { return PlanMeta::from(sizes_).has(PlanMeta::reversed); }

std::int64_t ConvolutionPlan::taps() const { return PlanMeta::from(sizes_).taps; }

ConvolutionPlan::Pairs ConvolutionPlan::pairs(std::int64_t tap) const {
  auto [source, target] = conv::pairs_of(array_, PlanMeta::from(sizes_), tap);
  return {.source = source, .target = target};
}

void ConvolutionPlan::check_unchanged() const {
  TORCH_CHECK(versions_[0] == version_of(source_) && versions_[1] == version_of(target_),
              "[lacewing.convolution_plan] the coordinates of the plan were changed in place after it was built");
}

void ConvolutionPlan::check_source(const at::Tensor& coordinates) const {
  check_unchanged();
  TORCH_CHECK(coordinates.defined() && coordinates.scalar_type() == at::kInt,
              "[lacewing.convolution_plan] coordinates must be a tensor of int32");
  if (coordinates.is_same(source_) || (coordinates.sizes() == source_.sizes() && at::equal(coordinates, source_))) {
    return;
  }
  TORCH_CHECK(coordinates.sizes() == source_.sizes(), "[lacewing.convolution_plan] coordinates of shape ",
              shape_text(coordinates.sizes()), " are not the plan's source coordinates of shape ",
              shape_text(source_.sizes()));
  const std::int64_t row = coordinates.ne(source_).any(1).nonzero().select(0, 0).item<std::int64_t>();
  const auto text = [&](const at::Tensor& voxels) {
    const at::Tensor host = voxels.select(0, row).cpu().contiguous();
    return conv::row_text({host.const_data_ptr<std::int32_t>(), 1, static_cast<int>(host.size(0)) - 1}, 0);
  };
  TORCH_CHECK(false, "[lacewing.convolution_plan] the plan belongs to other coordinates: coordinates[", row,
              "] = ", text(coordinates), ", but its source has ", text(source_), " there");
}

at::Tensor sparse_conv(const at::Tensor& features, const at::Tensor& weight, const ConvolutionPlan& plan,
                       const std::optional<at::Tensor>& bias) {
  return conv::conv_op().call(features, weight, bias, plan.array(), numbers_of(plan), false);
}

at::Tensor sparse_conv_unit(const at::Tensor& features, const at::Tensor& weight, const ConvolutionPlan& plan,
                            const std::optional<at::Tensor>& bias, const ConvFinish& finish) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  return conv::unit_op().call(features, weight, bias, plan.array(), numbers_of(plan), given(finish.mean),
                              given(finish.variance), given(finish.gain), given(finish.offset), finish.eps,
                              given(finish.residual), finish.relu);
}

std::int64_t sparse_conv_workspace(const at::Tensor& features, const at::Tensor& weight, const ConvolutionPlan& plan) {
  return typed_op<"sparse_conv_workspace",
                  std::int64_t(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, bool)>()
      .call(features, weight, plan.array(), numbers_of(plan), false);
}

MaxPooled max_pool_with_indices(const at::Tensor& features, const ConvolutionPlan& plan) {
  auto [values, rows] = conv::max_pool_op().call(features, plan.array(), numbers_of(plan));
  return {.values = values, .rows = rows};
}

at::Tensor pool(const at::Tensor& features, const ConvolutionPlan& plan, PoolMode mode) {
  return typed_op<"sparse_pool",
                  at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, std::string_view)>()
      .call(features, plan.array(), numbers_of(plan), name("sparse_pool", mode));
}

at::Tensor unpool(const at::Tensor& features, const ConvolutionPlan& plan) {
  return pool(features, plan.transposed(), PoolMode::avg);
}

at::Tensor max_unpool(const at::Tensor& features, const at::Tensor& rows, const ConvolutionPlan& plan) {
  typed_op<"check_unpool_rows", void(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef)>().call(
      rows, plan.array(), numbers_of(plan));
  return conv::max_pool_grad_op().call(features, rows, plan.array(), numbers_of(plan));
}

at::Tensor global_pool(const at::Tensor& features, const at::Tensor& batch, std::int64_t batch_size, PoolMode mode) {
  return typed_op<"global_pool", at::Tensor(const at::Tensor&, const at::Tensor&, std::int64_t, std::string_view)>()
      .call(features, batch, batch_size, name("global_pool", mode));
}

at::Tensor quantize(const at::Tensor& points, double voxel_size, const at::Tensor& batch) {
  // Tensors without axes get the op's own sentence.
  const std::int64_t axes = points.dim() == 2 ? points.size(1) : 1;
  return quantize(points, std::vector<double>(static_cast<std::size_t>(axes), voxel_size), batch);
}

at::Tensor quantize(const at::Tensor& points, at::ArrayRef<double> voxel_size, const at::Tensor& batch) {
  return typed_op<"quantize", at::Tensor(const at::Tensor&, at::ArrayRef<double>, const at::Tensor&)>().call(
      points, voxel_size, batch);
}

ReducedVoxels reduce_voxels(const at::Tensor& features, const at::Tensor& coordinates, VoxelReduction reduction) {
  constexpr std::array<std::string_view, 3> kNames = {"sum", "mean", "first"};
  auto [merged, distinct, inverse] =
      typed_op<"reduce_voxels",
               std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, std::string_view)>()
          .call(features, coordinates, enum_name("reduce_voxels", "reduction", "VoxelReduction", reduction, kNames));
  return {.features = merged, .coordinates = distinct, .inverse = inverse};
}

DistinctVoxels unique_voxels(const at::Tensor& coordinates) {
  TORCH_CHECK(!coordinates.is_meta(),
              "[lacewing.unique_voxels] coordinates on the meta device have no values, by which voxels are told apart");
  auto [distinct, first, inverse] =
      typed_op<"unique_voxels", std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&)>().call(coordinates);
  return {.coordinates = distinct, .first = first, .inverse = inverse};
}

}  // namespace lacewing
