// Checks that the eligibility-trace module shares; each failure is one sentence.
#pragma once

#include <cstdint>
#include <limits>

#include <ATen/core/Tensor.h>

#include <lacewing/dispatch/torch.h>

namespace lacewing::etp {

inline void check_device(const char* op, const char* argument, const at::Tensor& tensor, at::Device device) {
  TORCH_CHECK(tensor.device() == device, "[lacewing.", op, "] ", argument, " is on ", tensor.device(),
              ", but the pattern is on ", device);
}

inline void check_same_dtype(const char* op, const char* first, const at::Tensor& a, const char* second,
                             const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "[lacewing.", op, "] ", first, " has dtype ",
              dtype_text(a.scalar_type()), ", but ", second, " has dtype ", dtype_text(b.scalar_type()));
}

/// Of a pattern: inputs and outputs.
inline void check_sizes(const char* op, std::int64_t rows, std::int64_t cols) {
  TORCH_CHECK(rows >= 0 && cols >= 0, "[lacewing.", op, "] sizes must not be negative, not (", rows, ", ", cols, ")");
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  TORCH_CHECK(rows <= kLimit && cols <= kLimit, "[lacewing.", op, "] sizes (", rows, ", ", cols, ") exceed 2^31 - 1");
}

inline void check_bias(const char* op, const at::Tensor& bias, std::int64_t outputs, const at::Tensor& weight) {
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == outputs, "[lacewing.", op, "] bias must have shape (", outputs,
              ",), not ", shape_text(bias.sizes()));
  check_same_dtype(op, "bias", bias, "the weight", weight);
  check_device(op, "bias", bias, weight.device());
}

inline void check_shape(const char* op, const char* argument, const at::Tensor& tensor, at::IntArrayRef wanted) {
  TORCH_CHECK(tensor.sizes() == wanted, "[lacewing.", op, "] ", argument, " must have shape ", shape_text(wanted),
              ", not ", shape_text(tensor.sizes()));
}

/// (B, ...) as a contiguous (..., B): no copy where it is that already.
inline at::Tensor batch_last(const at::Tensor& tensor) { return tensor.movedim(0, -1).contiguous(); }

/// (B, ...) as a contiguous (..., B) that shares no memory with it.
inline at::Tensor own(const at::Tensor& x) {
  at::Tensor last = batch_last(x.detach());
  return last.is_alias_of(x) ? last.clone() : last;
}

/// (..., B) as a (B, ...) view.
inline at::Tensor batch_first(const at::Tensor& tensor) { return tensor.movedim(-1, 0); }

}  // namespace lacewing::etp
