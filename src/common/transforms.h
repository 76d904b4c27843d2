// Work outside of torch.func's transforms: what is kept longer than they run must not be wrapped by them.
#pragma once

#include <ATen/functorch/TensorWrapper.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lacewing {

/// No transform sees the calls in its scope.
struct OutsideTransforms {
  c10::impl::ExcludeDispatchKeyGuard outside{c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

/// A tensor without the wrappers of gradients; integers have none to lose.
inline at::Tensor unwrapped(at::Tensor tensor) {
  while (const auto* const wrapper = at::functorch::maybeGetTensorWrapper(tensor)) {
    tensor = wrapper->value();
  }
  return tensor;
}

}  // namespace lacewing
