// The border to torch: devices, dtypes, tensors and threads of torch as this layer's own.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lacewing/dispatch/for_each.h>
#include <lacewing/dispatch/views.h>
#include <lacewing/executor.h>
#include <lacewing/export.h>

namespace lacewing {

/// Threads of torch's own pool, as many as torch.set_num_threads says.
LACEWING_API CpuExecutor torch_executor();

/// torch's dtype as ours, where there is one.
inline std::optional<ScalarType> find_scalar_type(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Byte: return ScalarType::u8;
    case at::ScalarType::Char: return ScalarType::i8;
    case at::ScalarType::Short: return ScalarType::i16;
    case at::ScalarType::Int: return ScalarType::i32;
    case at::ScalarType::Long: return ScalarType::i64;
    case at::ScalarType::Half: return ScalarType::f16;
    case at::ScalarType::BFloat16: return ScalarType::bf16;
    case at::ScalarType::Float: return ScalarType::f32;
    case at::ScalarType::Double: return ScalarType::f64;
    case at::ScalarType::ComplexFloat: return ScalarType::c64;
    case at::ScalarType::ComplexDouble: return ScalarType::c128;
    default: return std::nullopt;
  }
}

/// The name of torch's dtype in error messages: "float32", and torch's own word for those that are not ours.
inline const char* dtype_text(at::ScalarType type) {
  const auto found = find_scalar_type(type);
  return found ? name(*found) : c10::toString(type);
}

/// As find_scalar_type; throws c10::Error "[lacewing.<op>] <argument> has dtype ..." where there is none.
inline ScalarType scalar_type(const char* op, const char* argument, at::ScalarType type) {
  const auto found = find_scalar_type(type);
  TORCH_CHECK(found, "[lacewing.", op, "] ", argument, " has dtype ", dtype_text(type), ", which no kernel takes");
  return *found;
}

/// The dtype of indices; throws c10::Error unless it is int32 or int64.
inline IndexType index_type(const char* op, const char* argument, at::ScalarType type) {
  TORCH_CHECK(type == at::ScalarType::Int || type == at::ScalarType::Long, "[lacewing.", op, "] ", argument,
              " must have dtype int32 or int64, not ", dtype_text(type));
  return type == at::ScalarType::Int ? IndexType::i32 : IndexType::i64;
}

/// torch's device as ours; throws c10::Error for anything but the CPU and CUDA.
inline Device device(const char* op, const char* argument, at::Device torch_device) {
  TORCH_CHECK(torch_device.is_cpu() || torch_device.is_cuda(), "[lacewing.", op, "] ", argument, " is on ",
              torch_device, ": expected cpu or cuda");
  return torch_device.is_cpu() ? Device::cpu : Device::cuda;
}

/// "(8, 9)", as Python prints a shape; sizes may be symbolic.
template <typename Size>
std::string shape_text(c10::ArrayRef<Size> sizes) {
  std::ostringstream text;
  text << "(";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text << (i == 0 ? "" : ", ") << sizes[i];
  }
  text << (sizes.size() == 1 ? ",)" : ")");
  return text.str();
}

/// Throws c10::Error unless the tensor's storage holds its elements: FSDP frees the storage of parameters behind their
/// shape, and a null pointer would look like an operand that is absent. Every tensor passes here before its memory is
/// read or written by kernels of this library, and before torch copies it for them.
LACEWING_API void check_memory(const char* op, const char* argument, const at::Tensor& tensor);

/// The same of several; undefined ones are absent.
LACEWING_API void check_memory(const char* op, std::initializer_list<std::pair<const char*, const at::Tensor&>> all);

