#include "index/key_order.h"

#include "kernels/device_index.h"
#include "structure/plan_views.h"

namespace lacewing::index {

bool has_wide_places(std::int64_t count) { return !structure::fits_narrow(count); }

SortedKeys sort_keys(const DeviceCall& call, const at::Tensor& keys, std::int64_t limit) {
  kernels::KeySort sort;
  sort.count = keys.numel();
  sort.limit = limit;
  sort.wide = has_wide_places(sort.count);
  const SortedKeys sorted{call.integers(sort.count), call.integers(sort.count, sort.wide)};
  sort.keys = keys.const_data_ptr<std::int64_t>();
  sort.sorted = sorted.keys.mutable_data_ptr<std::int64_t>();
  sort.order = sorted.order.mutable_data_ptr();
  const at::Tensor space = call.workspace(kernels::cuda::sort_workspace(sort));
  kernels::cuda::sort_keys(sort, call.stream(), space.mutable_data_ptr());
  return sorted;
}

}  // namespace lacewing::index
