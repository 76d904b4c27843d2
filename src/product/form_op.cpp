// The ops of the formula on CPU, CUDA and Meta: from tensors to the kernels' arguments.
#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "common/results.h"
#include "common/stream.h"
#include "product/form_args.h"
#include "product/form_calls.h"

namespace lacewing::products {
namespace {

using kernels::FormArgs;

constexpr const char* kOp = "product";

void run(const FormArgs& args, const at::Tensor& out) {
  if (backend() == Backend::reference) {
    return kernels::reference::form(args);
  }
  if (out.is_cuda()) {
    return kernels::cuda::form(args, current_stream(out.device()));
  }
  const CpuExecutor executor = torch_executor();
  const std::int64_t bytes = kernels::cpu::form_workspace(args, executor.max_threads());
  const at::Tensor space = bytes > 0 ? empty_result({bytes}, out.options().dtype(at::kByte)) : at::Tensor();
  kernels::cpu::form(args, executor, bytes > 0 ? space.mutable_data_ptr() : nullptr);
}

/// The role that is computed.
at::Tensor compute(const FormCall& call, const std::vector<at::Tensor>& tensors, at::TensorList plan) {
  for (int r = 0; r < call.form.count(); ++r) {
    if (const at::Tensor& tensor = tensors[static_cast<std::size_t>(r)]; tensor.defined()) {
      check_memory(kOp, role_name(call.form, r).c_str(), tensor);
    }
  }
  const at::Device device = plan[0].device();
  if (backend() == Backend::reference && !device.is_cpu()) {
    std::vector<at::Tensor> host;
    for (const at::Tensor& tensor : tensors) {
      host.push_back(tensor.defined() ? tensor.cpu() : tensor);
    }
    return compute(call, host, {plan[0].cpu(), plan[1].cpu()}).to(device);
  }
  const c10::DeviceGuard guard(device);
  const at::ScalarType type = form_dtype(call, tensors);
  const at::Tensor out = empty_result(C10_AS_INTARRAYREF_SLOW(call.shape(call.role)), plan[0].options().dtype(type));
  if (out.numel() == 0) {
    return out;
  }
  std::vector<at::Tensor> typed;
  for (const at::Tensor& tensor : tensors) {
    typed.push_back(tensor.defined() ? tensor.to(type) : tensor);
  }
  const FormArgs args = form_arguments(call, typed, plan, out);
  const bool has_gaps = static_cast<bool>(args.out.layout);
  if (has_gaps || is_empty_sum(args)) {
    out.zero_();
  }
  if (!is_empty_sum(args)) {
    run(args, out);
  }
  return out;
}

at::Tensor product(at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                   c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  const auto r = static_cast<int>(role);
  const std::vector<at::Tensor> tensors = by_role(kOp, Form::parse(kOp, form), r, operands, scale);
  return compute(check_form(kOp, form, sizes, r, tensors, plan), tensors, plan);
}

at::Tensor product_meta(at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                        c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  const auto r = static_cast<int>(role);
  const std::vector<at::Tensor> tensors = by_role(kOp, Form::parse(kOp, form), r, operands, scale);
  const FormCall call = check_form(kOp, form, sizes, r, tensors, plan);
  return at::empty_symint(call.shape(r), plan[0].options().dtype(form_dtype(call, tensors)));
}

/// Every gradient that is wanted, by f(the call that computes it, its tensors).
template <typename F>
std::vector<at::Tensor> each_gradient(at::TensorList operands, const std::optional<at::Tensor>& scale,
                                      const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                      std::string_view form, std::int64_t role, at::IntArrayRef wanted, F&& f) {
  constexpr const char* op = "product_backward";
  const std::vector<at::Tensor> tensors = by_role(op, Form::parse(op, form), static_cast<int>(role), operands, scale);
  const FormCall call = check_form(op, form, sizes, static_cast<int>(role), tensors, plan);
  const std::string settled = call.form.text();
  const std::vector<c10::SymInt> known = call.sizes.to_vector();
  const std::vector<int> read = call.read();
  std::vector<at::Tensor> gradients;
  for (const std::int64_t place : wanted) {
    TORCH_CHECK(place >= 0 && place <= static_cast<std::int64_t>(read.size()), "[lacewing.", op,
                "] wanted must lie in [0, ", read.size(), "], not ", place);
    const auto at = static_cast<std::size_t>(place);
    const int of = at < read.size() ? read[at] : call.form.scale();
    std::vector<at::Tensor> given = backward_tensors(call, tensors, grad);
    given[static_cast<std::size_t>(of)] = at::Tensor();
    gradients.push_back(f(check_form(op, settled, known, of, given, plan), given));
  }
  return gradients;
}

std::vector<at::Tensor> product_backward(at::TensorList operands, const std::optional<at::Tensor>& scale,
                                         const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                         std::string_view form, std::int64_t role, at::IntArrayRef wanted) {
  return each_gradient(
      operands, scale, grad, plan, sizes, form, role, wanted,
      [&](const FormCall& call, const std::vector<at::Tensor>& tensors) { return compute(call, tensors, plan); });
}

std::vector<at::Tensor> product_backward_meta(at::TensorList operands, const std::optional<at::Tensor>& scale,
                                              const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                              std::string_view form, std::int64_t role, at::IntArrayRef wanted) {
  return each_gradient(operands, scale, grad, plan, sizes, form, role, wanted,
                       [&](const FormCall& call, const std::vector<at::Tensor>& tensors) {
                         return at::empty_symint(call.shape(call.role),
                                                 plan[0].options().dtype(form_dtype(call, tensors)));
                       });
}

void register_device(torch::Library& m) {
  m.impl("product", product);
  m.impl("product_backward", product_backward);
}

}  // namespace

at::Tensor call_form(const FormCall& call, int role, const std::vector<at::Tensor>& tensors, at::TensorList plan) {
  std::vector<at::Tensor> operands;
  for (int r = 0; r <= call.form.output(); ++r) {
    if (r != role) {
      operands.push_back(tensors[static_cast<std::size_t>(r)]);
    }
  }
  const bool scaled = role != call.form.scale() && tensors.back().defined();
  return form_op().call(operands, scaled ? std::optional<at::Tensor>(tensors.back()) : std::nullopt, plan,
                        call.sizes.to_vector(), call.form.text(), role);
}

std::vector<at::Tensor> backward_tensors(const FormCall& call, std::vector<at::Tensor> tensors,
                                         const at::Tensor& grad) {
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.defined() ? tensor.conj() : tensor;
  }
  tensors[static_cast<std::size_t>(call.role)] = grad;
  return tensors;
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(
      m, "product(Tensor[] operands, Tensor? scale, Tensor[] plan, SymInt[] sizes, str form, int role) -> Tensor");
  define_dense_op(
      m,
      "product_backward(Tensor[] operands, Tensor? scale, Tensor grad, Tensor[] plan, SymInt[] sizes, str form, "
      "int role, int[] wanted) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) { register_device(m); }
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) { register_device(m); }
TORCH_LIBRARY_IMPL(lacewing, Meta, m) {
  m.impl("product", product_meta);
  m.impl("product_backward", product_backward_meta);
}

// The kernels read conjugated operands in place.
TORCH_LIBRARY_IMPL(lacewing, Conjugate, m) {
  m.impl("product", torch::CppFunction::makeFallthrough());
  m.impl("product_backward", torch::CppFunction::makeFallthrough());
}

}  // namespace lacewing::products
