// Sparse convolution of point clouds in 1 to 4 dimensions, by plans, differentiable to any order.
//
// Coordinates are (voxels, 1 + axes) int32 tensors with the batch index first; voxels are distinct. One relation holds
// per axis:  fine = stride * coarse + dilation * (tap - (size - 1) / 2), taps in lexicographic order of the axes.
// Errors are c10::Error with one sentence. Threads may call every function here at once, and share plans.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>

namespace lacewing {

/// Size, stride and dilation of a kernel, one entry per axis; an empty stride or dilation is 1.
struct ConvolutionKernel {
  std::vector<std::int64_t> size = {};
  std::vector<std::int64_t> stride = {};
  std::vector<std::int64_t> dilation = {};
};

/// How target coordinates are made: `same` keeps the source's (submanifold), `strided` takes the unique
/// floor(coordinate / stride), `reachable` every voxel that a tap leads to.
enum class ConvolutionTargets : std::uint8_t { same, strided, reachable };

/// `automatic` takes the tiles on the CPU, on CUDA the tensor cores for half types and else gather_gemm_scatter.
enum class ConvolutionAlgorithm : std::uint8_t { automatic, tiles, gather_gemm_scatter };

/// Which source voxel meets which target voxel under which tap, found once. Immutable, cheap to copy, shared freely
/// between threads. Moving is copying, so that no plan is ever empty.
class LACEWING_API ConvolutionPlan {
 public:
  ConvolutionPlan(const ConvolutionPlan&) = default;
  ConvolutionPlan& operator=(const ConvolutionPlan&) = default;

  /// From (fine) coordinates to targets made by rule.
  [[nodiscard]] static ConvolutionPlan build(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                             ConvolutionTargets targets = ConvolutionTargets::same);
  /// From (fine) coordinates to given (coarse) ones.
  [[nodiscard]] static ConvolutionPlan build(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                             const at::Tensor& targets);
  /// From (coarse) coordinates to given fine ones, or to all reachable ones.
  [[nodiscard]] static ConvolutionPlan build_transposed(const at::Tensor& coordinates, const ConvolutionKernel& kernel,
                                                        const std::optional<at::Tensor>& targets = std::nullopt);

  /// Source and target exchanged; shares all memory.
  [[nodiscard]] ConvolutionPlan transposed() const;
  [[nodiscard]] ConvolutionPlan with_algorithm(ConvolutionAlgorithm algorithm) const;
  [[nodiscard]] ConvolutionPlan to(at::Device device) const;

  const at::Tensor& source() const { return source_; }
  const at::Tensor& target() const { return target_; }
  const ConvolutionKernel& kernel() const { return kernel_; }
  bool is_transposed() const;
  std::int64_t taps() const;
  std::int64_t pair_count() const { return sizes_.back(); }
  /// Source and target rows of a tap, copied.
  struct Pairs {
    at::Tensor source;
    at::Tensor target;
  };
  [[nodiscard]] Pairs pairs(std::int64_t tap) const;

  /// All of the plan as tensors, for torch::save, and the other way; what is not such a plan is refused.
  [[nodiscard]] std::vector<at::Tensor> pack() const;
  [[nodiscard]] static ConvolutionPlan unpack(const std::vector<at::Tensor>& tensors);

  /// Throws where the tensors of coordinates were changed in place since the plan was made.
  void check_unchanged() const;
  /// That, and throws where features on these coordinates are not features on the plan's source voxels, row by row.
  void check_source(const at::Tensor& coordinates) const;

  /// What the registered ops take.
  const at::Tensor& array() const { return array_; }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }

 private:
  ConvolutionPlan() = default;
  static ConvolutionPlan make(const std::optional<at::Tensor>& fine, const std::optional<at::Tensor>& coarse,
                              const ConvolutionKernel& kernel, std::string_view targets);
  void note_versions();

  at::Tensor array_;
  std::vector<std::int64_t> sizes_;
  at::Tensor source_;
  at::Tensor target_;
  std::array<std::int64_t, 2> versions_{};  ///< of source and target, when the plan was made
  ConvolutionKernel kernel_;
};

/// out[target] = bias + sum over pairs of features[source] @ weight[tap], group by group: (source voxels, Cin),
/// (taps, groups, Cin/groups, Cout/groups) -> (target voxels, Cout). float16, bfloat16 (sums in float32), float32,
/// float64. Differentiable to any order for features, weight and bias. Allocates the result and the workspace that
/// sparse_conv_workspace tells; deterministic.
[[nodiscard]] LACEWING_API at::Tensor sparse_conv(const at::Tensor& features, const at::Tensor& weight,
                                                  const ConvolutionPlan& plan,
                                                  const std::optional<at::Tensor>& bias = std::nullopt);

/// What may follow a convolution: batch norm by running statistics, an addition, a ReLU.
struct ConvFinish {
  at::Tensor mean = {};  ///< running statistics of the norm; undefined where there is none
  at::Tensor variance = {};
  at::Tensor gain = {};  ///< weight and bias of the norm, or undefined
  at::Tensor offset = {};
  double eps = 1e-5;
  at::Tensor residual = {};  ///< (target voxels, Cout), or undefined
  bool relu = false;
};

