#include "product/kernel_args.h"

#include <utility>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"

namespace lacewing::products {

kernels::Operand operand(const at::Tensor& tensor, bool batched, Channels channels) {
  if (!tensor.defined()) {
    return {};
  }
  kernels::Operand view;
  std::int64_t dim = 0;
  view.data = tensor.const_data_ptr();
  view.stride_n = batched ? tensor.stride(dim++) : 0;
  view.rows = tensor.size(dim);
  view.stride_m = tensor.stride(dim++);
  view.stride_a = channels.a ? tensor.stride(dim++) : 0;
  view.stride_b = channels.b ? tensor.stride(dim) : 0;
  view.conjugate = tensor.is_conj();
  return view;
}

kernels::ProductArgs arguments(Kind kind, const ProductShape& shape, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& plan, bool accumulated) {
  const KindTraits& op = traits(kind);
  kernels::ProductArgs args;
  args.type = scalar_type(op.name, "input1", x.scalar_type());
  args.pattern = op.pattern;
  args.batch = shape.batch.expect_int();
  args.extent_a = shape.extent_a.expect_int();
  args.extent_b = shape.extent_b.expect_int();
  args.accumulate = accumulated;
  args.x = operand(x, shape.x_batched, op.x);
  args.y = operand(y, shape.y_batched, op.y);
  args.terms = structure::terms_of(known(op.mirrored ? shape.plan.mirror() : shape.plan), plan.const_data_ptr());
  if (op.mirrored) {
    std::swap(args.x, args.y);
  }
  return args;
}

bool has_channels_apart(Kind kind, const at::Tensor& tensor, Channels channels) {
  const kernels::Pattern pattern = traits(kind).pattern;
  const bool by_rows = pattern == kernels::Pattern::vecsca || pattern == kernels::Pattern::inner;
  return by_rows && channels.count() > 0 && tensor.is_cuda() && tensor.size(-1) > 1 && tensor.stride(-1) != 1;
}

at::Tensor channels_together(Kind kind, const at::Tensor& tensor, Channels channels) {
  return has_channels_apart(kind, tensor, channels) ? tensor.contiguous() : tensor;
}

at::Tensor workspace(std::int64_t bytes, const at::Tensor& like) {
  return bytes > 0 ? empty_result({bytes}, like.options().dtype(at::kByte)) : at::Tensor();
}

void* data_of(const at::Tensor& workspace) { return workspace.defined() ? workspace.mutable_data_ptr() : nullptr; }

}  // namespace lacewing::products
