// Sparse convolution by gather, torch's matrix product, and scatter-add, tap by tap: the plain algorithm, on any
// device.
//
// Rows are gathered into a buffer that all taps reuse, and added to the output without atomics, because no row occurs
// twice in a tap. Where source and target are the same voxels the middle tap is one product without a gather. Half
// types are computed with in float. The matrix product is torch's: its bits may depend on the number of threads.
#pragma once

#include <algorithm>

#include <ATen/core/Tensor.h>

#include "kernels/conv.h"

namespace lacewing::conv {

/// Tensors of a call; half types come as they are. `weight` is (taps, groups, in, out), or with the last two dims
/// exchanged where `transposed`. Returns (target rows, groups * out).
struct GemmConv {
  kernels::ConvMap map;
  std::int64_t longest_tap = 0;
  std::int64_t groups = 1;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool transposed = false;

  /// Bytes beside the output.
  std::int64_t workspace(at::ScalarType type) const;
  at::Tensor run(const at::Tensor& features, const at::Tensor& weight, const at::Tensor& bias) const;

  /// For the gradient of the weight, (taps, groups, in, out).
  std::int64_t weight_grad_workspace(at::ScalarType type) const;
  at::Tensor weight_grad(const at::Tensor& features, const at::Tensor& grad) const;

 private:
  /// Rows of the first buffer of weight_grad: depthwise, it also takes the products of the identity tap.
  std::int64_t product_rows() const {
    return in == 1 && out == 1 && map.identity_tap >= 0 ? std::max(longest_tap, map.target_rows) : longest_tap;
  }
};

}  // namespace lacewing::conv
