#include <cmath>

#include <lacewing/dispatch/torch.h>

#include "attention/calls.h"

namespace lacewing::attention {
namespace {

/// A tensor of q's dtype and device, and of this shape.
void check_tensor(const char* op, const char* argument, const at::Tensor& tensor, const at::Tensor& q,
                  at::ArrayRef<c10::SymInt> shape) {
  TORCH_CHECK(tensor.device() == q.device(), "[lacewing.", op, "] ", argument, " is on ", tensor.device(),
              " but q is on ", q.device());
  TORCH_CHECK(tensor.scalar_type() == q.scalar_type(), "[lacewing.", op, "] ", argument, " has dtype ",
              dtype_text(tensor.scalar_type()), " but q has ", dtype_text(q.scalar_type()));
  TORCH_CHECK(tensor.dim() == static_cast<std::int64_t>(shape.size()) && tensor.sym_sizes() == shape, "[lacewing.", op,
              "] ", argument, " must have shape ", shape_text(shape), ", not ", shape_text(tensor.sym_sizes()));
}

}  // namespace

EdgeSizes EdgeSizes::from(const char* op, c10::SymIntArrayRef sizes) {
  TORCH_CHECK(sizes.size() == 5, "[lacewing.", op, "] sizes must be the five numbers of Edges with two lists, not ",
              sizes.size());
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

void check_float(const char* op, const char* argument, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble, "[lacewing.", op,
              "] ", argument, " must have dtype float16, bfloat16, float32 or float64, not ", dtype_text(type));
}

void check_options(const char* op, const Options& options) {
  TORCH_CHECK(std::isfinite(options.scale), "[lacewing.", op, "] scale must be a finite number, not ", options.scale);
  TORCH_CHECK(std::isfinite(options.slope) && options.slope > 0, "[lacewing.", op,
              "] negative_slope must be positive, not ", options.slope);
  TORCH_CHECK(options.dropout >= 0 && options.dropout <= 1, "[lacewing.", op, "] dropout must lie in [0, 1], not ",
              options.dropout);
}

EdgeSizes check_call(const char* op, const Operands& in, const OptionalTensor& seed, const at::Tensor& edges,
                     c10::SymIntArrayRef given, const Options& options) {
  const EdgeSizes sizes = EdgeSizes::from(op, given);
  check_options(op, options);
  check_float(op, "q", in.q);
  TORCH_CHECK(in.q.dim() == 2 || in.q.dim() == 3, "[lacewing.", op,
              "] q must have shape (rows, heads) or (rows, heads, channels), not ", shape_text(in.q.sym_sizes()));
  TORCH_CHECK(in.v.dim() == 3, "[lacewing.", op, "] v must have shape (columns, heads, channels), not ",
              shape_text(in.v.sym_sizes()));
  const c10::SymInt heads = in.q.sym_size(1);
  std::vector<c10::SymInt> shape(in.q.sym_sizes().begin(), in.q.sym_sizes().end());
  shape[0] = sizes.rows;
  check_tensor(op, "q", in.q, in.q, shape);
  shape[0] = sizes.columns;
  check_tensor(op, "k", in.k, in.q, shape);
  check_tensor(op, "v", in.v, in.q, {sizes.columns, heads, in.v.sym_size(2)});
  for (const auto& [argument, numbers] : {std::pair("factor", in.factor), std::pair("bias", in.bias)}) {
    if (numbers) {
      check_tensor(op, argument, *numbers, in.q, {sizes.edges, heads});
    }
  }
  TORCH_CHECK(options.dropout == 0 || seed.has_value(), "[lacewing.", op, "] dropout needs a seed");
  if (seed) {
    TORCH_CHECK(seed->scalar_type() == at::kLong && seed->dim() == 0 && seed->device() == in.q.device(), "[lacewing.",
                op, "] seed must be one int64 number on ", in.q.device(), ", not a tensor of shape ",
                shape_text(seed->sym_sizes()), " and dtype ", dtype_text(seed->scalar_type()), " on ", seed->device());
  }
  TORCH_CHECK(edges.device() == in.q.device(), "[lacewing.", op, "] the edges are on ", edges.device(), " but q is on ",
              in.q.device());
  return sizes;
}

}  // namespace lacewing::attention
