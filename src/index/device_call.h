// Calling the device's index kernels with torch's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "common/stream.h"
#include "index/where.h"

namespace lacewing::index {

/// A device made current, its stream, and memory on it.
class DeviceCall {
 public:
  explicit DeviceCall(at::Device device) : guard_(device), device_(device) {}

  CudaExecutor stream() const { return device_.is_cuda() ? current_stream(device_) : CudaExecutor{}; }
  at::Tensor integers(std::int64_t count, bool wide = true) const {
    return at::empty({count}, at::device(device_).dtype(wide ? at::kLong : at::kInt));
  }
  /// Kept until the next call on the stream may reuse it, which torch's allocator sees to.
  at::Tensor workspace(std::int64_t bytes) const { return at::empty({bytes}, at::device(device_).dtype(at::kByte)); }

 private:
  c10::DeviceGuard guard_;
  at::Device device_;
};

}  // namespace lacewing::index
