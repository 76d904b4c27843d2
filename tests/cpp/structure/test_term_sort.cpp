// The radix sort of terms, against the standard library's.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "structure/term_sort.h"
#include "support.h"

namespace lacewing::structure {
namespace {

template <typename Index>
class TermSorting : public testing::Test {};
using Widths = testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(TermSorting, Widths);

/// The terms in sorted order.
template <typename Index>
std::vector<Term<Index>> collected(const TermSort<Index>& terms) {
  std::vector<Term<Index>> all(static_cast<std::size_t>(terms.count()), Term<Index>{{-1, -1, -1}, -1});
  terms.for_runs([&](std::int64_t, std::int64_t begin, const Term<Index>* run, std::int64_t length) {
    std::copy(run, run + length, all.begin() + begin);
    return true;
  });
  return all;
}

template <typename Index>
void expect_equal(const TermSort<Index>& terms, const std::vector<Term<Index>>& expected) {
  const std::vector<Term<Index>> found = collected(terms);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(Term<Index>)), 0) << "term " << i << " of " << found.size();
  }
}

template <typename Index>
void expect_sorted_as_std(std::int64_t count, std::int64_t limit, int threads) {
  const CpuExecutor executor = executor_of(threads);
  for (const Key key : {Key::first, Key::second, Key::row}) {
    TermSort<Index> terms(count, executor);
    std::vector<Term<Index>> expected;
    for (std::int64_t i = 0; i < count; ++i) {
      Term<Index> term{{0, 0, 0}, static_cast<Index>(i)};
      for (int k = 0; k < 3; ++k) {
        term.key[k] = static_cast<Index>(k == key ? below(limit) : below(100));
      }
      // Both ends of the range, so that every digit is there.
      if (i == count / 2) {
        term.key[key] = static_cast<Index>(limit - 1);
      }
      terms.data()[i] = term;
      expected.push_back(term);
    }

    terms.sort(key, limit);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](const auto& a, const auto& b) { return a.key[key] < b.key[key]; });

    SCOPED_TRACE(testing::Message() << "limit " << limit << ", " << threads << " threads");
    expect_equal(terms, expected);
  }
}

TYPED_TEST(TermSorting, IsTheStableSortForEveryLimit) {
  // Around each number of digits of nine bits, which are made equally wide.
  for (const std::int64_t limit : {1, 2, 3, 255, 511, 512, 513, 1 << 17, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1 << 27,
                                   (1 << 27) + 1, 0x7fffffff}) {
    expect_sorted_as_std<TypeParam>(5000, limit, 1);
  }
}

TYPED_TEST(TermSorting, IsTheStableSortForEveryCountAndNumberOfThreads) {
  for (const std::int64_t count : {0, 1, 2, 3, 4095, 4096, 8191, 8192, 20000}) {
    for (const int threads : {1, 2, 4}) {
      expect_sorted_as_std<TypeParam>(count, 300, threads);
      expect_sorted_as_std<TypeParam>(count, 70000, threads);
    }
  }
}

TEST(TermSortingWide, KeysBeyond32Bits) {
  for (const int bits : {32, 36, 37, 45, 46, 48}) {
    expect_sorted_as_std<std::int64_t>(5000, std::int64_t{1} << bits, 2);
    expect_sorted_as_std<std::int64_t>(5000, (std::int64_t{1} << bits) + 1, 2);
  }
}

TYPED_TEST(TermSorting, SortedTermsStayAndReversedOnesTurn) {
  const std::int64_t count = 9000;
  for (const bool reversed : {false, true}) {
    TermSort<TypeParam> terms(count, executor_of(2));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t key = reversed ? count - 1 - i : i;
      terms.data()[i] = {{static_cast<TypeParam>(key), 0, 0}, static_cast<TypeParam>(i)};
    }

    terms.sort(Key::first, count);

    const auto sorted = collected(terms);
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(sorted[static_cast<std::size_t>(i)].key[0], static_cast<TypeParam>(i));
      ASSERT_EQ(sorted[static_cast<std::size_t>(i)].entry, static_cast<TypeParam>(reversed ? count - 1 - i : i));
    }
  }
}

