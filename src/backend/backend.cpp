#include <atomic>
#include <cstdlib>
#include <string_view>

#include <c10/util/Exception.h>

#include <lacewing/backend.h>

#include "common/enums.h"

namespace lacewing {
namespace {

Backend from_environment() {
  const char* const value = std::getenv("LACEWING_BACKEND");
  const std::string_view name = value != nullptr && *value != '\0' ? value : "automatic";
  TORCH_CHECK(name == "automatic" || name == "reference",
              "[lacewing.backend] LACEWING_BACKEND must be automatic or reference, not ", name);
  return name == "reference" ? Backend::reference : Backend::automatic;
}

/// One choice for the process: autograd runs backward passes on threads of its own.
std::atomic<Backend>& current() {
  static std::atomic<Backend> value{from_environment()};
  return value;
}

}  // namespace

Backend backend() { return current().load(std::memory_order_relaxed); }

void set_backend(Backend backend) {
  current().store(checked_enum("backend", "backend", "Backend", backend, 2), std::memory_order_relaxed);
}

}  // namespace lacewing
