// The registered row operators as typed handles.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "common/typed_op.h"

namespace lacewing {

inline const auto& gather_rows_op() {
  return typed_op<"gather_rows", at::Tensor(const at::Tensor&, const at::Tensor&, bool)>();
}

inline const auto& scatter_add_rows_op() {
  return typed_op<"scatter_add_rows",
                  at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymInt, std::string_view, bool)>();
}

}  // namespace lacewing
