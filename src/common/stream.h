// The current CUDA stream from torch's generic interface, so that no CUDA build of torch is needed to build.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lacewing/executor.h>

namespace lacewing {

/// The executor for launches on the device's current stream. Hold a c10::DeviceGuard for the device meanwhile.
inline CudaExecutor current_stream(c10::Device device) {
  return {c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle()};
}

}  // namespace lacewing
