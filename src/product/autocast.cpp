// Autocast: the products that contract or expand matrices run in the autocast dtype, as torch's matmul does; the others
// (mul, vecsca, scavec, scale) follow the dtypes of their operands and need no rule. Sums are kept in float either way.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "product/calls.h"

namespace lacewing::product {
namespace {

template <Kind kind, c10::DeviceType device>
at::Tensor product(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
                   const at::Tensor& plan, at::IntArrayRef meta, const OptionalTensor& plan_bwd1,
                   at::IntArrayRef meta_bwd1, const OptionalTensor& plan_bwd2, at::IntArrayRef meta_bwd2,
                   bool out_accumulated) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  const Plans plans{Plan{plan, meta.vec()}, Plan{plan_bwd1, meta_bwd1.vec()}, Plan{plan_bwd2, meta_bwd2.vec()}};
  return call_product(kind, at::autocast::cached_cast(type, input1, device),
                      at::autocast::cached_cast(type, input2, device), scale, plans, out_accumulated);
}

template <c10::DeviceType device>
void register_device(torch::Library& m) {
  m.impl("sparse_outer", product<Kind::outer, device>);
  m.impl("sparse_inner", product<Kind::inner, device>);
  m.impl("sparse_vecmat", product<Kind::vecmat, device>);
  m.impl("sparse_mat_t_vec", product<Kind::mat_t_vec, device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, AutocastCPU, m) { register_device<c10::DeviceType::CPU>(m); }
TORCH_LIBRARY_IMPL(lacewing, AutocastCUDA, m) { register_device<c10::DeviceType::CUDA>(m); }

}  // namespace lacewing::product
