// The ops on CPU and CUDA: from tensors to the kernels' arguments; and their shapes on Meta.
#include <ATen/Parallel.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/promote_types.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "common/stream.h"
#include "index/device_plans.h"
#include "product/calls.h"
#include "product/kernel_args.h"
#include "product/plan_fields.h"
#include "product/plan_ops.h"
#include "product/shape.h"
#include "structure/plan_builder.h"

namespace lacewing::products {
namespace {

using kernels::ProductArgs;
using structure::PlanMeta;

constexpr const char* kScaleGrad = "product_scale_grad";

void run(const ProductArgs& args, const at::Tensor& z) {
  if (backend() == Backend::reference) {
    return kernels::reference::product(args);
  }
  if (z.is_cuda()) {
    const at::Tensor space = workspace(kernels::cuda::product_workspace(args), z);
    return kernels::cuda::product(args, current_stream(z.device()), data_of(space));
  }
  const CpuExecutor executor = torch_executor();
  const at::Tensor space = workspace(kernels::cpu::product_workspace(args, executor.max_threads()), z);
  kernels::cpu::product(args, executor, data_of(space));
}

void run(const kernels::ScaleGradArgs& args, const at::Tensor& out) {
  if (backend() == Backend::reference) {
    return kernels::reference::scale_grad(args);
  }
  if (out.is_cuda()) {
    const at::Tensor space = workspace(kernels::cuda::scale_grad_workspace(args), out);
    return kernels::cuda::scale_grad(args, current_stream(out.device()), data_of(space));
  }
  const CpuExecutor executor = torch_executor();
  const at::Tensor space = workspace(kernels::cpu::scale_grad_workspace(args, executor.max_threads()), out);
  kernels::cpu::scale_grad(args, executor, data_of(space));
}

/// The reference backend works on the host, whatever the device.
bool on_host(const at::Tensor& tensor) { return backend() == Backend::reference && !tensor.is_cpu(); }

at::Tensor host(const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

OptionalTensor host(const OptionalTensor& tensor) { return tensor ? OptionalTensor(tensor->cpu()) : std::nullopt; }

at::Tensor cast(const at::Tensor& tensor, at::ScalarType type) { return tensor.defined() ? tensor.to(type) : tensor; }

at::ScalarType common_type(const at::Tensor& x, const at::Tensor& y) {
  return y.defined() ? result_dtype(x, y) : x.scalar_type();
}

/// The shape of sparse scale's input with its leading dims as one.
at::DimVector batch_sizes(const at::Tensor& tensor) {
  const at::IntArrayRef leading = tensor.sizes().slice(0, static_cast<std::size_t>(tensor.dim() - 2));
  return {c10::multiply_integers(leading), tensor.size(-2), tensor.size(-1)};
}

/// Leading dims of sparse scale as one: a view where their strides allow it, else a copy.
at::Tensor as_batch(const at::Tensor& tensor) {
  return tensor.dim() == 3 ? tensor : tensor.reshape(batch_sizes(tensor));
}

/// The bytes of that copy.
std::int64_t batch_copy_bytes(const at::Tensor& tensor) {
  const bool view = tensor.dim() <= 3 || tensor.numel() == 0 ||
                    at::detail::computeStride(tensor.sizes(), tensor.strides(), batch_sizes(tensor)).has_value();
  return view ? 0 : static_cast<std::int64_t>(tensor.nbytes());
}

/// The plan of the value alone.
Plan value_plan(const char* op, at::TensorList plan, c10::SymIntArrayRef sizes) {
  return read_plans(op, plan, sizes)[0];
}

/// A plan on the host.
Plan host(const Plan& plan) { return {plan.array->cpu(), plan.sizes}; }

at::Tensor forward(Kind kind, const at::Tensor& x, const at::Tensor& y, const OptionalTensor& scale, const Plan& plan,
                   bool accumulated) {
  const ProductShape shape = check_product(kind, x, y, scale, plan, accumulated);
  check_memory(traits(kind).name, {{kind == Kind::scale ? "input" : "input1", x},
                                   {"input2", y},
                                   {"scale", scale.value_or(at::Tensor())},
                                   {"the info", *plan.array}});
  if (on_host(x)) {
    return forward(kind, host(x), host(y), host(scale), host(plan), accumulated).to(x.device());
  }
  const c10::DeviceGuard guard(x.device());
  const at::ScalarType type = common_type(x, y);
  const at::Tensor z = empty_result(C10_AS_INTARRAYREF_SLOW(shape.output(traits(kind).z)), x.options().dtype(type));
  if (z.numel() == 0) {
    return z;
  }
  if (shape.batch == 0 || shape.extent_a == 0 || shape.extent_b == 0) {
    return z.zero_();
  }
  const at::Tensor typed_x = channels_together(kind, cast(x, type), traits(kind).x);
  const at::Tensor typed_y = channels_together(kind, cast(y, type), traits(kind).y);
  const at::Tensor typed_scale = scale ? cast(*scale, type).contiguous() : at::Tensor();
  ProductArgs args = arguments(kind, shape, typed_x, typed_y, *plan.array, accumulated);
  args.z = operand(z, shape.z_batched, traits(kind).z);
  args.scale = typed_scale.defined() ? typed_scale.const_data_ptr() : nullptr;
  args.conjugate_scale = typed_scale.defined() && typed_scale.is_conj();
  run(args, z);
  return z;
}

template <Kind kind>
at::Tensor product(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale, at::TensorList plan,
                   c10::SymIntArrayRef sizes, bool out_accumulated) {
  return forward(kind, input1, input2, scale, value_plan(traits(kind).name, plan, sizes), out_accumulated);
}

at::Tensor scale_op(const at::Tensor& input, const OptionalTensor& scale, at::TensorList plan,
                    c10::SymIntArrayRef sizes) {
  const Plan value = value_plan(traits(Kind::scale).name, plan, sizes);
  check_product(Kind::scale, input, {}, scale, value, false);
  const at::Tensor z = forward(Kind::scale, as_batch(input), {}, scale, value, false);
  if (input.dim() == 3) {
    return z;
  }
  at::DimVector dims(input.sizes());
  dims[dims.size() - 2] = z.size(1);
  return z.view(dims);
}

at::Tensor scale_grad(Kind kind, const at::Tensor& input1, const OptionalTensor& input2, const at::Tensor& grad,
                      const Plan& plan, bool out_accumulated) {
  check_memory(
      kScaleGrad,
      {{"input1", input1}, {"input2", input2.value_or(at::Tensor())}, {"grad", grad}, {"the info", *plan.array}});
  if (on_host(input1)) {
    return scale_grad(kind, host(input1), host(input2), host(grad), host(plan), out_accumulated).to(input1.device());
  }
  const bool unary = kind == Kind::scale;
  const at::Tensor x = unary ? as_batch(input1) : input1;
  const at::Tensor y = input2.value_or(at::Tensor());
  const at::Tensor g = unary ? as_batch(grad) : grad;
  const ProductShape shape = check_product(kind, x, y, std::nullopt, plan, out_accumulated);
  check_grad(kind, shape, x, g);
  const c10::DeviceGuard guard(x.device());
  const at::ScalarType type = at::promote_types(common_type(x, y), g.scalar_type());
  const at::Tensor out = empty_result({shape.plan.entries.expect_int()}, x.options().dtype(type));
  if (out.numel() == 0 || shape.batch == 0 || shape.extent_a == 0 || shape.extent_b == 0) {
    return out.zero_();
  }
  const at::Tensor typed_x = cast(x, type);
  const at::Tensor typed_y = cast(y, type);
  const at::Tensor typed_grad = cast(g, type);
  kernels::ScaleGradArgs args{arguments(kind, shape, typed_x, typed_y, *plan.array, false), out.mutable_data_ptr()};
  args.product.z = operand(typed_grad, shape.z_batched, traits(kind).z);
  run(args, out);
  return out;
}

at::Tensor scale_grad_op(std::int64_t kind, const at::Tensor& input1, const OptionalTensor& input2,
                         const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes, bool out_accumulated) {
  return scale_grad(kind_of(kScaleGrad, kind), input1, input2, grad, value_plan(kScaleGrad, plan, sizes),
                    out_accumulated);
}

std::int64_t product_workspace(std::int64_t kind_number, const at::Tensor& input1, const OptionalTensor& input2,
                               at::TensorList arrays, c10::SymIntArrayRef sizes, bool out_accumulated) {
  const Kind kind = kind_of("product_workspace", kind_number);
  const Plan plan = value_plan("product_workspace", arrays, sizes);
  const at::Tensor y = input2.value_or(at::Tensor());
  const ProductShape given = check_product(kind, input1, y, std::nullopt, plan, out_accumulated);
  std::int64_t copied = kind == Kind::scale ? batch_copy_bytes(input1) : 0;
  if (backend() == Backend::reference || given.batch == 0) {
    return copied;
  }
  const at::Tensor x = kind == Kind::scale ? as_batch(input1) : input1;
  const ProductShape shape = check_product(kind, x, y, std::nullopt, plan, out_accumulated);
  ProductArgs args = arguments(kind, shape, x, y, *plan.array, out_accumulated);
  for (const auto& [tensor, channels] : {std::pair(x, traits(kind).x), std::pair(y, traits(kind).y)}) {
    if (has_channels_apart(kind, tensor, channels)) {
      copied += tensor.numel() * tensor.element_size();
      args.x.stride_a = 1;
    }
  }
  return copied + (input1.is_cuda() ? kernels::cuda::product_workspace(args)
                                    : kernels::cpu::product_workspace(args, torch_executor().max_threads()));
}

PlanSizes check_derivable(const at::Tensor& plan, c10::SymIntArrayRef sizes, std::int64_t view, const c10::SymInt& rows,
                          bool unary) {
  PlanSizes from = read_sizes("derive_plan", sizes);
  TORCH_CHECK(view == 1 || (view == 2 && !unary), "[lacewing.derive_plan] view must be 1 or 2, not ", view);
  TORCH_CHECK(!from.is_dynamic() && from.terms >= 0 && from.rows >= 0 && plan.sym_numel() == from.length(),
              "[lacewing.derive_plan] sizes do not describe the plan");
  const c10::SymInt& needed = view == 1 ? from.need1 : from.need2;
  const char* const size = unary ? "in_size" : view == 1 ? "in1_size" : "in2_size";
  TORCH_CHECK(rows <= kLargestSize, "[lacewing.derive_backward] ", size, " must lie in [0, ", kLargestSize, "], not ",
              rows);
  TORCH_CHECK(rows >= needed, "[lacewing.derive_backward] ", size, " is ", rows, " but ",
              unary       ? "index"
              : view == 1 ? "index1"
                          : "index2",
              " reaches ", needed - 1);
  return from;
}

at::Tensor derive_plan(const at::Tensor& plan, c10::SymIntArrayRef sizes, std::int64_t view, c10::SymInt symbolic_rows,
                       bool unary) {
  const PlanMeta from = known(check_derivable(plan, sizes, view, symbolic_rows, unary));
  const std::int64_t rows = symbolic_rows.expect_int();
  const auto which = static_cast<structure::View>(view);
  const PlanMeta derived = structure::derived_meta(from, which, rows, unary);
  if (plan.is_cuda()) {
    return index::derive(from, plan, which, rows, unary);
  }
  return with_memory("[lacewing.derive_backward] ", [&] {
    const at::Tensor out = empty_result({derived.length()}, plan.options());
    structure::derive(from, plan.const_data_ptr(), which, rows, unary, out.mutable_data_ptr(), torch_executor());
    return out;
  });
}

at::Tensor empty_like_plan(const at::Tensor& x, const ProductShape& shape, Channels z, at::ScalarType type) {
  return at::empty_symint(shape.output(z), x.options().dtype(type));
}

template <Kind kind>
at::Tensor product_meta(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
                        at::TensorList plan, c10::SymIntArrayRef sizes, bool out_accumulated) {
  const Plan value = value_plan(traits(kind).name, plan, sizes);
  const ProductShape shape = check_product(kind, input1, input2, scale, value, out_accumulated);
  return empty_like_plan(input1, shape, traits(kind).z, common_type(input1, input2));
}

at::Tensor scale_op_meta(const at::Tensor& input, const OptionalTensor& scale, at::TensorList plan,
                         c10::SymIntArrayRef sizes) {
  const Plan value = value_plan(traits(Kind::scale).name, plan, sizes);
  const ProductShape shape = check_product(Kind::scale, input, {}, scale, value, false);
  c10::SymDimVector dims(input.sym_sizes());
  dims[dims.size() - 2] = shape.plan.rows;
  return at::empty_symint(dims, input.options());
}

at::Tensor scale_grad_meta(std::int64_t kind, const at::Tensor& input1, const OptionalTensor& input2,
                           const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                           bool out_accumulated) {
  const at::Tensor y = input2.value_or(at::Tensor());
  const Plan value = value_plan(kScaleGrad, plan, sizes);
  const ProductShape shape = check_product(kind_of(kScaleGrad, kind), input1, y, std::nullopt, value, out_accumulated);
  TORCH_CHECK(grad.device() == input1.device(), "[lacewing.", kScaleGrad, "] grad is on ", grad.device(),
              " but input1 is on ", input1.device());
  const at::ScalarType type = at::promote_types(common_type(input1, y), grad.scalar_type());
  return at::empty_symint({shape.plan.entries}, input1.options().dtype(type));
}

at::Tensor derive_plan_meta(const at::Tensor& plan, c10::SymIntArrayRef sizes, std::int64_t view, c10::SymInt rows,
                            bool unary) {
  const PlanSizes from = check_derivable(plan, sizes, view, rows, unary);
  return at::empty_symint({structure::derived_meta(from, static_cast<structure::View>(view), rows, unary).length()},
                          plan.options());
}

template <std::size_t... Kinds>
void register_device(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(traits(static_cast<Kind>(Kinds)).name, product<static_cast<Kind>(Kinds)>), ...);
  m.impl("sparse_scale", scale_op);
  m.impl(kScaleGrad, scale_grad_op);
  m.impl("product_workspace", product_workspace);
  m.impl("derive_plan", derive_plan);
}

template <std::size_t... Kinds>
void register_meta(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(traits(static_cast<Kind>(Kinds)).name, product_meta<static_cast<Kind>(Kinds)>), ...);
  m.impl("sparse_scale", scale_op_meta);
  m.impl(kScaleGrad, scale_grad_meta);
  m.impl("derive_plan", derive_plan_meta);
}

using Products = std::make_index_sequence<kProducts>;

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, CPU, m) { register_device(m, Products{}); }
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) { register_device(m, Products{}); }
TORCH_LIBRARY_IMPL(lacewing, Meta, m) { register_meta(m, Products{}); }

// The kernels read conjugated operands in place.
TORCH_LIBRARY_IMPL(lacewing, Conjugate, m) {
  for (const KindTraits& op : kTraits) {
    m.impl(op.name, torch::CppFunction::makeFallthrough());
  }
  m.impl(kScaleGrad, torch::CppFunction::makeFallthrough());
}

}  // namespace lacewing::products
