// Two sets of keys that increase strictly, merged, on any device.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "kernels/device_index.h"
#include "structure/key_merge.h"

namespace lacewing::index {

using Kept = structure::KeyMerge::Kept;

/// The union or the intersection of two sets, in order. It is counted first, which is one host read on a device; then
/// its keys are written with what belongs to them. The keys of both sets must stay as they are meanwhile.
class SetMerge {
 public:
  SetMerge(const at::Tensor& a, const at::Tensor& b, Kept kept);

  std::int64_t count() const { return count_; }
  /// Of each kind of what is written: the keys.
  at::Tensor write(at::Tensor& in_a, at::Tensor& in_b) const;
  at::Tensor write(const kernels::Elements& a, const kernels::Elements& b, at::Tensor& a_out, at::Tensor& b_out) const;
  at::Tensor write(const kernels::Elements& a, const kernels::Elements& b, kernels::Combine combine,
                   at::Tensor& out) const;

 private:
  at::Tensor keys_out() const;
  void count_on_device(Kept kept);
  /// What the device's kernels take, with the keys to be written.
  kernels::SetMerge device_merge(const at::Tensor& keys) const;

  at::Tensor a_, b_;
  std::int64_t count_ = 0;
  std::optional<structure::KeyMerge> host_;
  kernels::SetMerge device_;
  at::Tensor cuts_, kept_;
};

/// Keys, and where each lies in either set (-1: nowhere).
struct Merged {
  at::Tensor keys, in_a, in_b;
};
Merged union_of(const at::Tensor& a, const at::Tensor& b);
Merged intersection_of(const at::Tensor& a, const at::Tensor& b);

}  // namespace lacewing::index
