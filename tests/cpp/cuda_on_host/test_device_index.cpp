// The device's index structures on the host, against those of src/structure.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/device_index.h"
#include "kernels/term_hash.h"
#include "structure/index_set.h"

namespace lacewing::kernels {
namespace {

using Keys = std::vector<std::int64_t>;

constexpr CudaExecutor kStream{};

Keys random_keys(std::int64_t count, std::int64_t limit, unsigned seed) {
  std::mt19937_64 random(seed);
  Keys keys;
  for (std::int64_t i = 0; i < count; ++i) {
    keys.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit)));
  }
  return keys;
}

Keys random_set(std::int64_t count, std::int64_t limit, unsigned seed) {
  const Keys keys = random_keys(count, limit, seed);
  const std::set<std::int64_t> set(keys.begin(), keys.end());
  return {set.begin(), set.end()};
}

struct Space {
  explicit Space(std::int64_t bytes) : memory(static_cast<std::size_t>(bytes), '\xff') {}
  void* data() { return memory.data(); }
  std::vector<char> memory;
};

template <typename Place>
struct Sorted {
  Keys keys;
  std::vector<Place> order;

  Sorted(const Keys& given, std::int64_t limit) : keys(given.size()), order(given.size()) {
    const KeySort sort{given.data(),      static_cast<std::int64_t>(given.size()), limit, keys.data(), order.data(),
                       sizeof(Place) == 8};
    Space space(cuda::sort_workspace(sort));
    cuda::sort_keys(sort, kStream, space.data());
  }
};

template <typename Place>
void expect_sorted(std::int64_t count, std::int64_t limit) {
  const Keys keys = random_keys(count, limit, 7);
  std::vector<Place> expected(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    expected[i] = static_cast<Place>(i);
  }
  std::stable_sort(expected.begin(), expected.end(), [&](Place a, Place b) {
    return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
  });

  const Sorted<Place> sorted(keys, limit);

  EXPECT_EQ(sorted.order, expected);
  EXPECT_TRUE(std::is_sorted(sorted.keys.begin(), sorted.keys.end()));
}

TEST(DeviceIndexOnHost, KeysAreSortedStably) {
  for (const std::int64_t count : {0, 1, 255, 1000}) {
    expect_sorted<std::int32_t>(count, 50);
    expect_sorted<std::int32_t>(count, std::int64_t{1} << 40);
    expect_sorted<std::int64_t>(count, 50);
  }
}

template <typename Place>
void expect_groups(const Keys& keys, std::int64_t limit) {
  const Sorted<Place> sorted(keys, limit);
  std::map<std::int64_t, std::int64_t> counts;
  for (const std::int64_t key : keys) {
    ++counts[key];
  }
  std::vector<Place> number(keys.size());
  std::int64_t found[2] = {-1, -1};
  KeyGroups groups;
  groups.sorted = sorted.keys.data();
  groups.count = static_cast<std::int64_t>(keys.size());
  groups.order = sorted.order.data();
  groups.wide = sizeof(Place) == 8;
  groups.number = number.data();
  groups.found = found;
  Space space(cuda::groups_workspace(groups));

  cuda::find_groups(groups, kStream, space.data());
  groups.groups = found[0];
  Keys group_keys(counts.size());
  std::vector<Place> segments(counts.size() + 1, 0);
  groups.keys = group_keys.data();
  groups.segments = segments.data();
  cuda::write_groups(groups, kStream);

  ASSERT_EQ(found[0], static_cast<std::int64_t>(counts.size()));
  EXPECT_EQ(found[1], std::is_sorted(keys.begin(), keys.end()) ? 0 : 1);
  std::size_t g = 0;
  for (const auto& [key, count] : counts) {
    EXPECT_EQ(group_keys[g], key);
    EXPECT_EQ(segments[g + 1] - segments[g], static_cast<Place>(count));
    ++g;
  }
}

