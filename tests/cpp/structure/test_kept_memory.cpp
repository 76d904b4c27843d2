// Memory that is freed and handed out again.
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <lacewing/memory.h>

#include "common/kept_memory.h"

namespace lacewing {
namespace {

constexpr std::size_t kLarge = std::size_t{3} << 20;

class KeptMemory : public testing::Test {
 protected:
  KeptMemory() {
    set_kept_memory_limit(0);
    set_kept_memory_limit(4 * kLarge);
  }
  ~KeptMemory() override {
    set_kept_memory_limit(0);
    set_kept_memory_limit(before_);
  }

 private:
  std::size_t before_ = kept_memory_limit();
};

TEST_F(KeptMemory, BlocksAreAlignedAndComeBack) {
  void* const first = take_memory(kLarge);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0);
  std::memset(first, 1, kLarge);
  return_memory(first);
  EXPECT_EQ(kept_memory(), kLarge);

  void* const second = take_memory(kLarge - kLarge / 8);
  EXPECT_EQ(second, first);
  EXPECT_EQ(kept_memory(), 0);
  void* const third = take_memory(kLarge);
  EXPECT_NE(third, first);
  return_memory(second);
  return_memory(third);
  EXPECT_EQ(kept_memory(), 2 * kLarge);
}

TEST_F(KeptMemory, TheSmallestThatFitsIsTaken) {
  void* const wide = take_memory(kLarge + kLarge / 8);
  void* const close = take_memory(kLarge + 1);
  return_memory(wide);
  return_memory(close);
  EXPECT_EQ(take_memory(kLarge), close);
  EXPECT_EQ(take_memory(kLarge), wide);
  return_memory(close);
  return_memory(wide);
}

TEST_F(KeptMemory, SmallBlocksAndThoseBeyondTheLimitAreFreed) {
  return_memory(take_memory(kLeastKeptBytes - 1));
  EXPECT_EQ(kept_memory(), 0);
  return_memory(take_memory(5 * kLarge));
  EXPECT_EQ(kept_memory(), 0);
  return_memory(nullptr);
  return_memory(take_memory(0));
}

TEST_F(KeptMemory, WhatCannotBeHadIsABadAlloc) {
  EXPECT_THROW(take_memory(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW(take_memory(SIZE_MAX - 100), std::bad_alloc);
}

TEST_F(KeptMemory, ThreadsNeverShareABlock) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t id = 0; id < wrong.size(); ++id) {
    threads.emplace_back([&, id] {
      for (int round = 0; round < 50; ++round) {
        const auto block = take_array<std::size_t>(kLarge / sizeof(std::size_t));
        for (std::size_t at = 0; at < kLarge / sizeof(std::size_t); at += 512) {
          block[at] = id;
        }
        std::this_thread::yield();
        for (std::size_t at = 0; at < kLarge / sizeof(std::size_t); at += 512) {
          wrong[id] += block[at] != id ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
  EXPECT_LE(kept_memory(), 4 * kLarge);
}

}  // namespace
}  // namespace lacewing
