// Features on voxels, with the plans that a network has built for them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include <lacewing/conv.h>

namespace lacewing {

/// The plans of one set of clouds: layers with the same coordinates and kernel share one. Coordinates are known by
/// their tensor and its version, so that one changed in place gets new plans; the plans keep them. All strided layers
/// with one stride lead to the same tensor of coarse coordinates, whatever their kernel. Threads may share it: a plan
/// that several ask for is built once, while the others wait. Shared, not copied.
class LACEWING_API PlanCache {
 public:
  explicit PlanCache(ConvolutionAlgorithm algorithm = ConvolutionAlgorithm::automatic);
  PlanCache(const PlanCache&) = delete;
  PlanCache& operator=(const PlanCache&) = delete;

  /// The plan of a convolution from these coordinates to targets made by rule, or given; built at the first call.
  [[nodiscard]] ConvolutionPlan plan(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                     ConvolutionTargets targets);
  [[nodiscard]] ConvolutionPlan plan(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                     const at::Tensor& targets);
  /// The plan of a transposed convolution from these coordinates, to all reachable ones where none are given.
  [[nodiscard]] ConvolutionPlan transposed(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                           const std::optional<at::Tensor>& targets = std::nullopt);
  /// The reversal of the plan that led to these coordinates with this kernel. Throws where there is none, or where
  /// several led there from different voxels; `layer` is who asks.
  [[nodiscard]] ConvolutionPlan inverse(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                        const char* layer = "InverseConv") const;

  std::size_t size() const;
  ConvolutionAlgorithm algorithm() const { return algorithm_; }

 private:
  /// A tensor and how often it was changed in place.
  using Identity = std::tuple<const void*, std::int64_t>;
  /// Source, targets (null where made), kind of targets, and the kernel.
  using Key = std::tuple<Identity, Identity, int, std::array<std::vector<std::int64_t>, 3>>;

  /// Builds under the lock, so that a plan is built once; building asks no cache.
  template <typename Build>
  ConvolutionPlan find(Key key, Build&& build);

  const ConvolutionAlgorithm algorithm_;
  mutable std::mutex mutex_;  ///< guards both maps
  std::map<Key, ConvolutionPlan> plans_;
  /// The coarse coordinates that strided layers lead to, by source and stride, as they were made.
  std::map<std::tuple<Identity, std::vector<std::int64_t>>, std::pair<at::Tensor, Identity>> strided_;

  static Identity id(const at::Tensor& tensor);
};

/// Features (voxels, C) on coordinates (voxels, 1 + axes), int32 with the batch index first; distinct voxels. A value:
/// copies share tensors and the cache of plans, and threads may share one. Moving is copying, so that none is ever
/// empty.
class LACEWING_API VoxelTensor {
 public:
  /// `stride` tells how many units of the first level one step is, per axis; empty is 1. `batch_size` is one more than
  /// the largest batch index where it is not given, of these voxels and of those that layers and prune() came from: a
  /// cloud that lost all of its voxels is still one of the batch.
  VoxelTensor(at::Tensor features, at::Tensor coordinates, std::optional<std::int64_t> batch_size = std::nullopt,
              std::vector<std::int64_t> stride = {}, std::shared_ptr<PlanCache> cache = nullptr);
  VoxelTensor(const VoxelTensor&) = default;
  VoxelTensor& operator=(const VoxelTensor&) = default;

  const at::Tensor& features() const { return features_; }
  const at::Tensor& coordinates() const { return coordinates_; }
  const std::vector<std::int64_t>& stride() const { return stride_; }
  const std::shared_ptr<PlanCache>& cache() const { return cache_; }
  std::int64_t axes() const { return coordinates_.size(1) - 1; }
  std::int64_t size() const { return coordinates_.size(0); }
  std::int64_t batch_size() const;
  /// (batch_size + 1,): where the rows of each cloud begin; the coordinates must be grouped by batch index.
  [[nodiscard]] at::Tensor offsets() const;

  /// Other features on the same voxels.
  [[nodiscard]] VoxelTensor replace(at::Tensor features) const;
  /// f(features) on the same voxels.
  template <typename F>
  [[nodiscard]] VoxelTensor map(F&& f) const {
    return replace(f(features_));
  }
  /// Features on other voxels of the same clouds.
  [[nodiscard]] VoxelTensor on(at::Tensor features, at::Tensor coordinates, std::vector<std::int64_t> stride) const;
  /// Features on the plan's targets; the plan is remembered as the way here, so that layers find the way back.
  [[nodiscard]] VoxelTensor through(const ConvolutionPlan& plan, at::Tensor features,
                                    std::vector<std::int64_t> stride) const;
  /// The reversal of the plan with this kernel that these features came by, or else of the cache's; `layer` is who
  /// asks.
  [[nodiscard]] ConvolutionPlan way_back(const ConvolutionKernel& kernel, const char* layer) const;
  /// The channels of both side by side, and the sum; both on the same voxels.
  [[nodiscard]] VoxelTensor cat(const VoxelTensor& other) const;
  [[nodiscard]] VoxelTensor operator+(const VoxelTensor& other) const;
  /// Throws where these are not the tensor's coordinates.
  void check_coordinates(const at::Tensor& coordinates) const;
  /// The voxels where the mask (voxels,) of booleans is true.
  [[nodiscard]] VoxelTensor prune(const at::Tensor& mask) const;
  /// On another device, with an empty cache.
  [[nodiscard]] VoxelTensor to(at::Device device) const;

 private:
  /// Throws where another tensor has other voxels or another stride.
  void check_same(const VoxelTensor& other) const;

  /// Plans that led here, the last one first.
  struct Passage {
    ConvolutionPlan plan;
    std::shared_ptr<const Passage> before;
  };

  /// What tells the number of clouds: it was given, or it follows from these voxels and from those before.
  struct Clouds {
    std::optional<std::int64_t> given;
    at::Tensor coordinates;
    std::shared_ptr<const Clouds> before;

    std::int64_t count() const;
  };

  at::Tensor features_;
  at::Tensor coordinates_;
  std::shared_ptr<const Clouds> clouds_;
  std::vector<std::int64_t> stride_;
  std::shared_ptr<PlanCache> cache_;
  std::shared_ptr<const Passage> way_;
};

}  // namespace lacewing
