// Autocast: the products that contract or expand matrices run in the autocast dtype, as torch's matmul does; the others
// (mul, vecsca, scavec, scale) follow the dtypes of their operands and need no rule. Sums are kept in float either way.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "product/calls.h"
#include "product/form_calls.h"

namespace lacewing::products {
namespace {

template <Kind kind, c10::DeviceType device>
at::Tensor product(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale, at::TensorList plan,
                   c10::SymIntArrayRef sizes, bool out_accumulated) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  return call_product(kind, at::autocast::cached_cast(type, input1, device),
                      at::autocast::cached_cast(type, input2, device), scale,
                      read_plans(traits(kind).name, plan, sizes), out_accumulated);
}

template <Kind kind, c10::DeviceType device>
at::Tensor raw(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
               const OptionalTensor& index1, const OptionalTensor& index2, const OptionalTensor& seg_out,
               const OptionalTensor& gather_index, const OptionalTensor& index_out, std::optional<c10::SymInt> out_size,
               bool out_accumulated) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  return raw_handle(kind).call(at::autocast::cached_cast(type, input1, device),
                               at::autocast::cached_cast(type, input2, device), scale, index1, index2, seg_out,
                               gather_index, index_out, std::move(out_size), out_accumulated);
}

template <c10::DeviceType device>
at::Tensor form(at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  std::vector<at::Tensor> cast = operands.vec();
  if (Form::parse("product", form).multiplies_matrices()) {
    for (at::Tensor& operand : cast) {
      operand = at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), operand, device);
    }
  }
  return form_op().call(cast, scale, plan, sizes, form, role);
}

/// Both channels of the formula are there, or the one that is there is summed over.
constexpr bool multiplies_matrices(const KindTraits& op) {
  const bool a = op.x.a || op.y.a || op.z.a;
  const bool b = op.x.b || op.y.b || op.z.b;
  return (a && b) || (a && !op.z.a) || (b && !op.z.b);
}

template <c10::DeviceType device, Kind kind>
void register_kind(torch::Library& m) {
  if constexpr (kind != Kind::scale && multiplies_matrices(traits(kind))) {
    m.impl(traits(kind).name, product<kind, device>);
    m.impl(raw_name(kind).c_str(), raw<kind, device>);
  }
}

template <c10::DeviceType device, std::size_t... Kinds>
void register_device(torch::Library& m, std::index_sequence<Kinds...>) {
  (register_kind<device, static_cast<Kind>(Kinds)>(m), ...);
  m.impl("product", form<device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, AutocastCPU, m) {
  register_device<c10::DeviceType::CPU>(m, std::make_index_sequence<kProducts>{});
}
TORCH_LIBRARY_IMPL(lacewing, AutocastCUDA, m) {
  register_device<c10::DeviceType::CUDA>(m, std::make_index_sequence<kProducts>{});
}

}  // namespace lacewing::products
