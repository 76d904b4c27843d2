// for_each and for_each_nd on every executor of the CPU.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include <gtest/gtest.h>

#include <lacewing/dispatch/torch.h>

namespace lacewing::dispatch {
namespace {

constexpr tag<Device::cpu> cpu;
constexpr tag<Device::reference> reference;

struct ThreadCount {
  explicit ThreadCount(int wanted) : before(at::get_num_threads()) { at::set_num_threads(wanted); }
  ~ThreadCount() { at::set_num_threads(before); }
  int before;
};

TEST(ForEach, CallsEveryIndexOnceWithTheTag) {
  const ThreadCount threads(2);
  std::vector<int> calls(10'007, 0);

  for_each(
      cpu, torch_executor(), 10'007,
      [&](auto t, std::int64_t i) {
        static_assert(tag_match<decltype(t), Device::cpu>);
        ++calls[static_cast<std::size_t>(i)];
      },
      /*grain=*/1);

  EXPECT_EQ(calls, std::vector<int>(10'007, 1));
}

TEST(ForEach, UsesTwoThreadsOfTorch) {
  const ThreadCount threads(2);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> arrived{0};

  // Both indices wait for each other, so the test passes only when they run at the same time.
  for_each(
      cpu, torch_executor(), 2,
      [&](auto, std::int64_t) {
        {
          const std::lock_guard lock(mutex);
          seen.insert(std::this_thread::get_id());
        }
        ++arrived;
        for (int spin = 0; arrived < 2 && spin < 10'000; ++spin) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      },
      /*grain=*/1);

  EXPECT_EQ(arrived, 2);
  EXPECT_EQ(seen.size(), 2u);
}

TEST(ForEach, FollowsTorchsThreadCount) {
  const ThreadCount threads(1);

  EXPECT_EQ(torch_executor().max_threads(), 1);
}

TEST(ForEach, TheGrainKeepsSmallWorkOnOneThread) {
  const ThreadCount threads(2);
  std::set<std::thread::id> seen;

  for_each(cpu, torch_executor(), 100, [&](auto, std::int64_t) { seen.insert(std::this_thread::get_id()); });

  EXPECT_EQ(seen, std::set{std::this_thread::get_id()});
}

TEST(ForEach, TheShortFormUsesTorchsThreads) {
  std::vector<int> calls(5, 0);

  for_each(cpu, 5, [&](auto, std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });

  EXPECT_EQ(calls, std::vector<int>(5, 1));
}

TEST(ForEach, TheReferenceRunsInOrderOnTheCaller) {
  std::vector<std::int64_t> order;

  for_each(reference, torch_executor(), 5000, [&](auto, std::int64_t i) { order.push_back(i); }, /*grain=*/1);

  ASSERT_EQ(order.size(), 5000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ForEach, NothingHappensForAnEmptyRange) {
  for_each(cpu, torch_executor(), 0, [](auto, std::int64_t) { FAIL(); });
  for_each(cpu, serial_executor(), -3, [](auto, std::int64_t) { FAIL(); });
  for_each_nd<2>(cpu, torch_executor(), {4, 0}, [](auto, auto) { FAIL(); });
  for_each_nd<2>(reference, serial_executor(), {-1, 7}, [](auto, auto) { FAIL(); });
}

TEST(ForEach, ExceptionsReachTheCaller) {
  const ThreadCount threads(2);
  const auto throws = [](auto, std::int64_t i) {
    if (i == 900) {
      throw std::runtime_error("index 900");
    }
  };

  EXPECT_THROW(for_each(cpu, torch_executor(), 1000, throws, /*grain=*/1), std::runtime_error);
}

// An executor that only records what it was asked for.
std::int64_t recorded_end = 0;
void record(std::int64_t, std::int64_t end, std::int64_t, CpuExecutor::Chunk, void*) { recorded_end = end; }

TEST(ForEach, CountsBeyond32BitsReachTheExecutor) {
  const CpuExecutor recorder{record, [] { return 1; }};

  for_each_nd<3>(cpu, recorder, {70'000, 70'000, 3}, [](auto, auto) {});

  EXPECT_EQ(recorded_end, 14'700'000'000);
}

TEST(ForEachNd, IndicesBeyond32BitsAreUnravelled) {
  const std::array<std::int64_t, 3> extents{70'000, 70'000, 3};

  const auto last = detail::unravel<std::int64_t>(14'699'999'999, extents);

  EXPECT_EQ(last, (std::array<std::int64_t, 3>{69'999, 69'999, 2}));
}

TEST(ForEachNd, ABoxBeyond63BitsIsAnError) {
  EXPECT_THROW(for_each_nd<3>(cpu, serial_executor(), {1LL << 31, 1LL << 31, 4}, [](auto, auto) {}),
               std::overflow_error);
}

TEST(ForEachNd, ChunksOfAnySizeVisitTheSameIndices) {
  const ThreadCount threads(2);
  const std::array<std::int64_t, 3> extents{5, 1, 7};
  for (const std::int64_t grain : {1, 2, 3, 5, 35, 100}) {
    std::vector<int> calls(35, 0);

    for_each_nd<3>(
        cpu, torch_executor(), extents,
        [&](auto, const std::array<std::int64_t, 3>& at) {
          ++calls[static_cast<std::size_t>((at[0] * 1 + at[1]) * 7 + at[2])];
        },
        grain);

    EXPECT_EQ(calls, std::vector<int>(35, 1)) << grain;
  }
}

TEST(ForEachNd, ChunksMayRunInAnyOrder) {
  // Runs the range in chunks of three, last chunk first.
  const CpuExecutor backwards{
      [](std::int64_t begin, std::int64_t end, std::int64_t, CpuExecutor::Chunk chunk, void* context) {
        for (std::int64_t stop = end; stop > begin; stop -= 3) {
          chunk(context, std::max(begin, stop - 3), stop);
        }
      },
      [] { return 1; }};
  const auto fill = [](auto t, const CpuExecutor& executor) {
    std::vector<std::int64_t> out(4 * 5 * 6);
    for_each_nd<3>(t, executor, {4, 5, 6}, [&](auto, const std::array<std::int64_t, 3>& at) {
      out[static_cast<std::size_t>((at[0] * 5 + at[1]) * 6 + at[2])] = 100 * at[0] + 10 * at[1] + at[2];
    });
    return out;
  };

  EXPECT_EQ(fill(cpu, backwards), fill(reference, serial_executor()));
}

TEST(ForEachNd, ReferenceIsRowMajor) {
  std::vector<std::array<std::int64_t, 2>> order;

  for_each_nd<2>(reference, {2, 2}, [&](auto, const std::array<std::int64_t, 2>& at) { order.push_back(at); });

  EXPECT_EQ(order, (std::vector<std::array<std::int64_t, 2>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
}

}  // namespace
}  // namespace lacewing::dispatch