TEST(DeviceIndexOnHost, EqualKeysAreGroups) {
  expect_groups<std::int32_t>(random_keys(1000, 90, 1), 90);
  expect_groups<std::int64_t>(random_keys(1000, 100'000, 2), 100'000);
  expect_groups<std::int32_t>(Keys(700, 3), 4);
  expect_groups<std::int32_t>(random_set(300, 5000, 3), 5000);
  expect_groups<std::int32_t>({}, 5);
}

void expect_merged(const Keys& a, const Keys& b, bool common) {
  Keys expected;
  if (common) {
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
  } else {
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
  }
  SetMerge merge;
  merge.a = a.data();
  merge.a_count = static_cast<std::int64_t>(a.size());
  merge.b = b.data();
  merge.b_count = static_cast<std::int64_t>(b.size());
  merge.common = common;
  Keys cuts(static_cast<std::size_t>(merge.tiles()) + 1);
  std::vector<std::uint64_t> kept(static_cast<std::size_t>(merge.tiles()) + 1);
  merge.cuts = cuts.data();
  merge.kept = kept.data() + 1;
  Space space(cuda::merge_workspace(merge));

  cuda::find_merged(merge, kStream, space.data());
  ASSERT_EQ(kept.back(), expected.size());
  Keys keys(expected.size()), in_a(expected.size(), -7), in_b(expected.size(), -7);
  merge.keys = keys.data();
  cuda::write_merged(merge, in_a.data(), in_b.data(), kStream);
  const std::vector<double> a_values(a.begin(), a.end());
  const std::vector<double> b_values(b.begin(), b.end());
  const double fills[] = {-0.5, 0.25};
  const Elements a_elements{a_values.data(), &fills[0]};
  const Elements b_elements{b_values.data(), &fills[1]};
  std::vector<double> from_a(expected.size(), NAN), from_b(expected.size(), NAN), sum(expected.size(), NAN);
  cuda::write_merged(merge, a_elements, b_elements, sizeof(double), from_a.data(), from_b.data(), kStream);
  cuda::write_merged(merge, a_elements, b_elements, Combine::subtract, /*is_double=*/true, sum.data(), kStream);

  EXPECT_EQ(keys, expected);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto place = [&](const Keys& set) {
      const auto at = std::lower_bound(set.begin(), set.end(), keys[i]);
      return at != set.end() && *at == keys[i] ? at - set.begin() : -1;
    };
    EXPECT_EQ(in_a[i], place(a));
    EXPECT_EQ(in_b[i], place(b));
    EXPECT_EQ(from_a[i], in_a[i] < 0 ? fills[0] : static_cast<double>(keys[i]));
    EXPECT_EQ(from_b[i], in_b[i] < 0 ? fills[1] : static_cast<double>(keys[i]));
    EXPECT_EQ(sum[i], from_a[i] - from_b[i]);
  }
}

TEST(DeviceIndexOnHost, SetsAreMerged) {
  for (const bool common : {false, true}) {
    expect_merged(random_set(400, 900, 1), random_set(300, 900, 2), common);
    expect_merged(random_set(400, 900, 1), random_set(400, 900, 1), common);
    expect_merged(random_set(400, 900, 1), {}, common);
    expect_merged({}, random_set(4, 900, 1), common);
    expect_merged({}, {}, common);
    expect_merged({5}, {0}, common);
    // Several tiles, and equal keys on both sides of their ends.
    expect_merged(random_set(5000, 9000, 3), random_set(6000, 9000, 4), common);
    Keys all(5000);
    std::iota(all.begin(), all.end(), 0);
    expect_merged(all, Keys(all.begin() + 1, all.end()), common);
    expect_merged(all, all, common);
    expect_merged(all, {4999}, common);
  }
}

TEST(DeviceIndexOnHost, RowPointersAndRowsAreInverse) {
  for (const std::int64_t rows : {1, 40, 3000}) {
    const Keys sorted = Sorted<std::int32_t>(random_keys(700, rows, 4), rows).keys;
    std::vector<std::int32_t> pointers(static_cast<std::size_t>(rows) + 1);
    Keys back(sorted.size());

    cuda::row_pointers(sorted.data(), 700, rows, pointers.data(), /*wide=*/false, kStream);
    cuda::rows_of_terms(pointers.data(), /*wide=*/false, rows, 700, back.data(), kStream);

    EXPECT_EQ(back, sorted);
    EXPECT_EQ(pointers.front(), 0);
    EXPECT_EQ(pointers.back(), 700);
    EXPECT_TRUE(std::is_sorted(pointers.begin(), pointers.end()));
  }
}

std::vector<std::uint64_t> scanned(const Keys& first, const Keys& second, const Keys& row, bool unary) {
  std::vector<std::uint64_t> words(TermScan::kWords, ~std::uint64_t{0});
  cuda::scan_terms({first.data(), unary ? nullptr : second.data(), row.data(), static_cast<std::int64_t>(row.size()),
                    unary, words.data()},
                   kStream);
  return words;
}

TEST(DeviceIndexOnHost, AScanTellsWhatIsKnownOfTerms) {
  const Keys first = random_keys(9000, 50, 1);
  const Keys second = random_keys(9000, 70, 2);
  Keys row = random_keys(9000, 30, 3);
  for (const bool unary : {false, true}) {
    TermHash hash;
    for (std::size_t i = 0; i < row.size(); ++i) {
      hash.add(first[i], unary ? 0 : second[i], row[i], static_cast<std::int64_t>(i), unary);
    }

    const auto words = scanned(first, second, row, unary);

    EXPECT_EQ(words[TermScan::limit1], 50u);
    EXPECT_EQ(words[TermScan::limit2], unary ? 1u : 70u);
    EXPECT_EQ(words[TermScan::limit_row], 30u);
    EXPECT_EQ(words[TermScan::negative], 0u);
    EXPECT_EQ(words[TermScan::unsorted], 1u);
    EXPECT_EQ(words[TermScan::hash], hash.forward);
    EXPECT_EQ(words[TermScan::hash_bwd1], hash.backward1);
    EXPECT_EQ(words[TermScan::hash_bwd2], hash.backward2);
    EXPECT_EQ(words[TermScan::order_hash], hash.order);
  }
  std::sort(row.begin(), row.end());
  EXPECT_EQ(scanned(first, second, row, false)[TermScan::unsorted], 1u);
  EXPECT_EQ(scanned(row, row, row, false)[TermScan::unsorted], 0u);
  row[4500] = -1;
  EXPECT_EQ(scanned(first, second, row, false)[TermScan::negative], 1u);
}

