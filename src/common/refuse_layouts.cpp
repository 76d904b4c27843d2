// Tensors that are not strided memory (sparse, quantized, nested, of oneDNN): one sentence in place of a missing
// kernel.
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include "product/calls.h"

namespace lacewing {
namespace {

/// What a tensor is, where the kernels cannot read it.
std::string refusal(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "";
  }
  if (tensor.is_nested()) {
    return "a nested one";
  }
  if (tensor.is_quantized()) {
    return "a quantized one";
  }
  return tensor.layout() == at::kStrided ? "" : "one of layout " + c10::str(tensor.layout());
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::string name = op.schema().name().substr(std::string("lacewing::").size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    const std::string what = value.isTensor() ? refusal(value.toTensor()) : "";
    TORCH_CHECK(what.empty(), "[lacewing.", name, "] ", arguments[i].name(), " must be a dense tensor, not ", what);
  }
  TORCH_CHECK(false, "[lacewing.", name, "] all tensors must be dense");
}

void register_refusals(torch::Library& m) {
  std::vector<std::string> names{"gather_rows",           "scatter_add_rows",      "product_scale_grad",
                                 "product_workspace",     "indexed_scale_segment", "indexed_scale_segment_out",
                                 "sparse_conv",           "sparse_conv_plan",      "sparse_conv_unit",
                                 "sparse_conv_workspace", "sparse_max_pool",       "sparse_max_pool_grad",
                                 "unique_voxels"};
  for (std::size_t i = 0; i < products::kTraits.size(); ++i) {
    const auto kind = static_cast<products::Kind>(i);
    names.emplace_back(products::kTraits[i].name);
    if (kind != products::Kind::scale) {
      names.push_back(products::raw_name(kind));
    }
  }
  for (const std::string& name : names) {
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, SparseCPU, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, SparseCUDA, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, SparseCsrCPU, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, SparseCsrCUDA, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, QuantizedCPU, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, QuantizedCUDA, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, MkldnnCPU, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, NestedTensorCPU, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, NestedTensorCUDA, m) { register_refusals(m); }
TORCH_LIBRARY_IMPL(lacewing, AutogradNestedTensor, m) { register_refusals(m); }

}  // namespace lacewing
