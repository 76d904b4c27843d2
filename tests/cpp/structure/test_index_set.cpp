// Index sets: keys, sorting and merging against what is obviously right, for every number of threads.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "structure/entry_groups.h"
#include "structure/entry_scan.h"
#include "structure/index_set.h"
#include "structure/key_merge.h"
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
  Keys keys(2), some(2);
  Keys back(6);

  linear_keys({indices.data(), 2, 2, 1}, Keys{0, 1, 2}, sizes, keys.data(), serial_executor());
  linear_keys({indices.data(), 2, 2, 1}, Keys{2, 0}, Keys{4, 2}, some.data(), serial_executor());
  unravel_keys(keys.data(), 2, sizes, back.data(), serial_executor());

  EXPECT_EQ(keys, (Keys{23, 4}));
  EXPECT_EQ(some, (Keys{7, 0}));
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
  const auto first_outside = [&](std::int64_t count, const Keys& sizes) {
    return scan_entries({indices.data(), count, 4, 1}, sizes, serial_executor()).first_outside;
  };
  EXPECT_EQ(first_outside(4, Keys{3, 3}), 1);
  EXPECT_EQ(first_outside(1, Keys{3, 3}), 1);
  EXPECT_EQ(first_outside(4, Keys{6, 1}), 1);
  EXPECT_EQ(first_outside(1, Keys{1, 0}), 0);
  EXPECT_EQ(first_outside(2, Keys{3}), 2);
}

TEST(IndexSet, TheFirstEntryOutsideIsFoundInEveryPart) {
  const std::int64_t count = 200000;
  for (const int threads : {1, 2, 4}) {
    Keys indices(static_cast<std::size_t>(2 * count), 5);
    for (const std::int64_t bad : {count - 1, std::int64_t{150001}, std::int64_t{70000}, std::int64_t{0}}) {
      indices[static_cast<std::size_t>(count + bad)] = bad % 2 == 0 ? 6 : std::numeric_limits<std::int64_t>::min();
      const EntryScan scan = scan_entries({indices.data(), count, count, 1}, Keys{6, 6}, executor_of(threads));
      EXPECT_EQ(scan.first_outside, bad);
      EXPECT_FALSE(scan.in_order);
    }
  }
}

TEST(IndexSet, AnIndexOfNoDimsIsNotWritten) {
  const Keys keys{0, 0};
  std::int64_t untouched = 7;

  unravel_keys(keys.data(), 2, Keys{}, &untouched, serial_executor());

  EXPECT_EQ(untouched, 7);
}

TEST(IndexSet, KeysTurnBackAtTheEdgeOfInt64) {
  const Keys sizes{3, (std::int64_t{1} << 31) - 1, (std::int64_t{1} << 30) + 7};
  const std::int64_t numel = sizes[0] * sizes[1] * sizes[2];
  const Keys keys{0, 1, sizes[2] - 1, sizes[2], numel / 2, numel - 1};
  Keys indices(18), back(6);

  unravel_keys(keys.data(), 6, sizes, indices.data(), serial_executor());
  linear_keys({indices.data(), 6, 6, 1}, Keys{0, 1, 2}, sizes, back.data(), serial_executor());

  EXPECT_EQ(back, keys);
  EXPECT_EQ(scan_entries({indices.data(), 6, 6, 1}, sizes, serial_executor()).first_outside, 6);
}

/// Entries of a random matrix of indices, grouped in the obvious way: group -> entries in the order stored.
std::map<Keys, Keys> grouped(const Keys& indices, std::int64_t count, const Keys& dims) {
  std::map<Keys, Keys> groups;
  for (std::int64_t e = 0; e < count; ++e) {
    Keys key;
    for (const std::int64_t d : dims) {
      key.push_back(indices[static_cast<std::size_t>(d * count + e)]);
    }
    groups[key].push_back(e);
  }
  return groups;
}

