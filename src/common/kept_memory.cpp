#include "common/kept_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <lacewing/memory.h>

namespace lacewing {
namespace {

constexpr std::size_t kAlignment = 64;
/// Blocks of some of these lie on large pages where the system has them: an index leads anywhere in such a block, and
/// the processor knows few small pages by heart.
constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kLeastLargeBytes = 2 * kLargePage;

/// A share of the machine's memory.
std::size_t default_limit() {
#if defined(__SANITIZE_ADDRESS__)
  return 0;  // a block that is used after it was freed must be seen
#else
  constexpr std::size_t kMost = std::size_t{1} << 30;
  constexpr std::size_t kShare = 32;
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long bytes = sysconf(_SC_PAGESIZE);
  const std::size_t memory =
      pages > 0 && bytes > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(bytes) : 0;
  return std::min(memory / kShare, kMost);
#endif
}

/// In front of the data.
struct alignas(kAlignment) Block {
  std::size_t bytes;  ///< of the data

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }

  static Block* make(std::size_t bytes) {
    const std::size_t alignment = bytes >= kLeastLargeBytes ? kLargePage : kAlignment;
    const std::size_t whole = (sizeof(Block) + bytes + alignment - 1) / alignment * alignment;
    void* const memory = whole < bytes ? nullptr : std::aligned_alloc(alignment, whole);
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    if (alignment == kLargePage) {
      madvise(memory, whole, MADV_HUGEPAGE);  // a wish: systems that have no such pages say no
    }
#endif
    return new (memory) Block{bytes};
  }
  static void free(Block* block) { std::free(block); }
};

std::size_t limit_from_environment() {
  const char* const text = std::getenv("LACEWING_KEPT_MEMORY");
  if (text == nullptr || *text == '\0') {
    return default_limit();
  }
  std::size_t bytes = 0;
  const char* const end = text + std::strlen(text);
  const auto [read, error] = std::from_chars(text, end, bytes);
  if (error != std::errc() || read != end) {
    throw std::runtime_error("[lacewing.kept_memory_limit] LACEWING_KEPT_MEMORY must be a number of bytes, not " +
                             std::string(text));
  }
  return bytes;
}

/// Blocks in use by nobody, the oldest first. Who finds it locked goes without: also the child of a fork, whose copy
/// may stay locked for ever.
class Kept {
 public:
  static Kept& instance() {
    static Kept* const kept = new Kept();  // outlives every tensor
    return *kept;
  }

  /// The smallest block that fits and wastes no more than a quarter of itself, or null.
  Block* take(std::size_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
      return nullptr;
    }
    auto best = blocks_.end();
    for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
      const std::size_t size = (*it)->bytes;
      if (size >= bytes && size - size / 4 <= bytes && (best == blocks_.end() || size < (*best)->bytes)) {
        best = it;
      }
    }
    if (best == blocks_.end()) {
      return nullptr;
    }
    Block* const found = *best;
    blocks_.erase(best);
    total_ -= found->bytes;
    return found;
  }

  void put(Block* block) noexcept {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || block->bytes > limit_ || blocks_.size() == blocks_.capacity()) {
      return Block::free(block);
    }
    blocks_.push_back(block);
    total_ += block->bytes;
    shrink();
  }

  std::size_t limit() {
    const std::lock_guard lock(mutex_);
    return limit_;
  }
  void set_limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    shrink();
  }
  std::size_t total() {
    const std::lock_guard lock(mutex_);
    return total_;
  }

 private:
  Kept() : limit_(limit_from_environment()) { blocks_.reserve(kMostBlocks); }

  void shrink() {
    auto first = blocks_.begin();
    for (; total_ > limit_; ++first) {
      total_ -= (*first)->bytes;
      Block::free(*first);
    }
    blocks_.erase(blocks_.begin(), first);
  }

  static constexpr std::size_t kMostBlocks = 256;

  std::mutex mutex_;
  std::vector<Block*> blocks_;
  std::size_t total_ = 0;
  std::size_t limit_;
};

}  // namespace

void* take_memory(std::size_t bytes) {
  Block* block = bytes >= kLeastKeptBytes ? Kept::instance().take(bytes) : nullptr;
  return (block != nullptr ? block : Block::make(bytes))->data();
}

void return_memory(void* data) noexcept {
  if (data == nullptr) {
    return;
  }
  Block* const block = Block::of(data);
  if (block->bytes < kLeastKeptBytes) {
    return Block::free(block);
  }
  Kept::instance().put(block);
}

std::size_t kept_memory_limit() { return Kept::instance().limit(); }
void set_kept_memory_limit(std::size_t bytes) { Kept::instance().set_limit(bytes); }
std::size_t kept_memory() { return Kept::instance().total(); }

}  // namespace lacewing
