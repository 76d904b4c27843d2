#include <algorithm>

#include <ATen/Functions.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/voxel_tensor.h>

#include "common/enums.h"
#include "common/version.h"
#include "conv/check.h"

namespace lacewing {
namespace {

/// With the ones that an empty stride or dilation stands for.
std::array<std::vector<std::int64_t>, 3> whole(const ConvolutionKernel& kernel) {
  const std::vector<std::int64_t> ones(kernel.size.size(), 1);
  return {kernel.size, kernel.stride.empty() ? ones : kernel.stride, kernel.dilation.empty() ? ones : kernel.dilation};
}

/// Kinds of targets behind those of ConvolutionTargets.
constexpr int kGiven = 3;
constexpr int kTransposed = 4;

std::string text(const std::array<std::vector<std::int64_t>, 3>& geometry) {
  const auto one = [&](std::size_t i) { return shape_text(at::IntArrayRef(geometry[i])); };
  return "kernel_size " + one(0) + ", stride " + one(1) + " and dilation " + one(2);
}

}  // namespace

PlanCache::Identity PlanCache::id(const at::Tensor& tensor) {
  return {tensor.unsafeGetTensorImpl(), version_of(tensor)};
}

PlanCache::PlanCache(ConvolutionAlgorithm algorithm)
    : algorithm_(checked_enum("PlanCache", "algorithm", "ConvolutionAlgorithm", algorithm, 3)) {}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return plans_.size();
}

template <typename Build>
ConvolutionPlan PlanCache::find(Key key, Build&& build) {
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find(key);
  return found != plans_.end() ? found->second
                               : plans_.emplace(std::move(key), build().with_algorithm(algorithm_)).first->second;
}

ConvolutionPlan PlanCache::plan(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                ConvolutionTargets targets) {
  checked_enum("convolution_plan", "targets", "ConvolutionTargets", targets, 3);
  const auto geometry = whole(kernel);
  return find({id(coordinates), {}, static_cast<int>(targets), geometry}, [&] {
    if (targets != ConvolutionTargets::strided) {
      return ConvolutionPlan::build(coordinates, kernel, targets);
    }
    auto& [known, as_made] = strided_[{id(coordinates), geometry[1]}];
    if (known.defined() && id(known) == as_made) {
      return ConvolutionPlan::build(coordinates, kernel, known);
    }
    const ConvolutionPlan plan = ConvolutionPlan::build(coordinates, kernel, targets);
    known = plan.target();
    as_made = id(known);
    return plan;
  });
}

ConvolutionPlan PlanCache::plan(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                const at::Tensor& targets) {
  return find({id(coordinates), id(targets), kGiven, whole(kernel)},
              [&] { return ConvolutionPlan::build(coordinates, kernel, targets); });
}

ConvolutionPlan PlanCache::transposed(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                      const std::optional<at::Tensor>& targets) {
  return find({id(coordinates), targets ? id(*targets) : Identity(), kTransposed, whole(kernel)},
              [&] { return ConvolutionPlan::build_transposed(coordinates, kernel, targets); });
}

ConvolutionPlan PlanCache::inverse(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                   const char* layer) const {
  const auto geometry = whole(kernel);
  const std::lock_guard lock(mutex_);
  const ConvolutionPlan* found = nullptr;
  for (const auto& [key, plan] : plans_) {
    if (plan.target().is_same(coordinates) && std::get<3>(key) == geometry && !plan.is_transposed()) {
      TORCH_CHECK(found == nullptr || found->source().is_same(plan.source()), "[lacewing.", layer, "] layers with ",
                  text(geometry), " led to these voxels from different ones");
      found = &plan;
    }
  }
  TORCH_CHECK(found != nullptr, "[lacewing.", layer, "] no layer with ", text(geometry), " led to these voxels");
  return found->transposed();
}

VoxelTensor::VoxelTensor(at::Tensor features, at::Tensor coordinates, std::optional<std::int64_t> batch_size,
                         std::vector<std::int64_t> stride, std::shared_ptr<PlanCache> cache)
    : features_(std::move(features)),
      coordinates_(std::move(coordinates)),
      clouds_(std::make_shared<const Clouds>(Clouds{batch_size, coordinates_, nullptr})),
      stride_(std::move(stride)),
      cache_(cache ? std::move(cache) : std::make_shared<PlanCache>()) {
  TORCH_CHECK(features_.defined() && coordinates_.defined(),
              "[lacewing.VoxelTensor] features and coordinates must be tensors");
  TORCH_CHECK(features_.layout() == at::kStrided, "[lacewing.VoxelTensor] features must be a dense tensor, not one of ",
              features_.layout());
  TORCH_CHECK(coordinates_.dim() == 2 && coordinates_.size(1) > 1 && coordinates_.scalar_type() == at::kInt,
              "[lacewing.VoxelTensor] coordinates must be int32 of shape (voxels, 1 + axes), not ",
              dtype_text(coordinates_.scalar_type()), " of shape ", shape_text(coordinates_.sizes()));
  TORCH_CHECK(features_.dim() == 2 && features_.size(0) == coordinates_.size(0),
              "[lacewing.VoxelTensor] features of shape ", shape_text(features_.sizes()),
              " do not have one row for each of the ", coordinates_.size(0), " voxels");
  if (stride_.empty()) {
    stride_.assign(static_cast<std::size_t>(axes()), 1);
  }
  TORCH_CHECK(static_cast<std::int64_t>(stride_.size()) == axes(), "[lacewing.VoxelTensor] stride has ", stride_.size(),
              " entries, but the coordinates have ", axes(), " axes");
  TORCH_CHECK(batch_size.value_or(0) >= 0, "[lacewing.VoxelTensor] batch_size must be at least 0, not ",
              batch_size.value_or(0));
  TORCH_CHECK(std::all_of(stride_.begin(), stride_.end(), [](std::int64_t step) { return step > 0; }),
              "[lacewing.VoxelTensor] stride must be positive, not ", shape_text(at::IntArrayRef(stride_)));
}

