// Sorting keys on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include "index/device_call.h"

namespace lacewing::index {

/// Whether places among so many are kept as int64.
bool has_wide_places(std::int64_t count);

/// Keys in their order, and where each stood: int32, or int64 where places are wide.
struct SortedKeys {
  at::Tensor keys, order;
};

/// Stable; int64 keys of a device in [0, limit).
SortedKeys sort_keys(const DeviceCall& call, const at::Tensor& keys, std::int64_t limit);

}  // namespace lacewing::index
