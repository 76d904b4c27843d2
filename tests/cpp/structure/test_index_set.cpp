// Index sets: keys, sorting and merging against what is obviously right, for every number of threads.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "structure/index_set.h"
#include "support.h"

namespace lacewing::structure {
namespace {

using Keys = std::vector<std::int64_t>;

Keys random_keys(std::int64_t count, std::int64_t limit, unsigned seed) {
  std::mt19937_64 random(seed);
  Keys keys(static_cast<std::size_t>(count));
  for (auto& key : keys) {
    key = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  }
  return keys;
}

Keys random_set(std::int64_t count, std::int64_t limit, unsigned seed) {
  Keys keys = random_keys(count, limit, seed);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::int64_t size_of(const Keys& keys) { return static_cast<std::int64_t>(keys.size()); }

TEST(IndexSet, KeysAreRowMajorAndTurnBack) {
  // (2, 3, 4): the index (1, 2, 3) has the key 23.
  const Keys indices{1, 0, 2, 1, 3, 0};
  const Keys sizes{2, 3, 4};
  Keys keys(2);
  Keys back(6);

  linear_keys({indices.data(), 2, 2, 1}, sizes, keys.data(), serial_executor());
  unravel_keys(keys.data(), 2, sizes, back.data(), serial_executor());

  EXPECT_EQ(keys, (Keys{23, 4}));
  EXPECT_EQ(back, indices);
}

TEST(IndexSet, ProductsThatOverflowAreSeen) {
  std::int64_t product = 0;
  EXPECT_TRUE(checked_product(Keys{1 << 30, 1 << 30}, product));
  EXPECT_EQ(product, std::int64_t{1} << 60);
  EXPECT_FALSE(checked_product(Keys{std::int64_t{1} << 40, std::int64_t{1} << 40}, product));
  EXPECT_TRUE(checked_product(Keys{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}, product));
  EXPECT_EQ(product, 0);
}

TEST(IndexSet, TheFirstEntryOutsideIsFoundWhateverTheDim) {
  const Keys indices{0, 1, 5, 0, 0, -1, 0, 0};
  EXPECT_EQ(first_outside({indices.data(), 4, 4, 1}, Keys{3, 3}, serial_executor()), 1);
  EXPECT_EQ(first_outside({indices.data(), 1, 4, 1}, Keys{3, 3}, serial_executor()), 1);
}

TEST(IndexSet, SortingIsStableForEveryLimitAndThreadCount) {
  for (const std::int64_t limit : {std::int64_t{1}, std::int64_t{7}, std::int64_t{1} << 20, std::int64_t{1} << 45}) {
    for (const int threads : {1, 2, 4}) {
      const Keys keys = random_keys(40000, limit, 1);
      Keys order(keys.size()), sorted(keys.size());

      sort_keys(keys.data(), size_of(keys), limit, order.data(), sorted.data(), executor_of(threads));

      Keys expected(keys.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = static_cast<std::int64_t>(i);
      }
      std::stable_sort(expected.begin(), expected.end(), [&](std::int64_t a, std::int64_t b) {
        return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
      });
      ASSERT_EQ(order, expected) << limit << " " << threads;
      ASSERT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
    }
  }
}

TEST(IndexSet, RunsBeginWhereKeysChange) {
  const Keys keys{2, 2, 5, 9, 9, 9};
  Keys segments(keys.size() + 1);

  const std::int64_t runs = find_runs(keys.data(), size_of(keys), segments.data(), serial_executor());

  EXPECT_EQ(runs, 3);
  EXPECT_EQ(Keys(segments.begin(), segments.begin() + 4), (Keys{0, 2, 3, 6}));
  EXPECT_EQ(find_runs(keys.data(), 0, segments.data(), serial_executor()), 0);
}

TEST(IndexSet, SortednessIsSeenOnTheBordersOfParts) {
  Keys keys(100000);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<std::int64_t>(i);
  }
  for (const int threads : {1, 2, 4}) {
    EXPECT_EQ(sortedness(keys.data(), size_of(keys), executor_of(threads)), Sortedness::strict);
  }
  keys[50000] = keys[49999];
  EXPECT_EQ(sortedness(keys.data(), size_of(keys), executor_of(2)), Sortedness::sorted);
  keys[50000] = 0;
  EXPECT_EQ(sortedness(keys.data(), size_of(keys), executor_of(2)), Sortedness::unsorted);
}

TEST(IndexSet, MergingGivesTheUnionAndTheIntersectionWithTheirPlaces) {
  for (const std::int64_t a_count : {0, 1, 3000, 70000}) {
    for (const std::int64_t b_count : {0, 2, 50000}) {
      for (const int threads : {1, 2, 4}) {
        const Keys a = random_set(a_count, 100000, 1);
        const Keys b = random_set(b_count, 100000, 2);
        std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> places;
        for (std::size_t i = 0; i < a.size(); ++i) {
          places[a[i]] = {static_cast<std::int64_t>(i), -1};
        }
        for (std::size_t j = 0; j < b.size(); ++j) {
          places.try_emplace(b[j], -1, -1).first->second.second = static_cast<std::int64_t>(j);
        }
        const std::size_t room = a.size() + b.size();
        Keys keys(room), in_a(room), in_b(room);

        const std::int64_t all = merge_keys(a.data(), size_of(a), b.data(), size_of(b), keys.data(), in_a.data(),
                                            in_b.data(), executor_of(threads));

        ASSERT_EQ(all, static_cast<std::int64_t>(places.size()));
        std::size_t next = 0;
        for (const auto& [key, where] : places) {
          ASSERT_EQ(keys[next], key);
          ASSERT_EQ(std::pair(in_a[next], in_b[next]), where);
          ++next;
        }

        const std::int64_t shared = intersect_keys(a.data(), size_of(a), b.data(), size_of(b), keys.data(), in_a.data(),
                                                   in_b.data(), executor_of(threads));

        Keys expected;
        std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
        ASSERT_EQ(Keys(keys.begin(), keys.begin() + shared), expected);
      }
    }
  }
}

}  // namespace
}  // namespace lacewing::structure
