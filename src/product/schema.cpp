// The registered ops of the product algebra. `plan` and `sizes` are one argument: see plans.h.
#include <string>

#include <torch/library.h>

#include "common/refuse_layouts.h"
#include "common/typed_op.h"
#include "product/calls.h"

namespace lacewing::products {
namespace {

constexpr const char* kPlan = "Tensor[] plan, SymInt[] sizes";

/// The handles of a family of ops, one for each product.
template <typename Signature, typename Name>
std::vector<c10::TypedOperatorHandle<Signature>> handles(Name&& name) {
  std::vector<c10::TypedOperatorHandle<Signature>> all;
  for (std::int64_t i = 0; i < kProducts; ++i) {
    all.push_back(find_op<Signature>(name(static_cast<Kind>(i))));
  }
  return all;
}

OptionalTensor optional(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

}  // namespace

at::Tensor call_product(Kind kind, const at::Tensor& x, const at::Tensor& y, const OptionalTensor& scale,
                        const Plans& plans, bool accumulated) {
  const PlanArguments all(plans);
  if (kind == Kind::scale) {
    return typed_op<"sparse_scale", ScaleSignature>().call(x, scale, all.plan, all.sizes);
  }
  static const auto ops = handles<ProductSignature>([](Kind k) { return traits(k).name; });
  return ops[static_cast<std::size_t>(kind)].call(x, y, scale, all.plan, all.sizes, accumulated);
}

std::string raw_name(Kind kind) {
  return "indexed_" + std::string(traits(kind).name).substr(std::string_view("sparse_").size()) + "_scale_gather";
}

const c10::TypedOperatorHandle<RawSignature>& raw_handle(Kind kind) {
  static const auto ops = handles<RawSignature>(raw_name);
  return ops[static_cast<std::size_t>(kind)];
}

at::Tensor call_scale_grad(Kind kind, const at::Tensor& x, const at::Tensor& y, const at::Tensor& grad,
                           const Plans& plans, bool accumulated) {
  const PlanArguments all(plans);
  return typed_op<"product_scale_grad", ScaleGradSignature>().call(static_cast<std::int64_t>(kind), x, optional(y),
                                                                   grad, all.plan, all.sizes, accumulated);
}

std::vector<at::Tensor> call_product_backward(Kind kind, const at::Tensor& x, const at::Tensor& y,
                                              const OptionalTensor& scale, const at::Tensor& grad, const Plans& plans,
                                              bool accumulated, at::IntArrayRef wanted) {
  const PlanArguments all(plans);
  return typed_op<"sparse_product_backward", ProductBackwardSignature>().call(
      static_cast<std::int64_t>(kind), x, optional(y), scale, grad, all.plan, all.sizes, accumulated, wanted);
}

std::int64_t call_workspace(Kind kind, const at::Tensor& x, const at::Tensor& y, const Plan& plan, bool accumulated) {
  const PlanArguments all({plan});
  return typed_op<"product_workspace", WorkspaceSignature>().call(static_cast<std::int64_t>(kind), x, optional(y),
                                                                  all.plan, all.sizes, accumulated);
}

at::Tensor call_derive_plan(const at::Tensor& plan, const PlanSizes& sizes, structure::View view,
                            const c10::SymInt& rows, bool unary) {
  return typed_op<"derive_plan", DerivePlanSignature>().call(plan, sizes.to_vector(), static_cast<std::int64_t>(view),
                                                             rows, unary);
}

TORCH_LIBRARY(lacewing, m) {
  for (std::int64_t i = 0; i < kProducts; ++i) {
    const std::string schema = std::string(traits(static_cast<Kind>(i)).name) +
                               "(Tensor input1, Tensor input2, Tensor? scale, " + kPlan +
                               ", bool out_accumulated=False) -> Tensor";
    define_dense_op(m, schema);
  }
  define_dense_op(m, std::string("sparse_scale(Tensor input, Tensor? scale, ") + kPlan + ") -> Tensor");
  const std::string scale_grad =
      std::string("product_scale_grad(int kind, Tensor input1, Tensor? input2, Tensor grad, ") + kPlan +
      ", bool out_accumulated) -> Tensor";
  define_dense_op(m, scale_grad);
  define_dense_op(
      m, std::string("sparse_product_backward(int kind, Tensor input1, Tensor? input2, Tensor? scale, Tensor grad, ") +
             kPlan + ", bool out_accumulated, int[] wanted) -> Tensor[]");
  define_dense_op(m, std::string("product_workspace(int kind, Tensor input1, Tensor? input2, ") + kPlan +
                         ", bool out_accumulated) -> int");
  define_dense_op(m, "derive_plan(Tensor plan, SymInt[] sizes, int view, SymInt rows, bool unary) -> Tensor");
  define_dense_op(m,
                  "product_plan(int? entries, Tensor? index1, Tensor? index2, Tensor? seg_out, Tensor? gather_index, "
                  "Tensor? index_out, int? out_size, bool unary, str op) -> (Tensor, int[])");
  define_dense_op(
      m,
      "sorted_plans(Tensor? index1, Tensor? index2, Tensor? index, int entries, int? out_size, int? in1_size, "
      "int? in2_size, bool unary, bool forward_only, str op) -> (Tensor[], int[])");
  m.def("set_backend(str name) -> ()");
  m.def("get_backend() -> str");
  m.def("cpu_isa() -> str");
}

}  // namespace lacewing::products
