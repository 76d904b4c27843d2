#include "product/plan_fields.h"

#include <algorithm>
#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <lacewing/dispatch/torch.h>

#include "product/shape.h"

namespace lacewing::products {

const std::int64_t* HostIndex::data() const {
  static constexpr std::int64_t nothing = 0;
  return !present() ? nullptr : length() == 0 ? &nothing : tensor.const_data_ptr<std::int64_t>();
}

at::Tensor FieldChecker::integers(const char* argument, const std::optional<at::Tensor>& given) {
  if (!given) {
    return {};
  }
  TORCH_CHECK(given->layout() == at::kStrided && !given->is_nested() && !given->is_quantized(), prefix(), argument,
              " must be a dense tensor");
  TORCH_CHECK(given->scalar_type() == at::kInt || given->scalar_type() == at::kLong, prefix(), argument,
              " must have dtype int32 or int64, not ", dtype_text(given->scalar_type()));
  TORCH_CHECK(given->dim() == 1, prefix(), argument, " must have 1 dimension, not shape ",
              shape_text(given->sym_sizes()));
  TORCH_CHECK(!device || *device == given->device(), prefix(), argument, " is on ", given->device(),
              " but another field is on ", *device);
  TORCH_CHECK(!given->is_meta() && given->has_storage() && !given->unsafeGetTensorImpl()->is_python_dispatch(),
              prefix(), argument,
              " has no values here: an info is built from them, so build it outside of what is traced, mapped or on "
              "meta");
  device = given->device();
  return given->to(at::kLong).contiguous();
}

HostIndex FieldChecker::index(const char* argument, const std::optional<at::Tensor>& given) {
  const at::Tensor checked = integers(argument, given);
  if (!checked.defined()) {
    return {};
  }
  HostIndex host{checked.cpu(), 0};
  host.limit = check_range(argument, host);
  return host;
}

std::int64_t FieldChecker::check_range(const char* argument, const HostIndex& index) const {
  const std::int64_t* const values = index.data();
  std::atomic<std::int64_t> smallest{0};
  std::atomic<std::int64_t> largest{-1};
  at::parallel_for(0, index.length(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t low = 0;
    std::int64_t high = -1;
    for (std::int64_t i = begin; i < end; ++i) {
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
    }
    for (auto seen = smallest.load(); low < seen && !smallest.compare_exchange_weak(seen, low);) {
    }
    for (auto seen = largest.load(); high > seen && !largest.compare_exchange_weak(seen, high);) {
    }
  });
  if (smallest < 0) {
    const auto* const bad = std::find_if(values, values + index.length(), [](std::int64_t v) { return v < 0; });
    TORCH_CHECK(false, prefix(), argument, "[", bad - values, "] = ", *bad, " is negative");
  }
  if (largest >= kLargestSize) {
    const auto* const bad =
        std::find_if(values, values + index.length(), [](std::int64_t v) { return v >= kLargestSize; });
    TORCH_CHECK(false, prefix(), argument, "[", bad - values, "] = ", *bad, " is too large: indices must be below ",
                kLargestSize);
  }
  return largest + 1;
}

void FieldChecker::below(const char* argument, const HostIndex& index, const char* limit_name,
                         std::int64_t limit) const {
  if (index.limit <= limit) {
    return;
  }
  const std::int64_t* const values = index.data();
  const auto* const bad = std::find_if(values, values + index.length(), [&](std::int64_t v) { return v >= limit; });
  TORCH_CHECK(false, prefix(), argument, "[", bad - values, "] = ", *bad, " is out of range: ", limit_name, " is ",
              limit);
}

void FieldChecker::size(const char* argument, std::optional<std::int64_t> value) const {
  TORCH_CHECK(!value || (*value >= 0 && *value <= kLargestSize), prefix(), argument, " must lie in [0, ", kLargestSize,
              "], not ", value.value_or(0));
}

std::function<void*(std::int64_t length, bool wide)> PlanMemory::allocate() {
  return [this](std::int64_t length, bool wide) {
    try {
      array = at::empty({length}, at::device(at::kCPU).dtype(wide ? at::kLong : at::kInt));
    } catch (const c10::Error&) {
      throw std::bad_alloc();
    }
    return array.mutable_data_ptr();
  };
}

}  // namespace lacewing::products
