#include "tensor/densify.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

namespace lacewing {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::string bytes_text(double bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) {
    bytes /= 1024;
  }
  std::ostringstream text;
  text.precision(4);
  text << bytes << ' ' << units[unit];
  return text.str();
}

/// "16MiB", "1024", "2GiB".
std::int64_t parse_bytes(const std::string& text) {
  std::size_t end = 0;
  std::int64_t number = -1;
  try {
    number = std::stoll(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  const int shift = unit.empty() || unit == "B" ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : -1;
  TORCH_CHECK(end > 0 && number >= 0 && shift >= 0 && number <= (kNoLimit >> shift),
              "[lacewing.densify] LACEWING_DENSIFY names \"", text, "\", which is no number of bytes such as 16MiB");
  return number << shift;
}

DensifyPolicy parse_policy(const std::string& text) {
  if (text == "allow") {
    return DensifyPolicy::allow();
  }
  const auto colon = text.find(':');
  const std::string mode = text.substr(0, colon);
  TORCH_CHECK(colon != std::string::npos && (mode == "warn" || mode == "raise"),
              "[lacewing.densify] LACEWING_DENSIFY is \"", text, "\", not allow, warn:BYTES or raise:BYTES");
  const std::int64_t bytes = parse_bytes(text.substr(colon + 1));
  return mode == "warn" ? DensifyPolicy::warn(bytes) : DensifyPolicy::raise(bytes);
}

struct Global {
  std::atomic<std::int64_t> warn_above, raise_above;

  Global() {
    const char* const text = std::getenv("LACEWING_DENSIFY");
    set(text == nullptr ? DensifyPolicy{} : parse_policy(text));
  }
  void set(const DensifyPolicy& policy) {
    warn_above = policy.warn_above;
    raise_above = policy.raise_above;
  }
};

Global& global_policy() {
  static Global policy;
  return policy;
}

thread_local std::optional<DensifyPolicy> scoped_policy;
thread_local bool recording = false;
thread_local std::vector<std::string> recorded;

}  // namespace

DensifyPolicy DensifyPolicy::allow() { return {kNoLimit, kNoLimit}; }
DensifyPolicy DensifyPolicy::warn(std::int64_t bytes) { return {bytes, std::max(bytes, DensifyPolicy{}.raise_above)}; }
DensifyPolicy DensifyPolicy::raise(std::int64_t bytes) { return {bytes, bytes}; }

DensifyPolicy densify_policy() {
  return scoped_policy ? *scoped_policy : DensifyPolicy{global_policy().warn_above, global_policy().raise_above};
}

void set_densify_policy(const DensifyPolicy& policy) { global_policy().set(policy); }

DensifyScope::DensifyScope(const DensifyPolicy& policy) : previous_(scoped_policy) { scoped_policy = policy; }
DensifyScope::~DensifyScope() { scoped_policy = previous_; }

namespace tensor {

void check_dense_result(const std::string& op, at::IntArrayRef shape, at::ScalarType dtype) {
  double bytes = static_cast<double>(c10::elementSize(dtype));
  for (const std::int64_t size : shape) {
    bytes *= static_cast<double>(size);
  }
  const DensifyPolicy policy = densify_policy();
  const auto sentence = [&](std::int64_t limit) {
    return "[lacewing.densify] " + op + " has no sparse form here and makes a strided tensor of shape " +
           shape_text(shape) + ", " + bytes_text(bytes) + ", above the limit of " +
           bytes_text(static_cast<double>(limit)) +
           ": raise it by lacewing.densify_policy(...) or LACEWING_DENSIFY, or call to_dense() on purpose";
  };
  TORCH_CHECK(bytes <= static_cast<double>(policy.raise_above), sentence(policy.raise_above));
  if (bytes > static_cast<double>(policy.warn_above)) {
    TORCH_WARN(sentence(policy.warn_above));
  }
}

at::Tensor densified_for(const std::string& op, const at::Tensor& sparse) {
  TORCH_CHECK(components(sparse).has_fill(), "[lacewing.densify] ", op,
              " needs the elements without an entry, but the fill is undefined: give one by with_fill(...)");
  if (recording && sparse.dim() > 0) {
    recorded.push_back(op);
  }
  check_dense_result(op, sparse.sizes(), sparse.scalar_type());
  return densified(components(sparse));
}

namespace {

std::vector<std::int64_t> current_policy() {
  const DensifyPolicy policy = densify_policy();
  return {policy.warn_above, policy.raise_above};
}

void set_policy(at::IntArrayRef policy, bool scoped) {
  if (policy.empty()) {
    scoped_policy.reset();
    return;
  }
  const DensifyPolicy wanted{policy[0], policy[1]};
  if (scoped) {
    scoped_policy = wanted;
  } else {
    set_densify_policy(wanted);
  }
}

bool has_scoped_policy() { return scoped_policy.has_value(); }

/// Starts or stops listening; gives what was recorded so far.
std::vector<std::string> record(bool on) {
  std::vector<std::string> so_far;
  so_far.swap(recorded);
  recording = on;
  return so_far;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("densify_policy() -> int[]", current_policy);
  m.def("set_densify_policy(int[] policy, bool scoped) -> ()", set_policy);
  m.def("has_scoped_densify_policy() -> bool", has_scoped_policy);
  m.def("record_densified(bool on) -> str[]", record);
}

}  // namespace tensor
}  // namespace lacewing
