#include "tensor/zero_tensors.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace lacewing::tensor {

bool are_large_zeros(const at::Tensor& t) {
  return t.dim() > 0 && t._is_zerotensor() &&
         static_cast<double>(t.numel()) * static_cast<double>(t.element_size()) >
             static_cast<double>(densify_policy().warn_above);
}

at::Tensor without_entries(const at::Tensor& zeros, const Call& call) {
  std::int64_t dense_dims = zeros.dim();
  call.each_tensor([&](const at::Tensor& t) {
    dense_dims = is_sparse(t) ? std::min(dense_dims, components(t).dense_dim()) : dense_dims;
  });
  const auto sparse_dims = at(zeros.dim() - dense_dims);
  const auto options = zeros.options().requires_grad(false);
  Dims rows{0};
  rows.insert(rows.end(), zeros.sizes().begin() + zeros.dim() - dense_dims, zeros.sizes().end());
  const auto no_keys = at::zeros({0}, options.dtype(at::kLong));
  const auto values = at::zeros(rows, options);
  return make_tensor(
      {Pattern::of_keys(no_keys, zeros.sizes().slice(0, sparse_dims).vec()), values, known_fill(0, values)});
}

namespace {

at::Tensor zeros_of(c10::SymIntArrayRef shape, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "expected m1 and m2 to have the same dtype, but got: ", a.scalar_type(), " != ", b.scalar_type());
  return at::_efficientzerotensor_symint(shape, a.options());
}

void check_inner(const char* op, const at::Tensor& a, const at::Tensor& b, bool fits) {
  TORCH_CHECK(fits, op, ": the shapes ", a.sym_sizes(), " and ", b.sym_sizes(), " cannot be multiplied");
}

/// Whether torch may store the zeros, as it does: the product knows infinities and NaN beside them.
bool are_small(const at::Tensor& a, const at::Tensor& b) { return !are_large_zeros(a) && !are_large_zeros(b); }

at::Tensor stored(const at::Tensor& t) { return t._is_zerotensor() ? t.clone() : t; }

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  if (are_small(a, b)) {
    return at::mm(stored(a), stored(b));
  }
  check_inner("mm", a, b, a.dim() == 2 && b.dim() == 2 && a.sym_size(1) == b.sym_size(0));
  return zeros_of({a.sym_size(0), b.sym_size(1)}, a, b);
}

at::Tensor mv(const at::Tensor& a, const at::Tensor& b) {
  if (are_small(a, b)) {
    return at::mv(stored(a), stored(b));
  }
  check_inner("mv", a, b, a.dim() == 2 && b.dim() == 1 && a.sym_size(1) == b.sym_size(0));
  return zeros_of({a.sym_size(0)}, a, b);
}

at::Tensor bmm(const at::Tensor& a, const at::Tensor& b) {
  if (are_small(a, b)) {
    return at::bmm(stored(a), stored(b));
  }
  check_inner("bmm", a, b,
              a.dim() == 3 && b.dim() == 3 && a.sym_size(0) == b.sym_size(0) && a.sym_size(2) == b.sym_size(1));
  return zeros_of({a.sym_size(0), a.sym_size(1), b.sym_size(2)}, a, b);
}

}  // namespace

// torch stores the zeros for a product with them, in their whole shape; those beyond the densify policy's size are not.
TORCH_LIBRARY_IMPL(aten, ZeroTensor, m) {
  m.impl("mm", mm);
  m.impl("mv", mv);
  m.impl("bmm", bmm);
}

}  // namespace lacewing::tensor
