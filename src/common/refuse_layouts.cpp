#include "common/refuse_layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

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

/// The same of an argument: of the first such tensor in a list.
std::string refusal(const c10::IValue& value) {
  if (value.isTensor()) {
    return refusal(value.toTensor());
  }
  if (!value.isList()) {
    return "";
  }
  for (const c10::IValue& element : value.toListRef()) {
    if (const std::string what = refusal(element); !what.empty()) {
      return what;
    }
  }
  return "";
}

void check(const std::string& op, const std::string& argument, const std::string& what) {
  TORCH_CHECK(what.empty(), "[lacewing.", op, "] ", argument, " must be a dense tensor, not ", what);
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto given = [&](std::size_t i) -> const c10::IValue& {
    return (*stack)[stack->size() - arguments.size() + i];
  };
  std::string name = op.schema().name().substr(std::string("lacewing::").size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "op" && given(i).isString()) {
      name = given(i).toStringRef();  // the op works for another, whose arguments these are
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    check(name, arguments[i].name(), refusal(given(i)));
  }
  TORCH_CHECK(false, "[lacewing.", name, "] all tensors must be dense");
}

constexpr c10::DispatchKey kRefused[] = {c10::DispatchKey::SparseCPU,        c10::DispatchKey::SparseCUDA,
                                         c10::DispatchKey::SparseCsrCPU,     c10::DispatchKey::SparseCsrCUDA,
                                         c10::DispatchKey::QuantizedCPU,     c10::DispatchKey::QuantizedCUDA,
                                         c10::DispatchKey::MkldnnCPU,        c10::DispatchKey::NestedTensorCPU,
                                         c10::DispatchKey::NestedTensorCUDA, c10::DispatchKey::AutogradNestedTensor};

}  // namespace

void define_dense_op(torch::Library& m, const std::string& schema, const std::vector<at::Tag>& tags) {
  m.def(schema.c_str(), tags);
  const std::string name = schema.substr(0, schema.find('('));
  for (const c10::DispatchKey key : kRefused) {
    m.impl(name.c_str(), torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&refuse>()));
  }
}

void check_dense(const char* op, std::initializer_list<std::pair<const char*, at::Tensor>> arguments) {
  for (const auto& [argument, tensor] : arguments) {
    check(op, argument, refusal(tensor));
  }
}

}  // namespace lacewing