TEST(EntryGroups, AreTheEntriesOfEachIndexInOrder) {
  // The last sizes need more than 63 bits side by side, or more than 64 with the entry.
  for (const Keys& sizes : {Keys{4, 5, 3}, Keys{1, 1, 1}, Keys{1000, 70000, 9},
                            Keys{(std::int64_t{1} << 21) + 1, (std::int64_t{1} << 21) + 1, (1 << 20) + 1},
                            Keys{1 << 20, 1 << 20, 1 << 20}}) {
    for (const Keys& dims : {Keys{0, 1, 2}, Keys{2, 0}, Keys{1}, Keys{}}) {
      for (const std::int64_t count : {0, 1, 2, 300, 40000, 300000}) {
        Keys indices;
        for (std::size_t d = 0; d < 3; ++d) {
          const Keys row = random_keys(count, sizes[d], static_cast<unsigned>(d));
          indices.insert(indices.end(), row.begin(), row.end());
        }
        Keys kept;
        for (const std::int64_t d : dims) {
          kept.push_back(sizes[static_cast<std::size_t>(d)]);
        }
        const auto expected = grouped(indices, count, dims);
        for (const int threads : count == 300 ? std::vector<int>{1, 2, 4} : std::vector<int>{2}) {
          const EntryGroups groups({indices.data(), count, count, 1}, dims, kept, executor_of(threads));
          ASSERT_EQ(groups.groups(), static_cast<std::int64_t>(expected.size()));
          Keys found(static_cast<std::size_t>(groups.groups()) * dims.size());
          std::vector<std::int32_t> segments(expected.size() + 1), order(static_cast<std::size_t>(count));

          groups.write(found.data(), segments.data(), order.data(), /*wide=*/false);

          std::size_t g = 0;
          for (const auto& [key, entries] : expected) {
            for (std::size_t k = 0; k < dims.size(); ++k) {
              ASSERT_EQ(found[k * expected.size() + g], key[k]);
            }
            ASSERT_EQ(Keys(order.begin() + segments[g], order.begin() + segments[g + 1]), entries);
            ++g;
          }
        }
      }
    }
  }
}

TEST(EntryGroups, EntriesInOrderAreNotSorted) {
  const Keys indices{0, 0, 1, 3, 5, 5, 2, 0};
  const EntryGroups rows({indices.data(), 4, 4, 1}, Keys{0}, Keys{4}, serial_executor());
  const EntryGroups columns({indices.data(), 4, 4, 1}, Keys{1}, Keys{6}, serial_executor());
  Keys segments(4);

  rows.write(nullptr, segments.data(), nullptr, /*wide=*/true);

  EXPECT_TRUE(rows.in_order());
  EXPECT_FALSE(rows.distinct());
  EXPECT_EQ(segments, (Keys{0, 2, 3, 4}));
  EXPECT_FALSE(columns.in_order());
}

TEST(EntryGroups, OrderIsSeenOnTheBordersOfParts) {
  Keys keys(100000);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<std::int64_t>(i);
  }
  const auto groups = [&](int threads) {
    return EntryGroups({keys.data(), size_of(keys), 0, 1}, Keys{0}, Keys{100000}, executor_of(threads));
  };
  for (const int threads : {1, 2, 4}) {
    EXPECT_TRUE(groups(threads).in_order() && groups(threads).distinct());
  }
  keys[50000] = keys[49999];
  EXPECT_TRUE(groups(2).in_order());
  EXPECT_EQ(groups(2).groups(), 99999);
  keys[50000] = 0;
  EXPECT_FALSE(groups(2).in_order());
  EXPECT_EQ(groups(2).groups(), 99999);
}

TEST(EntryGroups, AScanSavesTheLookForOrder) {
  // Runs of equal indices, some longer than a part of the entries; the last sizes do not fit 63 bits side by side.
  const std::int64_t count = 300000;
  for (const Keys& sizes : {Keys{9, 5000}, Keys{(std::int64_t{1} << 40) + 1, (1 << 22) + 1}}) {
    Keys indices(static_cast<std::size_t>(2 * count));
    for (std::int64_t e = 0; e < count; ++e) {
      indices[static_cast<std::size_t>(e)] = e < 120000 ? 0 : e / 40000;
      indices[static_cast<std::size_t>(count + e)] = e < 120000 ? 7 : e % 40000 / 9;
    }
    const IndexMatrix matrix{indices.data(), count, count, 1};
    const auto expected = grouped(indices, count, Keys{0, 1});
    for (const int threads : {1, 2, 4}) {
      const EntryScan scan = scan_entries(matrix, sizes, executor_of(threads));
      ASSERT_TRUE(scan.in_order);

      const EntryGroups groups(matrix, Keys{0, 1}, sizes, executor_of(threads), {.groups = scan.groups});

      ASSERT_EQ(groups.groups(), static_cast<std::int64_t>(expected.size()));
      Keys found(2 * expected.size()), segments(expected.size() + 1);
      groups.write(found.data(), segments.data(), nullptr, /*wide=*/true);
      std::size_t g = 0;
      for (const auto& [key, entries] : expected) {
        ASSERT_EQ((Keys{found[g], found[expected.size() + g]}), key);
        ASSERT_EQ(segments[g], entries.front());
        ++g;
      }
      ASSERT_EQ(segments[g], count);
    }
  }
}

