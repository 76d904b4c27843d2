// The library's registered ops as typed handles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

namespace lacewing {

/// The op "lacewing::<name>"; looked up at every call, so kept by those who call it often.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("lacewing::" + name).c_str(), "").typed<Signature>();
}

/// The name of an op as a template argument.
template <std::size_t N>
struct OpName {
  char text[N];
  // NOLINTNEXTLINE(google-explicit-constructor): made of a literal
  consteval OpName(const char (&literal)[N]) { std::copy_n(literal, N, text); }
};

/// The same, looked up once for each op.
template <OpName name, typename Signature>
const c10::TypedOperatorHandle<Signature>& typed_op() {
  static const auto op = find_op<Signature>(name.text);
  return op;
}

}  // namespace lacewing
