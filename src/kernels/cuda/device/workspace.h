// A workspace as named, aligned offsets: counted and filled by the same description.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lacewing::kernels::cuda {

template <typename T>
struct Slot {
  std::int64_t offset = 0;

  T* at(void* workspace) const { return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset); }
};

class WorkspaceLayout {
 public:
  template <typename T>
  Slot<T> add(std::int64_t count) {
    return {add_bytes(count * static_cast<std::int64_t>(sizeof(T)))};
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  static constexpr std::int64_t kAlignment = 256;

  std::int64_t add_bytes(std::int64_t bytes) {
    const std::int64_t offset = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  std::int64_t bytes_ = 0;
};

}  // namespace lacewing::kernels::cuda