namespace dispatch {

namespace detail {

inline void check_rank(const char* op, const char* argument, const at::Tensor& tensor, std::int64_t rank) {
  TORCH_CHECK(tensor.dim() == rank, "[lacewing.", op, "] ", argument, " must have ", rank,
              rank == 1 ? " dimension" : " dimensions", ", not shape ", shape_text(tensor.sym_sizes()));
}

/// The tensor is what a view of this device and scalar type may point into.
template <Device Dev, ScalarType S>
void check_operand(const char* op, const char* argument, const at::Tensor& tensor, std::int64_t rank) {
  check_rank(op, argument, tensor, rank);
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_mkldnn(), "[lacewing.", op, "] ", argument,
              " must be a dense tensor, not one of layout ", tensor.layout());
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "[lacewing.", op, "] ", argument,
              " is a conjugated or negated view, whose memory holds other values: resolve_conj().resolve_neg() first");
  const ScalarType type = scalar_type(op, argument, tensor.scalar_type());
  TORCH_CHECK(type == S, "[lacewing.", op, "] ", argument, " must have dtype ", name(S), ", not ", name(type));
  constexpr Device memory = Dev == Device::reference ? Device::cpu : Dev;
  TORCH_CHECK(device(op, argument, tensor.device()) == memory, "[lacewing.", op, "] ", argument, " must be on ",
              name(memory), ", not on ", tensor.device());
  check_memory(op, argument, tensor);
}

}  // namespace detail

/// A (rows, cols) tensor as a view, strides kept, nothing copied; throws c10::Error for another rank, dtype or
/// device. The tensor must outlive the view.
template <Device Dev, ScalarType S>
matrix_const_view<Dev, S> const_matrix(const char* op, const char* argument, const at::Tensor& tensor) {
  detail::check_operand<Dev, S>(op, argument, tensor, 2);
  return {static_cast<const scalar_t<S>*>(tensor.const_data_ptr()), tensor.size(0), tensor.size(1), tensor.stride(0),
          tensor.stride(1)};
}

/// As const_matrix, to write to; the tensor must not overlap itself.
template <Device Dev, ScalarType S>
matrix_mutable_view<Dev, S> mutable_matrix(const char* op, const char* argument, const at::Tensor& tensor) {
  detail::check_operand<Dev, S>(op, argument, tensor, 2);
  return {static_cast<scalar_t<S>*>(tensor.mutable_data_ptr()), tensor.size(0), tensor.size(1), tensor.stride(0),
          tensor.stride(1)};
}

/// A (count,) tensor as a view; as const_matrix otherwise. A column of a (count, 2) tensor of pairs, say
/// pairs.select(1, 0), gives the view with stride 2.
template <Device Dev, ScalarType S>
vector_const_view<Dev, S> const_vector(const char* op, const char* argument, const at::Tensor& tensor) {
  detail::check_operand<Dev, S>(op, argument, tensor, 1);
  return {static_cast<const scalar_t<S>*>(tensor.const_data_ptr()), tensor.size(0), tensor.stride(0)};
}

/// As const_vector, to write to; the tensor must not overlap itself.
template <Device Dev, ScalarType S>
vector_mutable_view<Dev, S> mutable_vector(const char* op, const char* argument, const at::Tensor& tensor) {
  detail::check_operand<Dev, S>(op, argument, tensor, 1);
  return {static_cast<scalar_t<S>*>(tensor.mutable_data_ptr()), tensor.size(0), tensor.stride(0)};
}

/// for_each on torch's own threads.
template <typename Tag, typename F>
  requires(tag_match<Tag, Device::cpu> || tag_match<Tag, Device::reference>)
void for_each(Tag t, std::int64_t count, F&& f, std::int64_t grain = default_grain) {
  for_each(t, torch_executor(), count, std::forward<F>(f), grain);
}

/// for_each_nd on torch's own threads.
template <std::size_t Rank, typename Tag, typename F>
  requires(tag_match<Tag, Device::cpu> || tag_match<Tag, Device::reference>)
void for_each_nd(Tag t, const std::array<std::int64_t, Rank>& extents, F&& f, std::int64_t grain = default_grain) {
  for_each_nd<Rank>(t, torch_executor(), extents, std::forward<F>(f), grain);
}

}  // namespace dispatch
}  // namespace lacewing
