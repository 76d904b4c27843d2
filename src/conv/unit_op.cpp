// sparse_conv_unit: a convolution with batch norm by running statistics, an addition and a ReLU. One pass where no
// gradient is wanted; else the ops that it is made of, which know their gradients.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

#include "autograd/linear_op.h"
#include "common/refuse_layouts.h"
#include "conv/check.h"
#include "conv/finish.h"

namespace lacewing::conv {

void Finish::apply(at::Tensor y) const {
  if (scale.defined()) {
    at::addcmul_out(y, shift, y, scale);
  }
  if (residual.defined()) {
    y.add_(residual);
  }
  if (relu) {
    y.relu_();
  }
}

namespace {

constexpr const char* kUnit = "sparse_conv_unit";

ConvShape check_unit(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                     const at::Tensor& plan, c10::SymIntArrayRef sizes, const OptionalTensor& mean,
                     const OptionalTensor& variance, const OptionalTensor& gain, const OptionalTensor& offset,
                     const OptionalTensor& residual) {
  ConvShape shape = check_conv(features, weight, bias, plan, sizes, false);
  const c10::SymInt channels = shape.groups * shape.out;
  TORCH_CHECK(mean.has_value() == variance.has_value() && (mean || (!gain && !offset)), "[lacewing.", kUnit,
              "] the norm needs a running mean and a running variance");
  const auto check_channels = [&](const char* name, const OptionalTensor& tensor) {
    if (!tensor) {
      return;
    }
    TORCH_SYM_CHECK(tensor->dim() == 1 ? tensor->sym_size(0).sym_eq(channels) : c10::SymBool(false), "[lacewing.",
                    kUnit, "] ", name, " of the norm has shape ", shape_text(tensor->sym_sizes()), ", but there are ",
                    channels, " output channels");
    TORCH_CHECK(at::isFloatingType(tensor->scalar_type()), "[lacewing.", kUnit, "] ", name,
                " of the norm must be real floating point, not ", dtype_text(tensor->scalar_type()));
    TORCH_CHECK(tensor->device() == features.device(), "[lacewing.", kUnit, "] ", name, " of the norm is on ",
                tensor->device(), " but features are on ", features.device());
  };
  check_channels("the mean", mean);
  check_channels("the variance", variance);
  check_channels("the weight", gain);
  check_channels("the bias", offset);
  if (residual) {
    check_rows(kUnit, "the residual", *residual, shape.plan.target_rows, "target", plan);
    TORCH_SYM_CHECK(residual->sym_size(1).sym_eq(channels), "[lacewing.", kUnit, "] the residual has ",
                    residual->sym_size(1), " channels, but there are ", channels, " output channels");
    TORCH_CHECK(residual->scalar_type() == features.scalar_type(), "[lacewing.", kUnit, "] the residual has dtype ",
                dtype_text(residual->scalar_type()), " but features have ", dtype_text(features.scalar_type()));
  }
  return shape;
}

at::Tensor composed(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                    const at::Tensor& plan, c10::SymIntArrayRef sizes, const OptionalTensor& mean,
                    const OptionalTensor& variance, const OptionalTensor& gain, const OptionalTensor& offset,
                    double eps, const OptionalTensor& residual, bool relu) {
  at::Tensor y = conv_op().call(features, weight, bias, plan, sizes, false);
  if (mean) {
    y = at::batch_norm(y, gain, offset, mean, variance, /*training=*/false, /*momentum=*/0, eps,
                       at::globalContext().userEnabledCuDNN());
  }
  if (residual) {
    y = y + *residual;
  }
  return relu ? y.relu() : y;
}

/// One pass.
at::Tensor unit(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                const at::Tensor& plan, c10::SymIntArrayRef sizes, const OptionalTensor& mean,
                const OptionalTensor& variance, const OptionalTensor& gain, const OptionalTensor& offset, double eps,
                const OptionalTensor& residual, bool relu) {
  check_unit(features, weight, bias, plan, sizes, mean, variance, gain, offset, residual);
  const at::Tensor none;
  check_memory(kUnit, {{"mean", mean.value_or(none)},
                       {"variance", variance.value_or(none)},
                       {"gain", gain.value_or(none)},
                       {"offset", offset.value_or(none)},
                       {"residual", residual.value_or(none)}});
  Finish finish;
  finish.relu = relu;
  finish.residual = residual.value_or(at::Tensor());
  if (mean) {
    const at::ScalarType type = features.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto wide = [&](const at::Tensor& tensor) { return tensor.to(type).contiguous(); };
    finish.scale = (wide(*variance) + eps).rsqrt_();
    if (gain) {
      finish.scale.mul_(wide(*gain));
    }
    const at::Tensor offsets = offset ? wide(*offset) : at::zeros_like(finish.scale);
    finish.shift = at::addcmul(offsets, wide(*mean), finish.scale, -1);
  }
  return run_conv(features, weight, bias, plan, sizes, false, finish);
}

at::Tensor unit_meta(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                     const at::Tensor& plan, c10::SymIntArrayRef sizes, const OptionalTensor& mean,
                     const OptionalTensor& variance, const OptionalTensor& gain, const OptionalTensor& offset, double,
                     const OptionalTensor& residual, bool) {
  const ConvShape shape = check_unit(features, weight, bias, plan, sizes, mean, variance, gain, offset, residual);
  return at::empty_symint({shape.plan.target_rows, shape.groups * shape.out}, features.options());
}

at::Tensor unit_autograd(c10::DispatchKeySet keys, const at::Tensor& features, const at::Tensor& weight,
                         const OptionalTensor& bias, const at::Tensor& plan, c10::SymIntArrayRef sizes,
                         const OptionalTensor& mean, const OptionalTensor& variance, const OptionalTensor& gain,
                         const OptionalTensor& offset, double eps, const OptionalTensor& residual, bool relu) {
  const at::Tensor none;
  if (autograd::wants_derivatives({features, weight, bias.value_or(none), mean.value_or(none), variance.value_or(none),
                                   gain.value_or(none), offset.value_or(none), residual.value_or(none)})) {
    check_unit(features, weight, bias, plan, sizes, mean, variance, gain, offset, residual);
    return composed(features, weight, bias, plan, sizes, mean, variance, gain, offset, eps, residual, relu);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return unit_op().redispatch(keys & c10::after_autograd_keyset, features, weight, bias, plan, sizes, mean, variance,
                              gain, offset, eps, residual, relu);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(m,
                  "sparse_conv_unit(Tensor features, Tensor weight, Tensor? bias, Tensor plan, SymInt[] sizes, Tensor? "
                  "mean, Tensor? "
                  "variance, Tensor? gain, Tensor? offset, float eps, Tensor? residual, bool relu) -> Tensor",
                  {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) { m.impl("sparse_conv_unit", unit); }
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) { m.impl("sparse_conv_unit", unit); }
TORCH_LIBRARY_IMPL(lacewing, Meta, m) { m.impl("sparse_conv_unit", unit_meta); }
TORCH_LIBRARY_IMPL(lacewing, Autograd, m) { m.impl("sparse_conv_unit", unit_autograd); }
TORCH_LIBRARY_IMPL(lacewing, AutocastCPU, m) { m.impl("sparse_conv_unit", composed); }
TORCH_LIBRARY_IMPL(lacewing, AutocastCUDA, m) { m.impl("sparse_conv_unit", composed); }
TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) { m.impl("sparse_conv_unit", composed); }

}  // namespace lacewing::conv
