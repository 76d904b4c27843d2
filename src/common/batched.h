// What batching rules of vmap share.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>

namespace lacewing {

/// A tensor at the current level of vmap, its batch (if it has one) in front.
struct Batched {
  at::Tensor value;
  bool batched = false;

  /// One of the batch; of an empty one a tensor of its shape.
  at::Tensor at(std::int64_t i) const {
    return !batched                 ? value
           : value.sym_size(0) == 0 ? value.new_zeros_symint(value.sym_sizes().slice(1))
                                    : value.select(0, i);
  }
};

/// The innermost level of vmap among the operands, taken off while the op runs.
struct BatchScope {
  std::int64_t level = 0;
  c10::impl::ExcludeDispatchKeyGuard below{c10::DispatchKey::FuncTorchBatched};

  explicit BatchScope(std::initializer_list<at::Tensor> operands) : BatchScope(at::TensorList(operands)) {}
  explicit BatchScope(at::TensorList operands) {
    for (const at::Tensor& operand : operands) {
      const auto* const impl = operand.defined() ? at::functorch::maybeGetBatchedImpl(operand) : nullptr;
      level = impl != nullptr ? std::max(level, impl->level()) : level;
    }
  }

  Batched unwrap(const at::Tensor& tensor) const {
    const auto* const impl = tensor.defined() ? at::functorch::maybeGetBatchedImpl(tensor) : nullptr;
    if (impl == nullptr || impl->level() != level) {
      return {tensor, false};
    }
    return {impl->value().movedim(impl->bdim(), 0), true};
  }

  at::Tensor wrap(const at::Tensor& tensor, std::int64_t dim = 0) const {
    return at::functorch::makeBatched(tensor, dim, level);
  }
};

/// f(i) for each entry of the batch, stacked.
template <typename F>
at::Tensor each_of_batch(const c10::SymInt& size, F&& f) {
  std::vector<at::Tensor> parts;
  const std::int64_t count = size.guard_int(__FILE__, __LINE__);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(count, 1); ++i) {
    parts.push_back(f(i));
  }
  return at::stack(parts).narrow(0, 0, count);
}

}  // namespace lacewing
