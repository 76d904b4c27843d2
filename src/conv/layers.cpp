#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <lacewing/conv_layers.h>
#include <lacewing/dispatch/torch.h>

namespace lacewing::nn {
namespace {

using Sizes = std::vector<std::int64_t>;

/// One positive entry for each axis of the kernel; an empty list takes the default.
Sizes per_axis(const char* layer, const char* name, const Sizes& values, std::size_t axes, std::int64_t standard) {
  const Sizes result = values.empty() ? Sizes(axes, standard) : values;
  TORCH_CHECK(result.size() == axes && *std::min_element(result.begin(), result.end()) > 0, "[lacewing.", layer, "] ",
              name, " must be ", axes, " positive integers, not ", shape_text(at::IntArrayRef(result)));
  return result;
}

void check_kernel_size(const char* layer, const Sizes& kernel_size) {
  TORCH_CHECK(kernel_size.size() >= 1 && kernel_size.size() <= 4, "[lacewing.", layer,
              "] kernel_size must have 1 to 4 entries, not ", kernel_size.size());
  per_axis(layer, "kernel_size", kernel_size, kernel_size.size(), 1);
}

PoolOptions settled(const char* layer, PoolOptions options) {
  check_kernel_size(layer, options.kernel_size());
  const std::size_t axes = options.kernel_size().size();
  options.stride(options.stride().empty() ? options.kernel_size()
                                          : per_axis(layer, "stride", options.stride(), axes, 1));
  options.dilation(per_axis(layer, "dilation", options.dilation(), axes, 1));
  return options;
}

ConvolutionKernel kernel_of(const PoolOptions& options) {
  return {options.kernel_size(), options.stride(), options.dilation()};
}

Sizes times(const Sizes& a, const Sizes& b) {
  Sizes result;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    result.push_back(a[i] * b[i]);
  }
  return result;
}

Sizes divided(const Sizes& a, const Sizes& b) {
  Sizes result;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    result.push_back(std::max<std::int64_t>(1, a[i] / b[i]));
  }
  return result;
}

}  // namespace

ConvParameters::ConvParameters(const char* name, ConvOptions given, std::int64_t stride, bool transposed)
    : options(std::move(given)), layer_(name), transposed_(transposed) {
  check_kernel_size(name, options.kernel_size());
  const std::size_t axes = options.kernel_size().size();
  options.stride(per_axis(name, "stride", options.stride(), axes, stride));
  options.dilation(per_axis(name, "dilation", options.dilation(), axes, 1));
  const std::int64_t groups = options.groups();
  TORCH_CHECK(options.in_channels() > 0 && options.out_channels() > 0, "[lacewing.", name,
              "] channels must be positive, not ", options.in_channels(), " and ", options.out_channels());
  TORCH_CHECK(groups > 0 && options.in_channels() % groups == 0 && options.out_channels() % groups == 0, "[lacewing.",
              name, "] ", groups, " groups do not divide ", options.in_channels(), " input and ",
              options.out_channels(), " output channels");
}

void ConvParameters::reset_parameters() {
  std::int64_t taps = 1;
  for (const std::int64_t size : options.kernel_size()) {
    taps *= size;
  }
  const std::int64_t groups = options.groups();
  const std::int64_t in = options.in_channels() / groups;
  const std::int64_t out = options.out_channels() / groups;
  // As torch counts it: the second dim of the user layout, which is that of the outputs where it is transposed.
  const std::int64_t fan_in = taps * (transposed_ ? out : in);
  const double bound = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, fan_in)));
  const auto fresh = [&](at::IntArrayRef sizes, const at::Tensor& like) {
    const c10::NoGradGuard guard;
    return at::empty(sizes, like.defined() ? like.options() : at::TensorOptions()).uniform_(-bound, bound);
  };
  weight = fresh({taps, groups, in, out}, weight);
  bias = options.bias() ? fresh({options.out_channels()}, bias) : at::Tensor();
}

at::Tensor ConvParameters::user_weight() const { return weight_to_user(weight, options.kernel_size(), transposed_); }

void ConvParameters::set_user_weight(const at::Tensor& user) {
  const c10::NoGradGuard guard;
  TORCH_CHECK(user.sizes() == user_weight().sizes(), "[lacewing.sparse_conv] a weight of shape ",
              shape_text(user.sizes()), " does not fit the layer's ", shape_text(user_weight().sizes()));
  weight.copy_(weight_from_user(user, options.groups(), transposed_));
}

ConvolutionKernel ConvParameters::kernel() const {
  return {options.kernel_size(), options.stride(), options.dilation()};
}

