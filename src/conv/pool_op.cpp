// sparse_max_pool and its gradient: schemas, kernels, shapes and autograd.
#include <tuple>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "autograd/linear_op.h"
#include "common/refuse_layouts.h"
#include "common/stream.h"
#include "common/sum_type.h"
#include "conv/check.h"
#include "kernels/pool.h"

namespace lacewing::conv {
namespace {

constexpr const char* kPool = "sparse_max_pool";
constexpr const char* kPoolGrad = "sparse_max_pool_grad";

/// Calls f(kernels, executor) of the device that runs.
template <typename F>
void with_kernels(const at::Tensor& tensor, F&& f) {
  if (tensor.is_cuda()) {
    f(kernels::cuda_pool_kernels(), current_stream(tensor.device()));
  } else if (backend() == Backend::reference) {
    f(kernels::reference_pool_kernels(), serial_executor());
  } else {
    f(kernels::cpu_pool_kernels(), torch_executor());
  }
}

PlanSizes check_pool(const at::Tensor& features, const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  PlanSizes checked = check_plan(kPool, plan, sizes);
  check_rows(kPool, "features", features, checked.source_rows, "source", plan);
  return checked;
}

PlanSizes check_pool_grad(const at::Tensor& grad, const at::Tensor& arg, const at::Tensor& plan,
                          c10::SymIntArrayRef sizes) {
  PlanSizes checked = check_plan(kPoolGrad, plan, sizes);
  check_rows(kPoolGrad, "grad", grad, checked.target_rows, "target", plan);
  TORCH_CHECK(arg.scalar_type() == at::kLong && arg.dim() == 2, "[lacewing.", kPoolGrad,
              "] arg must be int64 of two dimensions, not ", dtype_text(arg.scalar_type()), " of shape ",
              shape_text(arg.sym_sizes()));
  for (const std::int64_t dim : {0, 1}) {
    TORCH_SYM_CHECK(arg.sym_size(dim).sym_eq(grad.sym_size(dim)), "[lacewing.", kPoolGrad, "] arg of shape ",
                    shape_text(arg.sym_sizes()), " does not fit grad of shape ", shape_text(grad.sym_sizes()));
  }
  return checked;
}

std::tuple<at::Tensor, at::Tensor> max_pool(const at::Tensor& features, const at::Tensor& plan,
                                            c10::SymIntArrayRef sizes) {
  check_pool(features, plan, sizes);
  check_memory(kPool, {{"features", features}, {"plan", plan}});
  if (backend() == Backend::reference && !features.is_cpu()) {
    const auto [values, arg] = max_pool(features.cpu(), plan.cpu(), sizes);
    return {values.to(features.device()), arg.to(features.device())};
  }
  const c10::DeviceGuard guard(features.device());
  const PlanMeta description = known_plan(sizes);
  const at::Tensor x = features.contiguous();
  const at::Tensor values = at::zeros({description.target_rows(), x.size(1)}, x.options());
  const at::Tensor arg = at::full(values.sizes(), -1, x.options().dtype(at::kLong));
  kernels::MaxPoolArgs args;
  args.type = scalar_type(kPool, "features", x.scalar_type());
  args.map = map_of(description, plan.const_data_ptr<std::int32_t>());
  args.channels = x.size(1);
  args.x = x.const_data_ptr();
  args.y = values.mutable_data_ptr();
  args.arg = arg.mutable_data_ptr<std::int64_t>();
  with_kernels(x, [&](auto kernels, auto executor) { kernels.max(executor, args); });
  return {values, arg};
}

at::Tensor max_pool_grad(const at::Tensor& grad, const at::Tensor& arg, const at::Tensor& plan,
                         c10::SymIntArrayRef sizes) {
  check_pool_grad(grad, arg, plan, sizes);
  check_memory(kPoolGrad, {{"grad", grad}, {"arg", arg}, {"plan", plan}});
  if (backend() == Backend::reference && !grad.is_cpu()) {
    return max_pool_grad(grad.cpu(), arg.cpu(), plan.cpu(), sizes).to(grad.device());
  }
  const c10::DeviceGuard guard(grad.device());
  const PlanMeta description = known_plan(sizes);
  const at::ScalarType sum = sum_type(grad.scalar_type());
  const at::Tensor g = grad.to(sum).contiguous();
  const at::Tensor indices = arg.contiguous();
  const at::Tensor out = at::zeros({description.source_rows(), g.size(1)}, g.options());
  kernels::MaxPoolGradArgs args;
  args.type = scalar_type(kPoolGrad, "grad", sum);
  args.map = map_of(description, plan.const_data_ptr<std::int32_t>());
  args.channels = g.size(1);
  args.grad = g.const_data_ptr();
  args.arg = indices.const_data_ptr<std::int64_t>();
  args.out = out.mutable_data_ptr();
  with_kernels(g, [&](auto kernels, auto executor) { kernels.max_grad(executor, args); });
  return out.to(grad.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> max_pool_meta(const at::Tensor& features, const at::Tensor& plan,
                                                 c10::SymIntArrayRef sizes) {
  const c10::SymDimVector dims{check_pool(features, plan, sizes).target_rows, features.sym_size(1)};
  return {at::empty_symint(dims, features.options()), at::empty_symint(dims, features.options().dtype(at::kLong))};
}

at::Tensor max_pool_grad_meta(const at::Tensor& grad, const at::Tensor& arg, const at::Tensor& plan,
                              c10::SymIntArrayRef sizes) {
  return at::empty_symint({check_pool_grad(grad, arg, plan, sizes).source_rows, grad.sym_size(1)}, grad.options());
}

/// values[t, c] = source[arg[t, c], c], and 0 where arg is -1: the transpose of max_pool_grad.
at::Tensor taken(const at::Tensor& source, const at::Tensor& arg) {
  if (source.sym_size(0) == 0) {
    return source.new_zeros_symint(arg.sym_sizes());
  }
  return source.gather(0, arg.clamp_min(0)).masked_fill(arg.lt(0), 0);
}

using autograd::Tensors;

/// The maxima once it is known where they are: (features, arg, plan), linear in features.
class MaxPool : public autograd::LinearOp {
 public:
  explicit MaxPool(c10::SymIntArrayRef sizes) : sizes_(sizes.vec()) {}

  std::string name() const override { return kPool; }
  at::Tensor call(const Tensors& in) const override { return taken(in[0], in[1]); }
  Tensors gradients(const Tensors& in, const at::Tensor& g, const std::vector<bool>& /*wanted*/) const override {
    return {max_pool_grad_op().call(g, in[1], in[2], sizes_), at::Tensor(), at::Tensor()};
  }

 private:
  std::vector<c10::SymInt> sizes_;
};

/// (grad, arg, plan), linear in grad.
class MaxPoolGrad : public autograd::LinearOp {
 public:
  explicit MaxPoolGrad(c10::SymIntArrayRef sizes) : sizes_(sizes.vec()) {}

  std::string name() const override { return kPoolGrad; }
  at::Tensor call(const Tensors& in) const override { return max_pool_grad_op().call(in[0], in[1], in[2], sizes_); }
  Tensors gradients(const Tensors& in, const at::Tensor& g, const std::vector<bool>& /*wanted*/) const override {
    return {taken(g, in[1]), at::Tensor(), at::Tensor()};
  }
  bool reads(std::size_t /*i*/, std::size_t j) const override { return j == 1; }

 private:
  std::vector<c10::SymInt> sizes_;
};

std::tuple<at::Tensor, at::Tensor> max_pool_autograd(c10::DispatchKeySet keys, const at::Tensor& features,
                                                     const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  const auto [maxima, arg] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return max_pool_op().redispatch(keys & c10::after_autograd_keyset, features, plan, sizes);
  }();
  const at::Tensor values = autograd::differentiable(
      {features, arg, plan}, [&] { return std::make_shared<MaxPool>(sizes); }, [&maxima = maxima] { return maxima; });
  return {values, arg};
}

at::Tensor max_pool_grad_autograd(c10::DispatchKeySet keys, const at::Tensor& grad, const at::Tensor& arg,
                                  const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  return autograd::differentiable(
      {grad, arg, plan}, [&] { return std::make_shared<MaxPoolGrad>(sizes); },
      [&] { return max_pool_grad_op().redispatch(keys & c10::after_autograd_keyset, grad, arg, plan, sizes); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(m, "sparse_max_pool(Tensor features, Tensor plan, SymInt[] sizes) -> (Tensor, Tensor)",
                  {at::Tag::pt2_compliant_tag});
  define_dense_op(m, "sparse_max_pool_grad(Tensor grad, Tensor arg, Tensor plan, SymInt[] sizes) -> Tensor",
                  {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) {
  m.impl("sparse_max_pool", max_pool);
  m.impl("sparse_max_pool_grad", max_pool_grad);
}
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) {
  m.impl("sparse_max_pool", max_pool);
  m.impl("sparse_max_pool_grad", max_pool_grad);
}
TORCH_LIBRARY_IMPL(lacewing, Meta, m) {
  m.impl("sparse_max_pool", max_pool_meta);
  m.impl("sparse_max_pool_grad", max_pool_grad_meta);
}
TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("sparse_max_pool", max_pool_autograd);
  m.impl("sparse_max_pool_grad", max_pool_grad_autograd);
}

}  // namespace lacewing::conv
