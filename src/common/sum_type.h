// The type that sums are made in.
#pragma once

#include <ATen/OpMathType.h>
#include <c10/core/ScalarType.h>

namespace lacewing {

/// As torch's own sums of floats: float for half and bfloat16, and so for complex numbers; every other type itself.
inline at::ScalarType sum_type(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type) ? at::toOpMathType(type) : type;
}

}  // namespace lacewing
