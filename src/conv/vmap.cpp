// vmap of sparse convolution and of max pooling. A plan has no batch. Convolutions are walked through, one of the batch
// after the other, so that weights are read where they lie; pooling takes a batch as more channels.
#include <torch/library.h>

#include "common/batched.h"
#include "conv/calls.h"

namespace lacewing::conv {
namespace {

void refuse_batched_plan(const char* op, const at::Tensor& plan) {
  TORCH_CHECK(at::functorch::maybeGetBatchedImpl(plan) == nullptr, "[lacewing.", op,
              "] vmap over a plan is not possible: give it in_dims None");
}

/// f(operand of each) for every entry of the batch that some of the operands have.
template <typename... Operands, typename F>
at::Tensor walked(const BatchScope& scope, F&& f, const Operands&... operands) {
  const Batched all[] = {operands...};
  const auto* const carrier = std::find_if(std::begin(all), std::end(all), [](const Batched& b) { return b.batched; });
  if (carrier == std::end(all)) {
    return f(operands.value...);
  }
  return scope.wrap(each_of_batch(carrier->value.sym_size(0), [&](std::int64_t i) { return f(operands.at(i)...); }));
}

at::Tensor conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed) {
  refuse_batched_plan("sparse_conv", plan);
  const at::Tensor b = bias.value_or(at::Tensor());
  const BatchScope scope{features, weight, b};
  return walked(
      scope,
      [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& one) {
        return conv_op().call(x, w, one.defined() ? OptionalTensor(one) : std::nullopt, plan, sizes, transposed);
      },
      scope.unwrap(features), scope.unwrap(weight), scope.unwrap(b));
}

at::Tensor weight_grad(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                       c10::SymIntArrayRef sizes, std::int64_t groups) {
  refuse_batched_plan("sparse_conv_weight_grad", plan);
  const BatchScope scope{features, grad};
  return walked(
      scope, [&](const at::Tensor& x, const at::Tensor& g) { return weight_grad_op().call(x, g, plan, sizes, groups); },
      scope.unwrap(features), scope.unwrap(grad));
}

/// A batch of (rows, channels) as (rows, batch * channels); one without a batch is repeated.
at::Tensor as_channels(const Batched& operand, const c10::SymInt& batch) {
  const at::Tensor& value = operand.value;
  const at::Tensor rows = operand.batched
                              ? value.movedim(0, 1)
                              : value.unsqueeze(1).expand_symint({value.sym_size(0), batch, value.sym_size(1)});
  return rows.flatten(1, 2);
}

at::Tensor from_channels(const BatchScope& scope, const at::Tensor& out, const c10::SymInt& batch,
                         const c10::SymInt& channels) {
  return scope.wrap(out.view_symint({out.sym_size(0), batch, channels}), 1);
}

std::tuple<at::Tensor, at::Tensor> max_pool(const at::Tensor& features, const at::Tensor& plan,
                                            c10::SymIntArrayRef sizes) {
  refuse_batched_plan("sparse_max_pool", plan);
  const BatchScope scope{features};
  const Batched x = scope.unwrap(features);
  if (!x.batched || x.value.dim() != 3) {  // of a wrong rank: the op says so
    return max_pool_op().call(x.at(0), plan, sizes);
  }
  const c10::SymInt batch = x.value.sym_size(0);
  const c10::SymInt channels = x.value.sym_size(2);
  const auto [values, arg] = max_pool_op().call(as_channels(x, batch), plan, sizes);
  return {from_channels(scope, values, batch, channels), from_channels(scope, arg, batch, channels)};
}

at::Tensor max_pool_grad(const at::Tensor& grad, const at::Tensor& arg, const at::Tensor& plan,
                         c10::SymIntArrayRef sizes) {
  refuse_batched_plan("sparse_max_pool_grad", plan);
  const BatchScope scope{grad, arg};
  const Batched g = scope.unwrap(grad);
  const Batched a = scope.unwrap(arg);
  if ((!g.batched && !a.batched) || grad.dim() != 2 || arg.dim() != 2) {
    return max_pool_grad_op().call(g.at(0), a.at(0), plan, sizes);
  }
  const c10::SymInt batch = (g.batched ? g : a).value.sym_size(0);
  const at::Tensor out = max_pool_grad_op().call(as_channels(g, batch), as_channels(a, batch), plan, sizes);
  return from_channels(scope, out, batch, g.value.sym_size(-1));
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) {
  m.impl("sparse_conv", conv);
  m.impl("sparse_conv_weight_grad", weight_grad);
  m.impl("sparse_max_pool", max_pool);
  m.impl("sparse_max_pool_grad", max_pool_grad);
}

}  // namespace lacewing::conv