/// Sizes, and indices (dims, count), row by row.
KeyCode code_of(const std::vector<std::int64_t>& sizes, std::int64_t count) {
  KeyCode code;
  code.dims = static_cast<int>(sizes.size());
  code.count = count;
  for (int d = 0; d < code.dims; ++d) {
    code.size[d] = sizes[static_cast<std::size_t>(d)];
    code.offset[d] = d * count;
  }
  return code;
}

TEST(DeviceIndexOnHost, KeysAreRowMajorAndBack) {
  const std::vector<std::int64_t> sizes{7, 5, 11};
  Keys indices;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Keys of_dim = random_keys(600, sizes[d], static_cast<unsigned>(d));
    indices.insert(indices.end(), of_dim.begin(), of_dim.end());
  }
  const KeyCode code = code_of(sizes, 600);
  Keys keys(600), expected(600), back(1800);
  const std::vector<std::int64_t> dims{0, 1, 2};
  structure::linear_keys({indices.data(), 600, 600, 1}, dims, sizes, expected.data(), serial_executor());

  cuda::linear_keys(code, indices.data(), keys.data(), kStream);
  cuda::unravel_keys(code, keys.data(), back.data(), kStream);

  EXPECT_EQ(keys, expected);
  EXPECT_EQ(back, indices);
}

std::vector<std::uint64_t> scanned_indices(const std::vector<std::int64_t>& sizes, const Keys& indices) {
  std::vector<std::uint64_t> words(IndexScan::kWords, ~std::uint64_t{0});
  const auto count = static_cast<std::int64_t>(indices.size() / sizes.size());
  cuda::scan_indices({code_of(sizes, count), indices.data(), words.data()}, kStream);
  return words;
}

TEST(DeviceIndexOnHost, AScanOfIndicesFindsTheFirstOutsideAndTheOrder) {
  EXPECT_EQ(scanned_indices({3, 4}, {0, 0, 1, 2, 0, 3, 0, 1}), (std::vector<std::uint64_t>{0, 0, 0}));
  EXPECT_EQ(scanned_indices({3, 4}, {0, 0, 1, 1, 0, 3, 2, 2}), (std::vector<std::uint64_t>{0, 0, 1}));
  EXPECT_EQ(scanned_indices({3, 4}, {0, 0, 1, 0, 0, 3, 2, 3}), (std::vector<std::uint64_t>{0, 1, 0}));
  EXPECT_EQ(scanned_indices({3, 4}, {0, 1, 2, 3, 0, 4, 2, -1})[IndexScan::outside], 3u);
  EXPECT_EQ(scanned_indices({3}, {}), (std::vector<std::uint64_t>{0, 0, 0}));
  Keys many(5000, 1);
  many[4321] = 2;
  EXPECT_EQ(scanned_indices({2}, many)[IndexScan::outside], 5000u - 4321u);
}

TEST(DeviceIndexOnHost, ColumnsAreReorderedAndWhatMovesIsFound) {
  const Keys values = random_keys(900, 1000, 5);
  const std::vector<std::int32_t> narrow(values.begin(), values.end());
  const std::vector<std::int32_t> order = Sorted<std::int32_t>(values, 1000).order;
  std::vector<std::int32_t> to(900), identity(900);
  std::vector<std::uint64_t> moved(TermColumns::kMost, 7);
  TermColumns columns;
  columns.count = 900;
  columns.columns = 3;
  columns.order = {order.data(), false};
  columns.from[0] = {values.data(), true};
  columns.from[2] = {narrow.data(), false};
  columns.to[0] = to.data();
  columns.to[1] = identity.data();
  columns.moved = moved.data();

  cuda::reorder(columns, kStream);
  cuda::find_moved(columns, kStream);

  for (std::size_t i = 0; i < 900; ++i) {
    EXPECT_EQ(to[i], values[static_cast<std::size_t>(order[i])]);
  }
  EXPECT_EQ(identity, order);
  EXPECT_EQ(moved, (std::vector<std::uint64_t>{1, 1, 1, 0}));
  columns.order = {};
  cuda::find_moved(columns, kStream);
  EXPECT_EQ(moved, (std::vector<std::uint64_t>{1, 0, 1, 0}));
}

}  // namespace
}  // namespace lacewing::kernels
