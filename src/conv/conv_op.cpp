// sparse_conv and sparse_conv_weight_grad: schemas, the choice of algorithm and kernels on CPU and CUDA, shapes on
// Meta, and the autocast dtype.
#include <ATen/autocast_mode.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "common/results.h"
#include "common/stream.h"
#include "conv/check.h"
#include "conv/finish.h"
#include "conv/gather_gemm_scatter.h"
#include "conv/plan_tables.h"
#include "kernels/conv_device.h"

namespace lacewing::conv {
namespace {

using kernels::ConvArgs;
using kernels::ConvWeightGradArgs;

/// Rows whose channels lie side by side, as the kernels read them; anything else is copied.
at::Tensor dense_rows(const at::Tensor& tensor) {
  const bool dense = tensor.size(1) <= 1 || tensor.stride(1) == 1;
  return dense && tensor.stride(0) >= 0 ? tensor : tensor.contiguous();
}

/// What runs a call: the reference, the tiles of the CPU, the tensor cores of a CUDA device where they have a kernel
/// for it, or gather-GEMM-scatter.
enum class Path { reference, tiles, tensor_cores, gemm };

Path path_of(const char* op, const PlanMeta& plan, const at::Tensor& features) {
  if (backend() == Backend::reference) {
    return Path::reference;
  }
  const auto algorithm = static_cast<Algorithm>(plan.algorithm);
  if (features.is_cpu()) {
    return algorithm == Algorithm::gather_gemm_scatter ? Path::gemm : Path::tiles;
  }
  TORCH_CHECK(algorithm != Algorithm::tiles, "[lacewing.", op,
              "] the plan asks for the algorithm tiles, which runs on the CPU only: choose automatic or "
              "gather_gemm_scatter");
  return algorithm == Algorithm::gather_gemm_scatter ? Path::gemm : Path::tensor_cores;
}

GemmConv gemm_of(const ConvShape& shape, const PlanMeta& meta, const at::Tensor& plan, bool transposed) {
  return {map_of(meta, plan.const_data_ptr<std::int32_t>()),
          meta.longest_tap,
          shape.groups.expect_int(),
          shape.in.expect_int(),
          shape.out.expect_int(),
          transposed};
}

/// What the arguments of both kernels share. `meta` must outlive them.
template <typename Args>
Args shared_args(const char* op, const ConvShape& shape, const PlanMeta& meta, const at::Tensor& x,
                 const at::Tensor& plan) {
  Args args;
  args.type = scalar_type(op, "features", x.scalar_type());
  args.map = map_of(meta, plan.const_data_ptr<std::int32_t>());
  args.groups = shape.groups.expect_int();
  args.in = shape.in.expect_int();
  args.out = shape.out.expect_int();
  args.x = x.const_data_ptr();
  args.x_stride = x.stride(0);
  return args;
}

ConvArgs conv_args(const ConvShape& shape, const PlanMeta& meta, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& plan, bool transposed) {
  auto args = shared_args<ConvArgs>("sparse_conv", shape, meta, x, plan);
  args.weight = weight.const_data_ptr();
  args.transposed = transposed;
  return args;
}

/// `residual` has dense rows.
kernels::ConvFinish finish_args(const Finish& finish, const at::Tensor& residual) {
  kernels::ConvFinish args;
  if (finish.scale.defined()) {
    args.scale = finish.scale.const_data_ptr();
    args.shift = finish.shift.const_data_ptr();
  }
  if (residual.defined()) {
    args.residual = residual.const_data_ptr();
    args.residual_stride = residual.stride(0);
  }
  args.relu = finish.relu;
  return args;
}

ConvWeightGradArgs weight_grad_args(const ConvShape& shape, const PlanMeta& meta, const at::Tensor& x,
                                    const at::Tensor& grad, const at::Tensor& plan) {
  auto args = shared_args<ConvWeightGradArgs>("sparse_conv_weight_grad", shape, meta, x, plan);
  args.grad = grad.const_data_ptr();
  args.grad_stride = grad.stride(0);
  return args;
}

/// Calls f(workspace) with so many bytes on the device of the operands, or with null where none are needed.
template <typename F>
void with_workspace(const at::Tensor& like, std::int64_t bytes, F&& f) {
  const at::Tensor space = bytes > 0 ? empty_result({bytes}, like.options().dtype(at::kByte)) : at::Tensor();
  f(bytes > 0 ? space.mutable_data_ptr() : nullptr);
}

at::Tensor conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed) {
  return run_conv(features, weight, bias, plan, sizes, transposed, {});
}

at::Tensor weight_grad(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                       c10::SymIntArrayRef sizes, std::int64_t groups) {
  const ConvShape shape = check_weight_grad(features, grad, plan, sizes, groups);
  const PlanMeta meta = known_plan(sizes);
  check_memory("sparse_conv_weight_grad", {{"features", features}, {"grad", grad}, {"plan", plan}});
  const Path path = path_of("sparse_conv_weight_grad", meta, features);
  if (path == Path::reference && !features.is_cpu()) {
    return weight_grad(features.cpu(), grad.cpu(), plan.cpu(), sizes, groups).to(features.device());
  }
  const at::Tensor x = dense_rows(features);
  const at::Tensor g = dense_rows(grad);
  const c10::DeviceGuard guard(x.device());
  ConvWeightGradArgs args = weight_grad_args(shape, meta, x, g, plan);
  if (path == Path::gemm || (path == Path::tensor_cores && !kernels::cuda::has_conv_weight_grad(args))) {
    return gemm_of(shape, meta, plan, false).weight_grad(x, g);
  }
  const at::Tensor out = empty_result({args.map.taps, groups, args.in, args.out}, x.options());
  if (out.numel() == 0) {
    return out;
  }
  args.weight_grad = out.mutable_data_ptr();
  if (path == Path::tensor_cores) {
    with_workspace(x, kernels::cuda::conv_weight_grad_workspace(args),
                   [&](void* space) { kernels::cuda::conv_weight_grad(args, current_stream(x.device()), space); });
    return out;
  }
  if (path == Path::reference) {
    kernels::reference::conv_weight_grad(args);
    return out;
  }
  const CpuExecutor executor = torch_executor();
  with_workspace(x, kernels::cpu::conv_weight_grad_workspace(args, executor.max_threads()),
                 [&](void* space) { kernels::cpu::conv_weight_grad(args, executor, space); });
  return out;
}

at::Tensor conv_meta(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                     const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed) {
  const ConvShape shape = check_conv(features, weight, bias, plan, sizes, transposed);
  return at::empty_symint({shape.plan.target_rows, shape.groups * shape.out}, features.options());
}

at::Tensor weight_grad_meta(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                            c10::SymIntArrayRef sizes, std::int64_t groups) {
  const ConvShape shape = check_weight_grad(features, grad, plan, sizes, groups);
  return at::empty_symint({shape.plan.taps, shape.groups, shape.in, shape.out}, features.options());
}

std::int64_t conv_workspace(const at::Tensor& features, const at::Tensor& weight, const at::Tensor& plan,
                            c10::SymIntArrayRef sizes, bool transposed) {
  const ConvShape shape = check_conv(features, weight, std::nullopt, plan, sizes, transposed);
  const PlanMeta meta = known_plan(sizes);
  const c10::DeviceGuard guard(features.device());
  const ConvArgs args = conv_args(shape, meta, features, weight, plan, transposed);
  const Path path = path_of("sparse_conv", meta, features);
  if (path == Path::reference) {
    return 0;
  }
  if (path == Path::tiles) {
    return kernels::cpu::conv_workspace(args, torch_executor().max_threads());
  }
  return path == Path::tensor_cores && kernels::cuda::has_conv(args)
             ? kernels::cuda::conv_workspace(args)
             : gemm_of(shape, meta, plan, transposed).workspace(features.scalar_type());
}

std::int64_t weight_grad_workspace(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                                   c10::SymIntArrayRef sizes, std::int64_t groups) {
  const ConvShape shape = check_weight_grad(features, grad, plan, sizes, groups);
  const PlanMeta meta = known_plan(sizes);
  const c10::DeviceGuard guard(features.device());
  const ConvWeightGradArgs args = weight_grad_args(shape, meta, features, grad, plan);
  const Path path = path_of("sparse_conv_weight_grad", meta, features);
  if (path == Path::reference) {
    return 0;
  }
  if (path == Path::tiles) {
    return kernels::cpu::conv_weight_grad_workspace(args, torch_executor().max_threads());
  }
  return path == Path::tensor_cores && kernels::cuda::has_conv_weight_grad(args)
             ? kernels::cuda::conv_weight_grad_workspace(args)
             : gemm_of(shape, meta, plan, false).weight_grad_workspace(features.scalar_type());
}

template <c10::DeviceType device>
at::Tensor conv_autocast(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                         const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const at::Tensor& tensor) { return at::autocast::cached_cast(type, tensor, device); };
  return conv_op().call(cast(features), cast(weight), bias ? OptionalTensor(cast(*bias)) : bias, plan, sizes,
                        transposed);
}

}  // namespace