TYPED_TEST(TermSorting, ADisorderOnTheBorderOfTwoPartsIsSeen) {
  // Each half is sorted by itself.
  const std::int64_t count = 8192;
  TermSort<TypeParam> terms(count, executor_of(2));
  ASSERT_EQ(terms.parts(), 2);
  for (std::int64_t i = 0; i < count; ++i) {
    terms.data()[i] = {{static_cast<TypeParam>(i < count / 2 ? i + count / 2 : i - count / 2), 0, 0}, 0};
  }

  terms.sort(Key::first, count);

  const auto sorted = collected(terms);
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(sorted[static_cast<std::size_t>(i)].key[0], static_cast<TypeParam>(i));
  }
}

/// Sorts by one key after the other, with the values that `draw(key, i)` gives, and compares after each.
template <typename Index, typename Draw>
void expect_chain_sorted_as_std(std::int64_t count, std::int64_t limit, int threads, Draw&& draw) {
  TermSort<Index> terms(count, executor_of(threads));
  std::vector<Term<Index>> expected;
  for (std::int64_t i = 0; i < count; ++i) {
    expected.push_back(
        {{static_cast<Index>(draw(0, i)), static_cast<Index>(draw(1, i)), static_cast<Index>(draw(2, i))},
         static_cast<Index>(i)});
    terms.data()[i] = expected.back();
  }
  for (const Key key : {Key::second, Key::first, Key::row, Key::row, Key::second}) {
    SCOPED_TRACE(testing::Message() << "key " << key << ", limit " << limit << ", " << threads << " threads");
    terms.sort(key, limit);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](const auto& a, const auto& b) { return a.key[key] < b.key[key]; });
    expect_equal(terms, expected);
  }
}

// More terms than a core's cache holds: keys of two digits then wait in buckets to be put in order.
constexpr std::int64_t kMany = (std::int64_t{1} << 18) + 12345;

TYPED_TEST(TermSorting, ManyTermsByOneKeyAfterTheOther) {
  for (const int threads : {1, 2, 4}) {
    expect_chain_sorted_as_std<TypeParam>(kMany, 100000, threads, [](int, std::int64_t) { return below(100000); });
  }
  // The fewest bits of two digits, and keys of three.
  expect_chain_sorted_as_std<TypeParam>(kMany, 600, 2, [](int, std::int64_t) { return below(600); });
  expect_chain_sorted_as_std<TypeParam>(kMany, 1 << 24, 2, [](int, std::int64_t) { return below(1 << 24); });
}

TYPED_TEST(TermSorting, ManyTermsInOnePiece) {
  TermSort<TypeParam> terms(kMany, executor_of(3));
  for (std::int64_t i = 0; i < kMany; ++i) {
    terms.data()[i] = {{static_cast<TypeParam>(below(50000)), 0, 0}, static_cast<TypeParam>(i)};
  }
  terms.sort(Key::first, 50000);
  const auto expected = collected(terms);

  const Term<TypeParam>* const sorted = terms.sorted();

  ASSERT_EQ(std::memcmp(sorted, expected.data(), sizeof(Term<TypeParam>) * expected.size()), 0);
  expect_equal(terms, expected);
}

TYPED_TEST(TermSorting, ManyTermsWhoseKeysCrowd) {
  // Nearly all in one bucket of the second key, in a few of the third, and spread for the first.
  expect_chain_sorted_as_std<TypeParam>(kMany, 100000, 2, [](int key, std::int64_t) {
    return key == 0 ? below(100000) : key == 1 ? (below(1000) == 0 ? below(100000) : 77) : below(20) * 5000;
  });
}

TYPED_TEST(TermSorting, ManyTermsOfWhichAKeyIsSortedWhileBucketsWait) {
  // After the sort by the second key the first is in order too, and stays so.
  expect_chain_sorted_as_std<TypeParam>(kMany, 100000, 2,
                                        [shuffled = std::vector<std::int64_t>()](int key, std::int64_t i) mutable {
                                          if (key == 0) {
                                            shuffled.assign(1, below(100000));
                                          }
                                          return key == 2 ? i % 7 : shuffled[0];
                                        });
}

}  // namespace
}  // namespace lacewing::structure
