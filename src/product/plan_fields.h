// What plans are built from: index arguments on the host, checked with sentences, and memory for the plan.
#pragma once

#include <functional>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace lacewing::products {

/// Sizes beyond this would overflow the arithmetic of offsets.
inline constexpr std::int64_t kLargestSize = std::int64_t{1} << 48;

/// An index argument on the host: int64, contiguous, with its largest entry.
struct HostIndex {
  at::Tensor tensor;  ///< undefined where absent
  std::int64_t limit = 0;

  bool present() const { return tensor.defined(); }
  /// Null where absent, and only there: the data pointer of an empty tensor may be null too.
  const std::int64_t* data() const;
  std::int64_t length() const { return tensor.size(0); }
};

/// Checks the fields of one plan, which lie on one device; `op` is whom errors name.
struct FieldChecker {
  std::string_view op;
  std::optional<at::Device> device;

  std::string prefix() const { return "[lacewing." + std::string(op) + "] "; }
  HostIndex index(const char* argument, const std::optional<at::Tensor>& given);
  /// The same where it lies; its entries are not looked at.
  at::Tensor integers(const char* argument, const std::optional<at::Tensor>& given);
  void below(const char* argument, const HostIndex& index, const char* limit_name, std::int64_t limit) const;
  void size(const char* argument, std::optional<std::int64_t> value) const;

 private:
  /// One more than the largest entry; all must lie in [0, kLargestSize).
  std::int64_t check_range(const char* argument, const HostIndex& index) const;
};

/// Memory for a plan, as an int32 or int64 tensor.
struct PlanMemory {
  at::Tensor array;

  std::function<void*(std::int64_t length, bool wide)> allocate();
};

template <typename F>
auto with_memory(const std::string& prefix, F&& build) {
  try {
    return build();
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(false, prefix, "there is not enough memory for an info of these sizes");
  }
}

template <typename F>
auto with_memory(const FieldChecker& check, F&& build) {
  return with_memory(check.prefix(), std::forward<F>(build));
}

}  // namespace lacewing::products
