// A convolution with what follows it: batch norm by running statistics, an addition, a ReLU.
#pragma once

#include "conv/calls.h"

namespace lacewing::conv {

/// relu(scale * sums + shift + residual), each where it is given. Scale and shift come together, of the dtype that sums
/// have.
struct Finish {
  at::Tensor scale;
  at::Tensor shift;
  at::Tensor residual;
  bool relu = false;

  /// Finishes sums that lie in y, in place.
  void apply(at::Tensor y) const;
};

/// A checked convolution, for backends. On the tiles of the CPU the rest is done while a tile is in cache.
at::Tensor run_conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                    const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed, const Finish& finish);

}  // namespace lacewing::conv