VoxelTensor ConvParameters::run(const VoxelTensor& x, Way way, const ConvFinish& finish) const {
  const ConvolutionPlan& plan = way.plan;
  const auto described = [](const ConvolutionKernel& kernel, bool transposed) {
    return c10::str("kernel_size ", shape_text(at::IntArrayRef(kernel.size)), ", stride ",
                    shape_text(at::IntArrayRef(kernel.stride)), ", dilation ",
                    shape_text(at::IntArrayRef(kernel.dilation)), transposed ? ", transposed" : "");
  };
  const std::string of_plan = described(plan.kernel(), plan.is_transposed());
  const std::string of_layer = described(kernel(), transposed_);
  TORCH_CHECK(of_plan == of_layer, "[lacewing.", layer_, "] the plan has ", of_plan, ", but the layer has ", of_layer);
  plan.check_source(x.coordinates());
  const auto offsets = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  const bool finished = finish.mean.defined() || finish.residual.defined() || finish.relu;
  const at::Tensor y = finished ? sparse_conv_unit(x.features(), weight, plan, offsets, finish)
                                : sparse_conv(x.features(), weight, plan, offsets);
  return x.through(plan, y, std::move(way.stride));
}

Sizes ConvParameters::coarser(const VoxelTensor& x) const { return times(x.stride(), options.stride()); }
Sizes ConvParameters::finer(const VoxelTensor& x) const { return divided(x.stride(), options.stride()); }

std::string ConvParameters::text(const char* name) const {
  return c10::str("lacewing::nn::", name, "(", options.in_channels(), ", ", options.out_channels(),
                  ", kernel_size=", shape_text(at::IntArrayRef(options.kernel_size())),
                  ", stride=", shape_text(at::IntArrayRef(options.stride())),
                  ", dilation=", shape_text(at::IntArrayRef(options.dilation())), ", groups=", options.groups(),
                  ", bias=", options.bias() ? "true" : "false", ")");
}

ConvParameters::Way SubmanifoldConvImpl::way(const VoxelTensor& x) const {
  return {x.cache()->plan(x.coordinates(), kernel(), ConvolutionTargets::same), x.stride()};
}
VoxelTensor SubmanifoldConvImpl::over(const VoxelTensor& x, const ConvolutionPlan& plan) {
  TORCH_CHECK(plan.target().is_same(plan.source()) || at::equal(plan.target(), plan.source()),
              "[lacewing.SubmanifoldConv] the plan leads to other voxels than it comes from");
  return run(x, {plan, x.stride()});
}

ConvParameters::Way SparseConvImpl::way(const VoxelTensor& x) const {
  return {x.cache()->plan(x.coordinates(), kernel(), options.targets()), coarser(x)};
}
VoxelTensor SparseConvImpl::onto(const VoxelTensor& x, const at::Tensor& targets) {
  return over(x, x.cache()->plan(x.coordinates(), kernel(), targets));
}
VoxelTensor SparseConvImpl::over(const VoxelTensor& x, const ConvolutionPlan& plan) {
  return run(x, {plan, coarser(x)});
}

ConvParameters::Way SparseConvTransposeImpl::way(const VoxelTensor& x) const {
  return {x.cache()->transposed(x.coordinates(), kernel()), finer(x)};
}
VoxelTensor SparseConvTransposeImpl::onto(const VoxelTensor& x, const at::Tensor& targets) {
  return over(x, x.cache()->transposed(x.coordinates(), kernel(), targets));
}
VoxelTensor SparseConvTransposeImpl::over(const VoxelTensor& x, const ConvolutionPlan& plan) {
  return run(x, {plan, finer(x)});
}

ConvParameters::Way InverseConvImpl::way(const VoxelTensor& x) const {
  return {x.way_back(kernel(), layer_), finer(x)};
}

SparsePoolImpl::SparsePoolImpl(PoolOptions given) : options(settled("SparsePool", std::move(given))) {}

VoxelTensor SparsePoolImpl::forward(const VoxelTensor& x) {
  const ConvolutionPlan plan = x.cache()->plan(x.coordinates(), kernel_of(options), ConvolutionTargets::strided);
  plan.check_source(x.coordinates());
  return x.through(plan, pool(x.features(), plan, options.mode()), times(x.stride(), options.stride()));
}

SparseUnpoolImpl::SparseUnpoolImpl(PoolOptions given) : options(settled("SparseUnpool", std::move(given))) {}

VoxelTensor SparseUnpoolImpl::forward(const VoxelTensor& x) {
  const ConvolutionPlan back = x.way_back(kernel_of(options), "SparseUnpool");
  back.check_source(x.coordinates());
  return x.through(back, pool(x.features(), back, PoolMode::avg), divided(x.stride(), options.stride()));
}

at::Tensor GlobalPoolImpl::forward(const VoxelTensor& x) {
  return global_pool(x.features(), x.coordinates().select(1, 0), x.batch_size(), mode);
}

VoxelTensor VoxelBatchNormImpl::forward(const VoxelTensor& x) { return x.replace(Base::forward(x.features())); }

void VoxelBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  TORCH_CHECK(input.dim() == 2, "[lacewing.VoxelBatchNorm] features must have 2 dimensions, not ", input.dim());
}

ConvUnitImpl::ConvUnitImpl(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<ConvParameters> conv,
                           VoxelBatchNorm given, bool relu)
    : conv(std::move(conv)), norm(std::move(given)), relu(relu) {
  register_module("conv", module);
  if (!norm.is_empty()) {
    register_module("norm", norm);
  }
}

