// Products that are a simpler one. Torch-free.
#pragma once

#include <utility>

#include "kernels/product.h"

namespace lacewing::kernels {

/// mul with an operand that is expanded along the channels is vecsca, and so are products of single numbers; a sum over
/// one n is none.
inline ProductArgs simplified(ProductArgs args) {
  args.accumulate = args.accumulate && args.batch != 1;
  if (args.extent_a == 1 && (args.pattern == Pattern::mul || args.pattern == Pattern::inner)) {
    args.pattern = Pattern::vecsca;
  }
  if (args.pattern == Pattern::mul && args.extent_a > 1) {
    if (args.y.stride_a == 0) {
      args.pattern = Pattern::vecsca;
    } else if (args.x.stride_a == 0) {
      args.pattern = Pattern::vecsca;
      std::swap(args.x, args.y);
      std::swap(args.terms.index1, args.terms.index2);
    }
  }
  return args;
}

}  // namespace lacewing::kernels
