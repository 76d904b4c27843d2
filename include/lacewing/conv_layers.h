// Layers of sparse convolution on VoxelTensors, as torch::nn modules. A header of its own: torch's modules are costly
// to include. As torch's modules, one layer is not for several threads at once where one of them writes to it
// (training, load_state_dict); forward passes without batch statistics share it, and voxel tensors are always shared.
//
//   lacewing::nn::SubmanifoldConv conv(lacewing::nn::ConvOptions(4, 32, {3, 3, 3}));
//   lacewing::VoxelTensor y = conv(lacewing::VoxelTensor(features, voxels));
#pragma once

#include <string>

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>
#include <torch/ordered_dict.h>

#include <lacewing/voxel_tensor.h>

namespace lacewing::nn {

/// Kernel size, stride and dilation, one entry per axis. An empty stride is the layer's own: 1 for SubmanifoldConv,
/// 2 for the others; an empty dilation is 1.
struct LACEWING_API ConvOptions {
  ConvOptions(std::int64_t in_channels, std::int64_t out_channels, std::vector<std::int64_t> kernel_size)
      : in_channels_(in_channels), out_channels_(out_channels), kernel_size_(std::move(kernel_size)) {}

  TORCH_ARG(std::int64_t, in_channels);
  TORCH_ARG(std::int64_t, out_channels);
  TORCH_ARG(std::vector<std::int64_t>, kernel_size);
  TORCH_ARG(std::vector<std::int64_t>, stride);
  TORCH_ARG(std::vector<std::int64_t>, dilation);
  TORCH_ARG(std::int64_t, groups) = 1;
  TORCH_ARG(bool, bias) = true;
  /// Of SparseConv: strided or reachable.
  TORCH_ARG(ConvolutionTargets, targets) = ConvolutionTargets::strided;
};

/// The parameters of a convolution. The weight lies in the internal layout (taps, groups, Cin/groups, Cout/groups), so
/// executing permutes nothing; user_weight() shows torch's.
class LACEWING_API ConvParameters {
 public:
  /// Checks the options; `name` is the layer's.
  ConvParameters(const char* name, ConvOptions options, std::int64_t stride, bool transposed);
  virtual ~ConvParameters() = default;
  ConvParameters(const ConvParameters&) = default;
  ConvParameters(ConvParameters&&) = default;
  ConvParameters& operator=(const ConvParameters&) = default;
  ConvParameters& operator=(ConvParameters&&) = default;

  /// Uniform in +-1/sqrt(fan in), as torch's convolutions (whose fan in counts the outputs of transposed layers).
  void reset_parameters();
  /// (Cout, Cin/groups, *kernel_size), or (Cin, Cout/groups, *kernel_size) of a transposed layer; a view where there is
  /// one group.
  at::Tensor user_weight() const;
  void set_user_weight(const at::Tensor& user);
  ConvolutionKernel kernel() const;

  ConvOptions options;
  at::Tensor weight;
  at::Tensor bias;  ///< undefined where there is none

  /// The plan that forward() takes from the voxels of x, and the stride of those it leads to.
  struct Way {
    ConvolutionPlan plan;
    std::vector<std::int64_t> stride;
  };
  virtual Way way(const VoxelTensor& x) const = 0;
  /// The layer's result over a plan, which must start from the voxels of x and have the layer's kernel and direction,
  /// with what follows it.
  VoxelTensor run(const VoxelTensor& x, Way way, const ConvFinish& finish = {}) const;

 protected:
  /// Steps of the voxels behind the layer.
  std::vector<std::int64_t> coarser(const VoxelTensor& x) const;
  std::vector<std::int64_t> finer(const VoxelTensor& x) const;
  std::string text(const char* name) const;

  const char* layer_;
  bool transposed_;
};

/// What the convolutions share: registration, cloning, printing.
template <typename Derived>
class ConvLayer : public torch::nn::Cloneable<Derived>, public ConvParameters {
 public:
  ConvLayer(ConvOptions given, std::int64_t stride, bool transposed)
      : ConvParameters(Derived::kName, std::move(given), stride, transposed) {
    reset();
  }

