// Reading back what a device found: the one place where index structures wait for a device.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lacewing::index {

/// int64 numbers on any device. Those of a device are counted: lacewing::host_reads tells how often.
std::vector<std::int64_t> read_back(const at::Tensor& numbers);

}  // namespace lacewing::index
