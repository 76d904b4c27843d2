// How what is wrong with a file reaches the user.
#pragma once

#include <string>

#include <c10/util/Exception.h>

#include "common/text.h"

namespace lacewing {

/// Calls f; what is wrong with the file becomes one sentence that names the op and the file.
template <typename F>
void with_sentence(const char* op, const std::string& path, const F& f) {
  try {
    f();
  } catch (const text::FileError& error) {
    TORCH_CHECK(false, "[lacewing.", op, "] ", path, ": ", text::printable(error.what()));
  }
}

}  // namespace lacewing
