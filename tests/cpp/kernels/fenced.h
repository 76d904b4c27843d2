// Memory that ends where a page begins that nobody may touch. A kernel that reads or writes beyond the end of an
// operand stops the test, at every ISA level, also by masked vectors, which sanitizers do not see.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace lacewing::kernels::test {

/// Blocks of whole pages with a fence behind. They are kept when they are given back: tests make many.
class Fences {
 public:
  static Fences& all() {
    static Fences fences;
    return fences;
  }

  /// Where the fence of at least so many bytes begins.
  char* take(std::size_t bytes) {
    const std::size_t whole = pages(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<char*>& free = free_[whole];
    if (!free.empty()) {
      char* const end = free.back();
      free.pop_back();
      return end;
    }
    void* const begin = mmap(nullptr, whole + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED || mprotect(static_cast<char*>(begin) + whole, page_, PROT_NONE) != 0) {
      throw std::bad_alloc();
    }
    return static_cast<char*>(begin) + whole;
  }
  void give_back(char* end, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_[pages(bytes)].push_back(end);
  }

 private:
  std::size_t pages(std::size_t bytes) const { return (bytes + page_ - 1) / page_ * page_; }

  const std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::mutex mutex_;
  std::map<std::size_t, std::vector<char*>> free_;
};

template <typename T>
struct FencedAllocator {
  using value_type = T;

  FencedAllocator() = default;
  template <typename U>
  FencedAllocator(const FencedAllocator<U>&) {}

  T* allocate(std::size_t count) {
    return reinterpret_cast<T*>(Fences::all().take(count * sizeof(T)) - count * sizeof(T));
  }
  void deallocate(T* at, std::size_t count) {
    Fences::all().give_back(reinterpret_cast<char*>(at) + count * sizeof(T), count * sizeof(T));
  }
  bool operator==(const FencedAllocator&) const { return true; }
};

#if defined(__SANITIZE_ADDRESS__)
/// The sanitizer has fences of its own, at both ends.
template <typename T>
using FencedVector = std::vector<T>;
#else
template <typename T>
using FencedVector = std::vector<T, FencedAllocator<T>>;
#endif

}  // namespace lacewing::kernels::test
