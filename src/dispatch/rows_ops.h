// The registered row operators as typed handles, looked up once.
#pragma once

#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

namespace lacewing {

inline const auto& gather_rows_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lacewing::gather_rows", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>();
  return op;
}

inline const auto& scatter_add_rows_op() {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("lacewing::scatter_add_rows", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymInt, std::string_view, bool)>();
  return op;
}

}  // namespace lacewing