VoxelTensor ConvUnitImpl::forward(const VoxelTensor& x, const std::optional<VoxelTensor>& residual) {
  const bool has_norm = !norm.is_empty();
  const ConvParameters::Way way = conv->way(x);
  TORCH_CHECK(!residual || residual->features().scalar_type() == x.features().scalar_type() ||
                  at::autocast::is_autocast_enabled(x.features().device().type()),
              "[lacewing.ConvUnit] the residual has dtype ",
              residual ? dtype_text(residual->features().scalar_type()) : std::string(), " but features have ",
              dtype_text(x.features().scalar_type()));
  if (has_norm && (norm->is_training() || !norm->running_mean.defined())) {
    const VoxelTensor y = norm->forward(conv->run(x, way));
    TORCH_CHECK(!residual || residual->features().sizes() == y.features().sizes(),
                "[lacewing.ConvUnit] the residual of shape ",
                residual ? shape_text(residual->features().sizes()) : std::string(), " is not of the result's shape ",
                shape_text(y.features().sizes()));
    const VoxelTensor sum = residual ? y + *residual : y;
    return relu ? sum.replace(sum.features().relu_()) : sum;
  }
  ConvFinish finish;
  finish.relu = relu;
  if (residual) {
    residual->check_coordinates(way.plan.target());
    finish.residual = residual->features();
  }
  if (has_norm) {
    finish.mean = norm->running_mean;
    finish.variance = norm->running_var;
    finish.gain = norm->weight;
    finish.offset = norm->bias;
    finish.eps = norm->options.eps();
  }
  return conv->run(x, way, finish);
}

std::shared_ptr<torch::nn::Module> ConvUnitImpl::clone(const std::optional<at::Device>& device) const {
  const auto layer = named_children()["conv"]->clone(device);
  const auto copied = norm.is_empty()
                          ? VoxelBatchNorm(nullptr)
                          : VoxelBatchNorm(std::dynamic_pointer_cast<VoxelBatchNormImpl>(norm->clone(device)));
  std::shared_ptr<ConvUnitImpl> unit(
      new ConvUnitImpl(layer, std::dynamic_pointer_cast<ConvParameters>(layer), copied, relu));
  // train() reaches into the children, whose mode is their own.
  const bool of_layer = layer->is_training();
  const bool of_norm = !copied.is_empty() && copied->is_training();
  unit->train(is_training());
  layer->train(of_layer);
  if (!copied.is_empty()) {
    unit->norm->train(of_norm);
  }
  return unit;
}

void ConvUnitImpl::pretty_print(std::ostream& stream) const {
  stream << "lacewing::nn::ConvUnit(relu=" << (relu ? "true" : "false") << ")";
}

namespace {

/// The convolutions of a module by the names of their weights.
std::map<std::string, ConvParameters*> convolutions(const torch::nn::Module& module) {
  std::map<std::string, ConvParameters*> found;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (auto* const conv = dynamic_cast<ConvParameters*>(item.value().get())) {
      found[item.key() + ".weight"] = conv;
    }
  }
  if (const auto* const conv = dynamic_cast<const ConvParameters*>(&module)) {
    found["weight"] = const_cast<ConvParameters*>(conv);
  }
  return found;
}

}  // namespace

torch::OrderedDict<std::string, at::Tensor> state_dict(const torch::nn::Module& module) {
  const auto layers = convolutions(module);
  torch::OrderedDict<std::string, at::Tensor> state;
  for (const auto& item : module.named_parameters()) {
    const auto layer = layers.find(item.key());
    state.insert(item.key(), (layer == layers.end() ? item.value() : layer->second->user_weight()).detach());
  }
  for (const auto& item : module.named_buffers()) {
    state.insert(item.key(), item.value());
  }
  return state;
}

void load_state_dict(torch::nn::Module& module, const torch::OrderedDict<std::string, at::Tensor>& state) {
  const c10::NoGradGuard guard;
  const auto layers = convolutions(module);
  const auto own = state_dict(module);
  for (const auto& item : state) {
    TORCH_CHECK(own.contains(item.key()), "[lacewing.load_state_dict] the module has no ", item.key());
  }
  for (const auto& item : own) {
    const at::Tensor* const given = state.find(item.key());
    TORCH_CHECK(given != nullptr && given->defined(), "[lacewing.load_state_dict] ", item.key(), " is missing");
    TORCH_CHECK(given->sizes() == item.value().sizes(), "[lacewing.load_state_dict] ", item.key(), " has the shape ",
                shape_text(given->sizes()), ", but the module's has ", shape_text(item.value().sizes()));
  }
  // Only now that all of it fits is anything written.
  for (const auto& item : own) {
    const at::Tensor* const given = state.find(item.key());
    const auto layer = layers.find(item.key());
    if (layer != layers.end()) {
      layer->second->set_user_weight(*given);
    } else {
      item.value().copy_(*given);
    }
  }
}

}  // namespace lacewing::nn