at::Tensor run_conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                    const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed, const Finish& finish) {
  const ConvShape shape = check_conv(features, weight, bias, plan, sizes, transposed);
  const PlanMeta meta = known_plan(sizes);
  check_memory("sparse_conv",
               {{"features", features}, {"weight", weight}, {"bias", bias.value_or(at::Tensor())}, {"plan", plan}});
  const Path path = path_of("sparse_conv", meta, features);
  if (path == Path::reference && !features.is_cpu()) {
    const at::Tensor y =
        conv(features.cpu(), weight.cpu(), bias ? OptionalTensor(bias->cpu()) : bias, plan.cpu(), sizes, transposed)
            .to(features.device());
    finish.apply(y);
    return y;
  }
  const at::Tensor x = dense_rows(features);
  const at::Tensor w = weight.contiguous();
  const at::Tensor b = bias ? bias->contiguous() : at::Tensor();
  const c10::DeviceGuard guard(x.device());
  const at::Tensor residual = finish.residual.defined() ? dense_rows(finish.residual) : finish.residual;
  ConvArgs args = conv_args(shape, meta, x, w, plan, transposed);
  args.bias = b.defined() ? b.const_data_ptr() : nullptr;
  args.finish = finish_args(finish, residual);
  if (path == Path::gemm || (path == Path::tensor_cores && !kernels::cuda::has_conv(args))) {
    const at::Tensor y = gemm_of(shape, meta, plan, transposed).run(x, w, b);
    finish.apply(y);
    return y;
  }
  const at::Tensor y = empty_result({args.map.target_rows, args.groups * args.out}, x.options());
  if (y.numel() == 0) {
    return y;
  }
  args.y = y.mutable_data_ptr();
  if (path == Path::tensor_cores) {
    const CudaExecutor stream = current_stream(x.device());
    const PlanTables tables = plan_tables(plan, meta, kernels::cuda::conv_table_sizes(args), stream);
    with_workspace(x, kernels::cuda::conv_workspace(args),
                   [&](void* space) { kernels::cuda::conv(args, tables.memory, stream, space); });
    return y;
  }
  if (path == Path::reference) {
    kernels::reference::conv(args);
    return y;
  }
  const CpuExecutor executor = torch_executor();
  with_workspace(x, kernels::cpu::conv_workspace(args, executor.max_threads()),
                 [&](void* space) { kernels::cpu::conv(args, executor, space); });
  return y;
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(m,
                  "sparse_conv(Tensor features, Tensor weight, Tensor? bias, Tensor plan, SymInt[] sizes, bool "
                  "transposed=False) -> "
                  "Tensor",
                  {at::Tag::pt2_compliant_tag});
  define_dense_op(
      m, "sparse_conv_weight_grad(Tensor features, Tensor grad, Tensor plan, SymInt[] sizes, int groups) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  define_dense_op(
      m, "sparse_conv_workspace(Tensor features, Tensor weight, Tensor plan, SymInt[] sizes, bool transposed) -> int");
  define_dense_op(m,
                  "sparse_conv_weight_grad_workspace(Tensor features, Tensor grad, Tensor plan, SymInt[] sizes, int "
                  "groups) -> int");
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) {
  m.impl("sparse_conv", conv);
  m.impl("sparse_conv_weight_grad", weight_grad);
  m.impl("sparse_conv_workspace", conv_workspace);
  m.impl("sparse_conv_weight_grad_workspace", weight_grad_workspace);
}

TORCH_LIBRARY_IMPL(lacewing, CUDA, m) {
  m.impl("sparse_conv", conv);
  m.impl("sparse_conv_weight_grad", weight_grad);
  m.impl("sparse_conv_workspace", conv_workspace);
  m.impl("sparse_conv_weight_grad_workspace", weight_grad_workspace);
}

TORCH_LIBRARY_IMPL(lacewing, Meta, m) {
  m.impl("sparse_conv", conv_meta);
  m.impl("sparse_conv_weight_grad", weight_grad_meta);
}

TORCH_LIBRARY_IMPL(lacewing, AutocastCPU, m) { m.impl("sparse_conv", conv_autocast<c10::DeviceType::CPU>); }
TORCH_LIBRARY_IMPL(lacewing, AutocastCUDA, m) { m.impl("sparse_conv", conv_autocast<c10::DeviceType::CUDA>); }

}  // namespace lacewing::conv
