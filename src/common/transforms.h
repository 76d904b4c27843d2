// Work outside of torch.func's transforms: what is kept longer than they run must not be wrapped by them.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lacewing {

/// No transform sees the calls in its scope.
struct OutsideTransforms {
  c10::impl::ExcludeDispatchKeyGuard outside{c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

}  // namespace lacewing
