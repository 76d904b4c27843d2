// The op that computes several gradients of a product, on every device: in one pass where a kernel can.
#include <algorithm>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "common/stream.h"
#include "kernels/gather_sum_dots.h"
#include "product/gradients.h"
#include "product/kernel_args.h"
#include "product/shape.h"

namespace lacewing::products {
namespace {

using structure::PlanMeta;

constexpr const char* kOp = "sparse_product_backward";

/// Real numbers on a device, as they are stored.
bool is_plain_on_device(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.is_cuda() && tensor.scalar_type() == type && !tensor.is_complex() && !tensor.is_neg();
}

/// A matrix, one entry for each term, times dense rows:  z[r] = sum of numbers[t] rows[i[t]].
struct MatrixCall {
  bool numbers_first;
  at::Tensor numbers, rows, grad;

  /// Nothing where a call is another, or where the tensors are not what the kernel takes.
  static std::optional<MatrixCall> of(const ProductCall& call, const Arguments& in) {
    const bool numbers_first = call.kind() == Kind::scavec;
    if ((!numbers_first && call.kind() != Kind::vecsca) || in[kScale].defined() || backend() == Backend::reference) {
      return std::nullopt;
    }
    MatrixCall matrix{numbers_first, in[numbers_first ? kInput1 : kInput2], in[numbers_first ? kInput2 : kInput1],
                      in[kGrad]};
    const at::ScalarType type = matrix.numbers.scalar_type();
    const bool plain = std::all_of(in.begin(), in.end(), [&](const at::Tensor& tensor) {
      return !tensor.defined() || is_plain_on_device(tensor, type);
    });
    const PlanMeta forward = known(call.plans()[0].sizes);
    const bool first_in_plan = numbers_first != forward.has(PlanMeta::mirrored);
    if (!plain || matrix.numbers.dim() != 1 || matrix.rows.dim() != 2 || matrix.grad.numel() == 0 ||
        matrix.rows.numel() == 0 || matrix.numbers.size(0) != forward.terms ||
        forward.has(first_in_plan ? PlanMeta::has_index1 : PlanMeta::has_index2)) {
      return std::nullopt;
    }
    check_memory(kOp, {{"input1", in[kInput1]}, {"input2", in[kInput2]}, {"grad", matrix.grad}});
    matrix.rows = with_channels_together(matrix.rows);
    matrix.grad = with_channels_together(matrix.grad);
    return matrix;
  }

 private:
  static at::Tensor with_channels_together(const at::Tensor& tensor) {
    return tensor.stride(1) == 1 ? tensor : tensor.contiguous();
  }
};

/// Both gradients. Column by column, one reading of the upstream gradient's rows serves both.
std::optional<std::vector<at::Tensor>> matrix_gradients(const ProductCall& call, const Arguments& in) {
  const auto matrix = MatrixCall::of(call, in);
  if (!matrix) {
    return std::nullopt;
  }
  const auto& [numbers_first, numbers, rows, grad] = *matrix;
  const GradientRule rule = gradient_rule(call.kind(), /*second=*/numbers_first);
  const Plan& plan = call.plans()[numbers_first ? 2 : 1];
  const at::Tensor& first = rule.op == Kind::vecsca ? grad : numbers;
  const at::Tensor& second = rule.op == Kind::vecsca ? numbers : grad;
  const ProductShape shape = check_product(rule.op, kOp, first, second, std::nullopt, plan, false);
  const c10::DeviceGuard guard(grad.device());
  const at::Tensor of_numbers = empty_result({numbers.size(0)}, numbers.options());
  const at::Tensor of_rows = empty_result({rows.size(0), rows.size(1)}, rows.options());
  kernels::GatherSumDotsArgs args{arguments(rule.op, shape, first, second, *plan.array, false), rows.const_data_ptr(),
                                  rows.stride(0), of_numbers.mutable_data_ptr()};
  args.sum.z = operand(of_rows, false, traits(rule.op).z);
  if (!kernels::cuda::is_gather_sum_dots(args)) {
    return std::nullopt;
  }
  const at::Tensor space = workspace(kernels::cuda::gather_sum_dots_workspace(args), grad);
  kernels::cuda::gather_sum_dots(args, current_stream(grad.device()), data_of(space));
  return numbers_first ? std::vector<at::Tensor>{of_numbers, of_rows} : std::vector<at::Tensor>{of_rows, of_numbers};
}

std::vector<at::Tensor> product_backward(std::int64_t kind_number, const at::Tensor& input1,
                                         const OptionalTensor& input2, const OptionalTensor& scale,
                                         const at::Tensor& grad, at::TensorList plan, c10::SymIntArrayRef sizes,
                                         bool out_accumulated, at::IntArrayRef wanted) {
  const Kind kind = kind_of(kOp, kind_number);
  const at::Tensor y = input2.value_or(at::Tensor());
  for (const std::int64_t place : wanted) {
    TORCH_CHECK(place == kInput1 || (place == kInput2 && y.defined()) || (place == kScale && scale.has_value()),
                "[lacewing.", kOp, "] wanted[...] = ", place,
                " names no argument: 0 is input1, 1 is input2 and 2 is scale, where they are given");
  }
  const Plans plans = read_plans(kOp, plan, sizes);
  check_product(kind, kOp, input1, y, scale, plans[0], out_accumulated);
  const ProductCall call = ProductCall(kind, input1, y, plans, out_accumulated, scale.has_value()).completed();
  const Arguments in{input1, y, scale.value_or(at::Tensor()), grad};
  if (wanted.equals({kInput1, kInput2})) {
    if (auto both = matrix_gradients(call, in)) {
      return *std::move(both);
    }
  }
  std::vector<at::Tensor> gradients;
  for (const std::int64_t place : wanted) {
    gradients.push_back(call.gradient(static_cast<Place>(place), in));
  }
  return gradients;
}

}  // namespace

// The single ops know the device; on meta and under vmap they are all there is.
TORCH_LIBRARY_IMPL(lacewing, CPU, m) { m.impl(kOp, product_backward); }
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) { m.impl(kOp, product_backward); }
TORCH_LIBRARY_IMPL(lacewing, Meta, m) { m.impl(kOp, product_backward); }
TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) { m.impl(kOp, product_backward); }
TORCH_LIBRARY_IMPL(lacewing, Conjugate, m) { m.impl(kOp, torch::CppFunction::makeFallthrough()); }

}  // namespace lacewing::products