std::int64_t VoxelTensor::Clouds::count() const {
  if (given) {
    return *given;
  }
  const std::int64_t here = coordinates.size(0) == 0 ? 0 : coordinates.select(1, 0).max().item<std::int64_t>() + 1;
  return before ? std::max(here, before->count()) : here;
}

std::int64_t VoxelTensor::batch_size() const { return clouds_->count(); }

at::Tensor VoxelTensor::offsets() const {
  const at::Tensor batch = coordinates_.select(1, 0);
  TORCH_CHECK(size() == 0 || (batch.diff().ge(0).all().item<bool>() && batch[0].item<std::int64_t>() >= 0 &&
                              batch[-1].item<std::int64_t>() < batch_size()),
              "[lacewing.VoxelTensor] the rows are not grouped by batch indices 0 to ", batch_size() - 1);
  const at::Tensor counts = at::bincount(batch, {}, batch_size());
  return at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)});
}

VoxelTensor VoxelTensor::replace(at::Tensor features) const { return on(std::move(features), coordinates_, stride_); }

VoxelTensor VoxelTensor::on(at::Tensor features, at::Tensor coordinates, std::vector<std::int64_t> stride) const {
  VoxelTensor result(std::move(features), std::move(coordinates), clouds_->given, std::move(stride), cache_);
  result.clouds_ = result.coordinates_.is_same(coordinates_) || clouds_->given
                       ? clouds_
                       : std::make_shared<const Clouds>(Clouds{std::nullopt, result.coordinates_, clouds_});
  result.way_ = way_;
  return result;
}

VoxelTensor VoxelTensor::through(const ConvolutionPlan& plan, at::Tensor features,
                                 std::vector<std::int64_t> stride) const {
  VoxelTensor result = on(std::move(features), plan.target(), std::move(stride));
  if (!plan.is_transposed() && !plan.target().is_same(plan.source())) {
    result.way_ = std::make_shared<const Passage>(Passage{plan, way_});
  }
  return result;
}

ConvolutionPlan VoxelTensor::way_back(const ConvolutionKernel& kernel, const char* layer) const {
  for (const Passage* step = way_.get(); step != nullptr; step = step->before.get()) {
    if (step->plan.target().is_same(coordinates_) && whole(step->plan.kernel()) == whole(kernel)) {
      return step->plan.transposed();
    }
  }
  return cache_->inverse(coordinates_, kernel, layer);
}

void VoxelTensor::check_coordinates(const at::Tensor& coordinates) const {
  TORCH_CHECK(coordinates_.is_same(coordinates) || at::equal(coordinates_, coordinates),
              "[lacewing.VoxelTensor] the two tensors lie on different voxels (", coordinates.size(0), " and ", size(),
              " of them)");
}

void VoxelTensor::check_same(const VoxelTensor& other) const {
  other.check_coordinates(coordinates_);
  TORCH_CHECK(other.stride_ == stride_, "[lacewing.VoxelTensor] the two tensors have the strides ",
              shape_text(at::IntArrayRef(stride_)), " and ", shape_text(at::IntArrayRef(other.stride_)));
}

VoxelTensor VoxelTensor::cat(const VoxelTensor& other) const {
  check_same(other);
  return replace(at::cat({features_, other.features_}, 1));
}

VoxelTensor VoxelTensor::operator+(const VoxelTensor& other) const {
  check_same(other);
  return replace(features_.add(other.features_));
}

VoxelTensor VoxelTensor::prune(const at::Tensor& mask) const {
  TORCH_CHECK(mask.scalar_type() == at::kBool && mask.dim() == 1 && mask.size(0) == size(),
              "[lacewing.VoxelTensor] mask must be ", size(), " booleans, not ", dtype_text(mask.scalar_type()),
              " of shape ", shape_text(mask.sizes()));
  const at::Tensor rows = mask.nonzero().squeeze(1);
  return on(features_.index_select(0, rows), coordinates_.index_select(0, rows), stride_);
}

VoxelTensor VoxelTensor::to(at::Device device) const {
  if (coordinates_.to(device).is_same(coordinates_)) {
    return replace(features_.to(device));
  }
  VoxelTensor moved(features_.to(device), coordinates_.to(device), clouds_->given, stride_,
                    std::make_shared<PlanCache>(cache_->algorithm()));
  moved.clouds_ = clouds_;
  return moved;
}

}  // namespace lacewing