TEST(EntryGroups, IndicesThatChangedAreNoticedBeforeMemoryIsWritten) {
  Keys indices{0, 0, 1, 2};
  const IndexMatrix matrix{indices.data(), 4, 4, 1};
  const EntryScan scan = scan_entries(matrix, Keys{4}, serial_executor());
  const EntryGroups groups(matrix, Keys{0}, Keys{4}, serial_executor(), {.groups = scan.groups});
  Keys found(3), segments(4);

  indices = {0, 1, 2, 3};
  EXPECT_THROW(groups.write(found.data(), segments.data(), nullptr, /*wide=*/true), std::invalid_argument);
  indices = {0, 0, 0, 3};
  EXPECT_THROW(groups.write(found.data(), segments.data(), nullptr, /*wide=*/true), std::invalid_argument);
}

TEST(EntryGroups, EntriesKnownToBeDistinctAreWrittenAsTheyAreSorted) {
  // The first sizes fit one word with the entry, the second two, the last are numbered row-major.
  for (const Keys& sizes :
       {Keys{700, 900, 800}, Keys{1 << 20, 1 << 21, 1 << 20}, Keys{(1 << 21) + 1, (1 << 21) + 1, (1 << 20) + 1}}) {
    for (const std::int64_t wanted : {1, 5000, 300000}) {
      const Keys keys = random_set(wanted, sizes[0] * sizes[1] * sizes[2], 1);
      const std::int64_t count = size_of(keys);
      Keys indices(static_cast<std::size_t>(3 * count));
      unravel_keys(keys.data(), count, sizes, indices.data(), serial_executor());
      const IndexMatrix matrix{indices.data(), count, count, 1};
      for (const Keys& dims : {Keys{2, 0, 1}, Keys{1, 0, 2}}) {
        Keys kept;
        for (const std::int64_t d : dims) {
          kept.push_back(sizes[static_cast<std::size_t>(d)]);
        }
        Keys expected(static_cast<std::size_t>(count));
        std::iota(expected.begin(), expected.end(), 0);
        const auto index_of = [&](std::int64_t e) {
          return std::array{matrix.at(dims[0], e), matrix.at(dims[1], e), matrix.at(dims[2], e)};
        };
        std::sort(expected.begin(), expected.end(),
                  [&](std::int64_t a, std::int64_t b) { return index_of(a) < index_of(b); });
        KnownEntries known;
        known.distinct = known.rows_in_order = true;

        const EntryGroups groups(matrix, dims, kept, executor_of(2), known);

        ASSERT_TRUE(groups.distinct());
        Keys found(indices.size()), order(expected.size()), segments(expected.size() + 1);
        groups.write(found.data(), segments.data(), order.data(), /*wide=*/true);
        ASSERT_EQ(order, expected);
        ASSERT_TRUE(segments.front() == 0 && segments.back() == count);
        for (std::size_t e = 0; e < expected.size(); ++e) {
          const auto index = index_of(expected[e]);
          for (std::size_t k = 0; k < 3; ++k) {
            ASSERT_EQ(found[k * expected.size() + e], index[k]);
          }
        }
      }
    }
  }
}