  void reset() override {
    reset_parameters();
    this->weight = this->register_parameter("weight", this->weight);
    this->bias = this->register_parameter("bias", this->bias, this->bias.defined());
  }
  void pretty_print(std::ostream& stream) const override { stream << text(Derived::kName); }
};

/// Keeps the voxels: sites that were empty stay empty.
class LACEWING_API SubmanifoldConvImpl : public ConvLayer<SubmanifoldConvImpl> {
 public:
  static constexpr const char* kName = "SubmanifoldConv";
  explicit SubmanifoldConvImpl(ConvOptions given) : ConvLayer(std::move(given), 1, false) {}
  Way way(const VoxelTensor& x) const override;
  VoxelTensor forward(const VoxelTensor& x) { return run(x, way(x)); }
  /// Over a plan that was built before, from these voxels.
  VoxelTensor over(const VoxelTensor& x, const ConvolutionPlan& plan);
};
TORCH_MODULE(SubmanifoldConv);

/// To the voxels floor(voxel / stride), to all that a tap reaches, or to given ones.
class LACEWING_API SparseConvImpl : public ConvLayer<SparseConvImpl> {
 public:
  static constexpr const char* kName = "SparseConv";
  explicit SparseConvImpl(ConvOptions given) : ConvLayer(std::move(given), 2, false) {}
  Way way(const VoxelTensor& x) const override;
  VoxelTensor forward(const VoxelTensor& x) { return run(x, way(x)); }
  VoxelTensor onto(const VoxelTensor& x, const at::Tensor& targets);
  VoxelTensor over(const VoxelTensor& x, const ConvolutionPlan& plan);
};
TORCH_MODULE(SparseConv);

/// A transposed convolution to every reachable voxel (generative; prune the result), or onto given ones.
class LACEWING_API SparseConvTransposeImpl : public ConvLayer<SparseConvTransposeImpl> {
 public:
  static constexpr const char* kName = "SparseConvTranspose";
  explicit SparseConvTransposeImpl(ConvOptions given) : ConvLayer(std::move(given), 2, true) {}
  Way way(const VoxelTensor& x) const override;
  VoxelTensor forward(const VoxelTensor& x) { return run(x, way(x)); }
  VoxelTensor onto(const VoxelTensor& x, const at::Tensor& targets);
  VoxelTensor over(const VoxelTensor& x, const ConvolutionPlan& plan);
};
TORCH_MODULE(SparseConvTranspose);

/// Back along the SparseConv with the same kernel that led here, onto the voxels that it came from, over its plan.
class LACEWING_API InverseConvImpl : public ConvLayer<InverseConvImpl> {
 public:
  static constexpr const char* kName = "InverseConv";
  explicit InverseConvImpl(ConvOptions given) : ConvLayer(std::move(given), 2, true) {}
  Way way(const VoxelTensor& x) const override;
  VoxelTensor forward(const VoxelTensor& x) { return run(x, way(x)); }
};
TORCH_MODULE(InverseConv);

/// Windows of a pooling layer; an empty stride is kernel_size.
struct LACEWING_API PoolOptions {
  explicit PoolOptions(std::vector<std::int64_t> kernel_size) : kernel_size_(std::move(kernel_size)) {}

  TORCH_ARG(std::vector<std::int64_t>, kernel_size);
  TORCH_ARG(std::vector<std::int64_t>, stride);
  TORCH_ARG(std::vector<std::int64_t>, dilation);
  TORCH_ARG(PoolMode, mode) = PoolMode::max;
};

/// Sum, mean or maximum over windows, to the voxels floor(voxel / stride).
class LACEWING_API SparsePoolImpl : public torch::nn::Cloneable<SparsePoolImpl> {
 public:
  explicit SparsePoolImpl(PoolOptions options);
  void reset() override {}
  VoxelTensor forward(const VoxelTensor& x);

  PoolOptions options;
};
TORCH_MODULE(SparsePool);

/// Back along the SparsePool or SparseConv with the same kernel: each voxel gets the mean of those it went to.
class LACEWING_API SparseUnpoolImpl : public torch::nn::Cloneable<SparseUnpoolImpl> {
 public:
  explicit SparseUnpoolImpl(PoolOptions options);
  void reset() override {}
  VoxelTensor forward(const VoxelTensor& x);

  PoolOptions options;
};
TORCH_MODULE(SparseUnpool);

/// (voxels, C) to (batch_size, C): sum, mean or maximum over each cloud.
class LACEWING_API GlobalPoolImpl : public torch::nn::Cloneable<GlobalPoolImpl> {
 public:
  explicit GlobalPoolImpl(PoolMode given = PoolMode::avg) : mode(given) {}
  void reset() override {}
  at::Tensor forward(const VoxelTensor& x);

  PoolMode mode;
};
TORCH_MODULE(GlobalPool);

/// Batch normalisation over all voxels of all clouds.
class LACEWING_API VoxelBatchNormImpl : public torch::nn::BatchNormImplBase<1, VoxelBatchNormImpl> {
 public:
  using Base = torch::nn::BatchNormImplBase<1, VoxelBatchNormImpl>;
  using Base::BatchNormImplBase;
  VoxelTensor forward(const VoxelTensor& x);

 protected:
  void _check_input_dim(const at::Tensor& input) override;
};
TORCH_MODULE(VoxelBatchNorm);

/// relu(norm(conv(x)) + residual), with or without each of them. In one pass (see sparse_conv_unit) where the norm goes
/// by its running statistics and nothing needs a gradient.
class LACEWING_API ConvUnitImpl : public torch::nn::Module {
 public:
  /// `layer` is one of the convolutions above; the norm `behind` it may be empty.
  template <typename Layer>
  explicit ConvUnitImpl(const torch::nn::ModuleHolder<Layer>& layer, VoxelBatchNorm behind = nullptr,
                        bool with_relu = true)
      : ConvUnitImpl(layer.ptr(), layer.ptr(), std::move(behind), with_relu) {}

  VoxelTensor forward(const VoxelTensor& x, const std::optional<VoxelTensor>& residual = std::nullopt);
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  std::shared_ptr<ConvParameters> conv;
  VoxelBatchNorm norm;
  bool relu;

 private:
  ConvUnitImpl(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<ConvParameters> conv,
               VoxelBatchNorm norm, bool relu);
};
TORCH_MODULE(ConvUnit);

/// A module's parameters and buffers by name, weights of convolutions in the user layout: what Python's state_dict()
/// holds.
[[nodiscard]] LACEWING_API torch::OrderedDict<std::string, at::Tensor> state_dict(const torch::nn::Module& module);

/// The other way, by copying. Throws where a name is missing, unknown, or of another shape.
LACEWING_API void load_state_dict(torch::nn::Module& module, const torch::OrderedDict<std::string, at::Tensor>& state);

}  // namespace lacewing::nn
