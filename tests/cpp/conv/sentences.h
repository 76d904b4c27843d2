// The sentence that bad input gets.
#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace lacewing {

/// What f throws, or that it threw nothing.
template <typename F>
std::string sentence_of(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

}  // namespace lacewing
