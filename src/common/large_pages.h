// Large pages under large results.
#pragma once

#include <ATen/core/Tensor.h>

#include "structure/large_pages.h"

namespace lacewing {

/// A tensor that was just allocated and will be written as a whole.
inline at::Tensor on_large_pages(at::Tensor fresh) {
  if (fresh.is_cpu() && fresh.nbytes() >= structure::kLargePageBytes) {
    structure::prefer_large_pages(fresh.mutable_data_ptr(), fresh.nbytes());
  }
  return fresh;
}

}  // namespace lacewing
