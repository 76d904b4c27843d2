// Which implementation runs. Threads may call every function here at once; the choice is that of the process.
#pragma once

#include <cstdint>

#include <lacewing/export.h>

namespace lacewing {

/// `automatic`: the tuned kernels of the tensors' device. `reference`: the serial oracle, on the host, for every
/// device.
enum class Backend : std::uint8_t { automatic, reference };

/// The backend of the process: what set_backend last chose, or the environment variable LACEWING_BACKEND (automatic or
/// reference) where it was never called. One choice for all threads, because backward passes run on threads of their
/// own.
[[nodiscard]] LACEWING_API Backend backend();
LACEWING_API void set_backend(Backend backend);

/// Chooses a backend for the process until the end of the scope.
class LACEWING_API BackendScope {
 public:
  [[nodiscard]] explicit BackendScope(Backend wanted) : previous_(backend()) { set_backend(wanted); }
  ~BackendScope() { set_backend(previous_); }
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

 private:
  Backend previous_;
};

}  // namespace lacewing
