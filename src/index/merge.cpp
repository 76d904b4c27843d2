#include "index/merge.h"

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/host_read.h"
#include "index/key_order.h"

namespace lacewing::index {
namespace {

std::int64_t* mutable_data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int64_t>(); }

}  // namespace

SetMerge::SetMerge(const at::Tensor& a, const at::Tensor& b, Kept kept) : a_(a.contiguous()), b_(b.contiguous()) {
  TORCH_CHECK(!a.is_meta(), "[lacewing.SparseTensor] entries on meta have no indices to meet by");
  if (is_on_host(a)) {
    host_.emplace(structure::KeySet{a_.const_data_ptr<std::int64_t>(), a_.numel()},
                  structure::KeySet{b_.const_data_ptr<std::int64_t>(), b_.numel()}, kept, torch_executor());
    count_ = host_->count();
  } else {
    count_on_device(kept);
  }
}

void SetMerge::count_on_device(Kept kept) {
  const DeviceCall call(a_.device());
  device_.a_count = a_.numel();
  device_.b_count = b_.numel();
  device_.common = kept == Kept::common;
  device_.a = a_.const_data_ptr<std::int64_t>();
  device_.b = b_.const_data_ptr<std::int64_t>();
  cuts_ = call.integers(device_.tiles() + 1);
  kept_ = call.integers(device_.tiles());
  device_.cuts = mutable_data(cuts_);
  device_.kept = reinterpret_cast<std::uint64_t*>(mutable_data(kept_));
  if (device_.tiles() == 0) {
    return;
  }
  const at::Tensor space = call.workspace(kernels::cuda::merge_workspace(device_));
  kernels::cuda::find_merged(device_, call.stream(), space.mutable_data_ptr());
  count_ = read_back(kept_.narrow(0, device_.tiles() - 1, 1))[0];
}

at::Tensor SetMerge::keys_out() const { return empty_result({count_}, a_.options()); }

kernels::SetMerge SetMerge::device_merge(const at::Tensor& keys) const {
  kernels::SetMerge merge = device_;
  merge.keys = mutable_data(keys);
  return merge;
}

at::Tensor SetMerge::write(at::Tensor& in_a, at::Tensor& in_b) const {
  const at::Tensor keys = keys_out();
  in_a = empty_result({count_}, a_.options());
  in_b = empty_result({count_}, a_.options());
  if (host_) {
    host_->write(mutable_data(keys), mutable_data(in_a), mutable_data(in_b));
  } else {
    const DeviceCall call(a_.device());
    kernels::cuda::write_merged(device_merge(keys), mutable_data(in_a), mutable_data(in_b), call.stream());
  }
  return keys;
}

at::Tensor SetMerge::write(const kernels::Elements& a, const kernels::Elements& b, at::Tensor& a_out,
                           at::Tensor& b_out) const {
  const at::Tensor keys = keys_out();
  const std::int64_t bytes = a_out.element_size();
  if (host_) {
    host_->write(mutable_data(keys), a, b, bytes, a_out.mutable_data_ptr(), b_out.mutable_data_ptr());
  } else {
    const DeviceCall call(a_.device());
    kernels::cuda::write_merged(device_merge(keys), a, b, bytes, a_out.mutable_data_ptr(), b_out.mutable_data_ptr(),
                                call.stream());
  }
  return keys;
}

at::Tensor SetMerge::write(const kernels::Elements& a, const kernels::Elements& b, kernels::Combine combine,
                           at::Tensor& out) const {
  const at::Tensor keys = keys_out();
  const bool is_double = out.scalar_type() == at::kDouble;
  if (host_) {
    host_->write(mutable_data(keys), a, b, combine, is_double, out.mutable_data_ptr());
  } else {
    const DeviceCall call(a_.device());
    kernels::cuda::write_merged(device_merge(keys), a, b, combine, is_double, out.mutable_data_ptr(), call.stream());
  }
  return keys;
}

Merged union_of(const at::Tensor& a, const at::Tensor& b) {
  Merged merged;
  merged.keys = SetMerge(a, b, Kept::all).write(merged.in_a, merged.in_b);
  return merged;
}

Merged intersection_of(const at::Tensor& a, const at::Tensor& b) {
  Merged merged;
  merged.keys = SetMerge(a, b, Kept::common).write(merged.in_a, merged.in_b);
  return merged;
}

}  // namespace lacewing::index
