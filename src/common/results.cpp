#include "common/results.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <lacewing/memory.h>

#include "common/kept_memory.h"

namespace lacewing {
namespace {

/// Tells torch's profiler what is handed out, as torch's own allocator does.
class KeptAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    void* const data = take_memory(bytes);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void release(void* data) {
    c10::profiledCPUMemoryReporter().Delete(data);
    return_memory(data);
  }
};

KeptAllocator& kept_allocator() {
  static KeptAllocator* const allocator = new KeptAllocator();  // outlives every tensor
  return *allocator;
}

/// Of a size that overflows anything: the allocation itself refuses it.
std::uint64_t bytes_of(at::IntArrayRef sizes, const at::TensorOptions& options) {
  std::uint64_t bytes = options.dtype().itemsize();
  for (const std::int64_t size : sizes) {
    bytes *= static_cast<std::uint64_t>(size);
  }
  return bytes;
}

bool keeps(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Context& context = at::globalContext();
  return options.device().is_cpu() && options.layout() == at::kStrided && !options.pinned_memory() &&
         bytes_of(sizes, options) >= kLeastKeptBytes && c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator() &&
         !(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory());
}

}  // namespace

at::Tensor empty_result(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!keeps(sizes, options)) {
    return at::empty(sizes, options.requires_grad(false));
  }
  return at::detail::empty_generic(sizes, &kept_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   c10::typeMetaToScalarType(options.dtype()), std::nullopt);
}

}  // namespace lacewing

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("kept_memory() -> int", [] { return static_cast<std::int64_t>(lacewing::kept_memory()); });
  m.def("get_kept_memory_limit() -> int", [] { return static_cast<std::int64_t>(lacewing::kept_memory_limit()); });
  m.def("set_kept_memory_limit(int bytes) -> ()", [](std::int64_t bytes) {
    TORCH_CHECK(bytes >= 0, "[lacewing.set_kept_memory_limit] bytes must not be negative, not ", bytes);
    lacewing::set_kept_memory_limit(static_cast<std::size_t>(bytes));
  });
}