/// relu(norm(sparse_conv(...)) + residual) of what is given. Where nothing needs a gradient it is one pass: on the CPU
/// a tile of the result is finished while it is in cache. Else it is the ops that it stands for, with their gradients.
[[nodiscard]] LACEWING_API at::Tensor sparse_conv_unit(const at::Tensor& features, const at::Tensor& weight,
                                                       const ConvolutionPlan& plan,
                                                       const std::optional<at::Tensor>& bias, const ConvFinish& finish);

/// The bytes that sparse_conv allocates beside its result.
[[nodiscard]] LACEWING_API std::int64_t sparse_conv_workspace(const at::Tensor& features, const at::Tensor& weight,
                                                              const ConvolutionPlan& plan);

struct MaxPooled {
  at::Tensor values;  ///< (target voxels, C)
  at::Tensor rows;    ///< (target voxels, C) int64: the source row of each value
};

/// The largest value of the source voxels of each target, per channel, and its source row (0 and -1 where there is
/// none). The first of equals in the order of the taps wins, NaN above all. Differentiable to any order.
[[nodiscard]] LACEWING_API MaxPooled max_pool_with_indices(const at::Tensor& features, const ConvolutionPlan& plan);

enum class PoolMode : std::uint8_t { sum, avg, max };

/// The sum, mean or maximum of the source voxels of each target, 0 where there is none. Differentiable to any order.
[[nodiscard]] LACEWING_API at::Tensor pool(const at::Tensor& features, const ConvolutionPlan& plan, PoolMode mode);

[[nodiscard]] inline at::Tensor sum_pool(const at::Tensor& features, const ConvolutionPlan& plan) {
  return pool(features, plan, PoolMode::sum);
}
[[nodiscard]] inline at::Tensor avg_pool(const at::Tensor& features, const ConvolutionPlan& plan) {
  return pool(features, plan, PoolMode::avg);
}
[[nodiscard]] inline at::Tensor max_pool(const at::Tensor& features, const ConvolutionPlan& plan) {
  return pool(features, plan, PoolMode::max);
}

/// Back along a pooling plan: each source voxel of the plan gets the mean of the targets that it went to.
[[nodiscard]] LACEWING_API at::Tensor unpool(const at::Tensor& features, const ConvolutionPlan& plan);

/// Back along sparse_max_pool: each entry goes to the source row it came from; the others are 0. Throws for rows that
/// are no source voxels of their target.
[[nodiscard]] LACEWING_API at::Tensor max_unpool(const at::Tensor& features, const at::Tensor& rows,
                                                 const ConvolutionPlan& plan);

/// (voxels, C) to (batch_size, C): the sum, mean or maximum over the voxels of each batch item; 0 for empty ones.
[[nodiscard]] LACEWING_API at::Tensor global_pool(const at::Tensor& features, const at::Tensor& batch,
                                                  std::int64_t batch_size, PoolMode mode = PoolMode::avg);

/// (Cout, Cin/groups, *size) to (taps, groups, Cin/groups, Cout/groups); `transposed`: from (Cin, Cout/groups, *size).
[[nodiscard]] LACEWING_API at::Tensor weight_from_user(const at::Tensor& weight, std::int64_t groups = 1,
                                                       bool transposed = false);

/// The other way: (taps, groups, Cin/groups, Cout/groups) to the user layout, as a view where there is one group.
[[nodiscard]] LACEWING_API at::Tensor weight_to_user(const at::Tensor& weight, at::IntArrayRef kernel_size,
                                                     bool transposed = false);

/// floor(point / voxel_size) with the batch index in front: (points, axes) floats to (points, 1 + axes) int32. `batch`
/// is one index or one for each point. Throws for points that are not finite or whose voxel does not fit.
[[nodiscard]] LACEWING_API at::Tensor quantize(const at::Tensor& points, at::ArrayRef<double> voxel_size,
                                               const at::Tensor& batch);
/// The same with one size for all axes.
[[nodiscard]] LACEWING_API at::Tensor quantize(const at::Tensor& points, double voxel_size, const at::Tensor& batch);

enum class VoxelReduction : std::uint8_t { sum, mean, first };

struct ReducedVoxels {
  at::Tensor features;
  at::Tensor coordinates;  ///< distinct, sorted
  at::Tensor inverse;      ///< the row that each given row went to
};

/// Merges rows with equal coordinates. Differentiable for features.
[[nodiscard]] LACEWING_API ReducedVoxels reduce_voxels(const at::Tensor& features, const at::Tensor& coordinates,
                                                       VoxelReduction reduction = VoxelReduction::mean);

struct DistinctVoxels {
  at::Tensor coordinates;  ///< distinct, sorted
  at::Tensor first;        ///< the first row of each
  at::Tensor inverse;      ///< the row that each given row went to
};

[[nodiscard]] LACEWING_API DistinctVoxels unique_voxels(const at::Tensor& coordinates);

}  // namespace lacewing