TEST(EntryGroups, EntriesOfATransposedMatrixAreSortedByItsRowsAlone) {
  // By (0, 1) they are in order, so that by (1, 0) only dim 1 is left to sort by.
  for (const Keys& sizes : {Keys{700, 900}, Keys{(std::int64_t{1} << 40), 1 << 22}}) {
    const std::int64_t count = 300000;
    std::vector<std::pair<std::int64_t, std::int64_t>> entries(static_cast<std::size_t>(count));
    const Keys rows = random_keys(count, sizes[0], 1);
    const Keys columns = random_keys(count, sizes[1], 2);
    for (std::size_t e = 0; e < entries.size(); ++e) {
      entries[e] = {rows[e], columns[e]};
    }
    std::sort(entries.begin(), entries.end());
    Keys indices(2 * entries.size());
    for (std::size_t e = 0; e < entries.size(); ++e) {
      indices[e] = entries[e].first;
      indices[entries.size() + e] = entries[e].second;
    }
    const auto expected = grouped(indices, count, Keys{1, 0});

    const EntryGroups groups({indices.data(), count, count, 1}, Keys{1, 0}, Keys{sizes[1], sizes[0]}, executor_of(2));

    ASSERT_EQ(groups.groups(), static_cast<std::int64_t>(expected.size()));
    Keys found(2 * expected.size());
    std::vector<std::int32_t> segments(expected.size() + 1), order(entries.size());
    groups.write(found.data(), segments.data(), order.data(), /*wide=*/false);
    std::size_t g = 0;
    for (const auto& [key, of_key] : expected) {
      ASSERT_EQ((Keys{found[g], found[expected.size() + g]}), key);
      ASSERT_EQ(Keys(order.begin() + segments[g], order.begin() + segments[g + 1]), of_key);
      ++g;
    }
  }
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
        const KeySet left{a.data(), size_of(a)};
        const KeySet right{b.data(), size_of(b)};
        Keys keys(places.size()), in_a(places.size()), in_b(places.size());

        const KeyMerge all(left, right, KeyMerge::Kept::all, executor_of(threads));
        ASSERT_EQ(all.count(), static_cast<std::int64_t>(places.size()));
        all.write(keys.data(), in_a.data(), in_b.data());

        std::size_t next = 0;
        for (const auto& [key, where] : places) {
          ASSERT_EQ(keys[next], key);
          ASSERT_EQ(std::pair(in_a[next], in_b[next]), where);
          ++next;
        }

        // The keys themselves as elements, negative where a set lacks one.
        const std::int64_t none = -7;
        all.write(keys.data(), {a.data(), &none}, {b.data(), &none}, sizeof(std::int64_t), in_a.data(), in_b.data());
        next = 0;
        for (const auto& [key, where] : places) {
          ASSERT_EQ(std::pair(in_a[next], in_b[next]),
                    std::pair(where.first < 0 ? none : key, where.second < 0 ? none : key));
          ++next;
        }

        // Numbers of the keys, combined; a set that lacks a key counts as 0.5 or 0.25.
        const std::vector<double> x(a.begin(), a.end()), y(b.begin(), b.end());
        const double x_fill = 0.5;
        const double y_fill = 0.25;
        std::vector<double> made(places.size());
        const auto combined = [&](const KeyMerge& merge, Combine with) {
          merge.write(keys.data(), {x.data(), &x_fill}, {y.data(), &y_fill}, with, /*wide=*/true, made.data());
        };
        combined(all, Combine::subtract);
        next = 0;
        for (const auto& [key, where] : places) {
          const auto number = static_cast<double>(key);
          ASSERT_EQ(keys[next], key);
          ASSERT_EQ(made[next], (where.first < 0 ? x_fill : number) - (where.second < 0 ? y_fill : number));
          ++next;
        }

        const KeyMerge common(left, right, KeyMerge::Kept::common, executor_of(threads));
        combined(common, Combine::multiply);
        for (std::int64_t k = 0; k < common.count(); ++k) {
          const auto number = static_cast<double>(keys[static_cast<std::size_t>(k)]);
          ASSERT_EQ(made[static_cast<std::size_t>(k)], number * number);
        }
        common.write(keys.data(), in_a.data(), in_b.data());

        Keys expected;
        std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
        ASSERT_EQ(Keys(keys.begin(), keys.begin() + common.count()), expected);
        for (std::size_t k = 0; k < expected.size(); ++k) {
          ASSERT_EQ(a[static_cast<std::size_t>(in_a[k])], expected[k]);
          ASSERT_EQ(b[static_cast<std::size_t>(in_b[k])], expected[k]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lacewing::structure
