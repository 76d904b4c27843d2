// vmap of the formula: the dim that is mapped is one more letter, of every role that has it and of what is computed.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "common/batched.h"
#include "product/form_calls.h"

namespace lacewing::products {
namespace {

at::Tensor product(at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                   c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  constexpr const char* op = "product";
  std::vector<at::Tensor> all = operands.vec();
  all.push_back(scale.value_or(at::Tensor()));
  const BatchScope scope{at::TensorList(all)};
  const auto r = static_cast<int>(role);
  const Form plain = Form::parse(op, form);
  const std::vector<at::Tensor> given = by_role(op, plain, r, operands, scale);
  const FormCall checked = check_form(op, form, sizes, r, given, plan);
  FormCall mapped = checked;
  const char letter = checked.form.unused_letter(op);
  c10::SymInt extent = FormSizes::kUnknown;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < checked.form.count(); ++i) {
    const Batched tensor = scope.unwrap(given[static_cast<std::size_t>(i)]);
    tensors.push_back(tensor.batched ? tensor.value.movedim(0, -1) : tensor.value);
    if (tensor.batched) {
      mapped.form.role(i).letters += letter;
      extent = tensor.value.sym_size(0);
    }
  }
  if (extent.maybe_as_int() == FormSizes::kUnknown) {
    return call_form(checked, r, tensors, plan);
  }
  mapped.form.role(r).letters += letter;
  const std::string letters = mapped.form.letters();
  mapped.sizes.extents.clear();
  for (const char each : letters) {
    mapped.sizes.extents.push_back(each == letter ? extent : checked.extent(each));
  }
  const at::Tensor result = call_form(mapped, r, tensors, plan);
  return scope.wrap(result, result.dim() - 1);
}

/// Each gradient by itself.
std::vector<at::Tensor> product_backward(at::TensorList operands, const std::optional<at::Tensor>& scale,
                                         const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                         std::string_view form, std::int64_t role, at::IntArrayRef wanted) {
  constexpr const char* op = "product_backward";
  const auto r = static_cast<int>(role);
  const std::vector<at::Tensor> tensors = by_role(op, Form::parse(op, form), r, operands, scale);
  const FormCall call = check_form(op, form, sizes, r, tensors, plan);
  const std::vector<int> read = call.read();
  std::vector<at::Tensor> gradients;
  for (const std::int64_t place : wanted) {
    const auto at = static_cast<std::size_t>(place);
    gradients.push_back(
        call_form(call, at < read.size() ? read[at] : call.form.scale(), backward_tensors(call, tensors, grad), plan));
  }
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) {
  m.impl("product", product);
  m.impl("product_backward", product_backward);
}

}  // namespace lacewing::products
