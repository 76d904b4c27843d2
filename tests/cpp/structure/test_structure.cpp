// The radix sort of terms, plans and their descriptions, and the plans of gradients; against the standard library's
// sorts.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/terms.h"
#include "structure/plan_builder.h"
#include "structure/support.h"
#include "structure/term_sort.h"

namespace lacewing::structure {
namespace {

using Integers = std::vector<std::int64_t>;

std::mt19937_64& generator() {
  static std::mt19937_64 engine(7);
  return engine;
}

std::int64_t below(std::int64_t limit) {
  return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(generator());
}

Integers random_integers(std::int64_t count, std::int64_t limit) {
  Integers values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return below(limit); });
  return values;
}

template <typename Index>
class TermSorting : public testing::Test {};
using Widths = testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(TermSorting, Widths);

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

    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::memcmp(&terms.data()[i], &expected[static_cast<std::size_t>(i)], sizeof(Term<Index>)), 0)
          << "term " << i << " of " << count << ", limit " << limit << ", " << threads << " threads";
    }
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

    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(terms.data()[i].key[0], static_cast<TypeParam>(i));
      ASSERT_EQ(terms.data()[i].entry, static_cast<TypeParam>(reversed ? count - 1 - i : i));
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

  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(terms.data()[i].key[0], static_cast<TypeParam>(i));
  }
}

constexpr PlanMeta::Flag kIndices =
    PlanMeta::has_segments | PlanMeta::has_index1 | PlanMeta::has_index2 | PlanMeta::has_order | PlanMeta::has_inverse;

/// A plan with memory of its own: exactly as long as was asked, int32 or int64.
struct OwnedPlan {
  PlanMeta meta;
  std::vector<unsigned char> bytes;
  bool wide = false;

  Allocate allocate() {
    return [this](std::int64_t length, bool is_wide) -> void* {
      wide = is_wide;
      bytes.assign(static_cast<std::size_t>(length * (is_wide ? 8 : 4)), 0xab);
      return bytes.data();
    };
  }
  std::int64_t length() const { return static_cast<std::int64_t>(bytes.size()) / (wide ? 8 : 4); }
};

/// (row, index1, index2, entry), in the order of the plan.
using Tuple = std::array<std::int64_t, 4>;

template <typename Index>
std::vector<Tuple> read_as(const kernels::Terms& terms) {
  const kernels::TermsView<Index> view(terms);
  std::vector<Tuple> found;
  for (std::int64_t row = 0; row < terms.rows; ++row) {
    for (std::int64_t t = view.begin(row); t < view.end(row); ++t) {
      found.push_back({row, view.first(t), view.second(t), view.entry(t)});
    }
  }
  return found;
}

std::vector<Tuple> read(const PlanMeta& meta, const void* array) {
  const kernels::Terms terms = terms_of(meta, array);
  return terms.wide ? read_as<std::int64_t>(terms) : read_as<std::int32_t>(terms);
}
std::vector<Tuple> read(const OwnedPlan& plan) { return read(plan.meta, plan.bytes.data()); }

template <typename Index>
Integers array_as(const void* data, std::int64_t count) {
  const auto* const values = static_cast<const Index*>(data);
  return {values, values + count};
}
Integers array_of(const OwnedPlan& plan, const void* kernels::Terms::*part, std::int64_t count) {
  const void* const data = terms_of(plan.meta, plan.bytes.data()).*part;
  if (data == nullptr) {
    return {};
  }
  return plan.wide ? array_as<std::int64_t>(data, count) : array_as<std::int32_t>(data, count);
}

std::int64_t limit_of(const std::optional<Integers>& index, std::int64_t count) {
  if (!index) {
    return count;
  }
  return index->empty() ? 0 : *std::max_element(index->begin(), index->end()) + 1;
}

struct TripleLists {
  std::optional<Integers> index1, index2, row;
  std::int64_t count;

  Triples triples() const {
    const auto data = [](const std::optional<Integers>& index) { return index ? index->data() : nullptr; };
    Triples triples;
    triples.index1 = data(index1);
    triples.index2 = data(index2);
    triples.row = data(row);
    triples.count = count;
    triples.limit1 = limit_of(index1, count);
    triples.limit2 = limit_of(index2, count);
    triples.limit_row = limit_of(row, count);
    return triples;
  }
  std::int64_t at(const std::optional<Integers>& index, std::int64_t t) const {
    return index ? (*index)[static_cast<std::size_t>(t)] : t;
  }
  /// The terms of a view by a stable sort, as (row, index1, index2, entry) of the view.
  std::vector<Tuple> expected(View view) const {
    std::vector<Tuple> tuples;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t a = at(index1, t);
      const std::int64_t b = at(index2, t);
      const std::int64_t r = at(row, t);
      tuples.push_back(view == View::forward     ? Tuple{r, a, b, t}
                       : view == View::backward1 ? Tuple{a, b, r, t}
                                                 : Tuple{b, r, a, t});
    }
    // Entries ascend already, so the whole tuple is the key of the stable sort.
    std::sort(tuples.begin(), tuples.end());
    return tuples;
  }
};

/// The three plans of triples, with some rows more than needed.
std::array<OwnedPlan, 3> build(const TripleLists& lists, const CpuExecutor& executor, std::int64_t spare = 2) {
  std::array<OwnedPlan, 3> plans;
  const Triples triples = lists.triples();
  const std::vector<Request> requests{{View::forward, triples.limit_row + spare, plans[0].allocate()},
                                      {View::backward2, triples.limit2 + spare, plans[2].allocate()},
                                      {View::backward1, triples.limit1 + spare, plans[1].allocate()}};
  const std::vector<PlanMeta> metas = build_sorted(triples, requests, executor);
  plans[0].meta = metas[0];
  plans[2].meta = metas[1];
  plans[1].meta = metas[2];
  return plans;
}

TEST(SortedPlans, SegmentsOfOutputsThatStartAboveZero) {
  const TripleLists lists{Integers{0, 1, 2}, Integers{2, 1, 0}, Integers{1, 1, 2}, 3};
  const auto plans = build(lists, serial_executor(), 0);

  EXPECT_EQ(array_of(plans[0], &kernels::Terms::segments, 4), (Integers{0, 0, 2, 3}));
}

TEST(SortedPlans, GapsRepeatTheOffset) {
  const TripleLists lists{Integers{0, 0, 0}, Integers{0, 0, 0}, Integers{5, 2, 2}, 3};
  const auto plans = build(lists, serial_executor(), 1);

  EXPECT_EQ(array_of(plans[0], &kernels::Terms::segments, 8), (Integers{0, 0, 0, 2, 2, 2, 3, 3}));
  EXPECT_EQ(array_of(plans[0], &kernels::Terms::order, 3), (Integers{1, 2, 0}));
}

TEST(SortedPlans, AllThreeViewsAgainstAPlainSort) {
  for (const std::int64_t count : {0, 1, 2, 7, 100, 5000, 20000}) {
    for (const int absent : {0, 1, 2, 3, 4, 5, 6, 7}) {
      for (const int threads : {1, 3}) {
        const auto list = [&](int bit, std::int64_t limit) {
          return (absent & bit) != 0 ? std::nullopt : std::optional<Integers>(random_integers(count, limit));
        };
        const TripleLists lists{list(1, 9), list(2, 700), list(4, 40), count};

        const auto plans = build(lists, executor_of(threads));

        for (const View view : {View::forward, View::backward1, View::backward2}) {
          const OwnedPlan& plan = plans[static_cast<std::size_t>(view)];
          ASSERT_EQ(plan.length(), plan.meta.length());
          ASSERT_EQ(read(plan), lists.expected(view))
              << count << " terms, absent " << absent << ", view " << static_cast<int>(view);
        }
      }
    }
  }
}

TEST(SortedPlans, DescriptionSaysWhatInputsMustHave) {
  const TripleLists lists{Integers{3, 1}, Integers{0, 6}, Integers{4, 4}, 2};
  const auto plans = build(lists, serial_executor());

  EXPECT_EQ(plans[0].meta.need1, 4);
  EXPECT_EQ(plans[0].meta.need2, 7);
  EXPECT_EQ(plans[0].meta.rows, 7);
  EXPECT_EQ(plans[1].meta.need1, 7);
  EXPECT_EQ(plans[1].meta.need2, 5);
  EXPECT_EQ(plans[1].meta.rows, 6);
  EXPECT_EQ(plans[2].meta.need1, 5);
  EXPECT_EQ(plans[2].meta.need2, 4);
  EXPECT_EQ(plans[2].meta.rows, 9);
  for (const OwnedPlan& plan : plans) {
    EXPECT_EQ(plan.meta.entries, 2);
    EXPECT_EQ(plan.meta.terms, 2);
    EXPECT_FALSE(plan.meta.is_dynamic());
  }
}

TEST(SortedPlans, IdentitiesAreLeftOut) {
  const Integers identity{0, 1, 2, 3};
  for (const TripleLists& lists :
       {TripleLists{identity, identity, identity, 4}, TripleLists{std::nullopt, std::nullopt, std::nullopt, 4}}) {
    for (const OwnedPlan& plan : build(lists, serial_executor(), 0)) {
      EXPECT_EQ(plan.meta.flags & kIndices, 0);
    }
  }
  // The rows are 0..T-1 but there is one more of them.
  const auto plans = build({identity, identity, identity, 4}, serial_executor(), 1);
  EXPECT_EQ(plans[0].meta.flags & kIndices, PlanMeta::has_segments);
  EXPECT_EQ(array_of(plans[0], &kernels::Terms::segments, 6), (Integers{0, 1, 2, 3, 4, 4}));
}

TEST(SortedPlans, DuplicatesStayInTheOrderGiven) {
  const TripleLists lists{Integers{1, 0, 1, 1}, Integers{2, 0, 2, 2}, Integers{3, 3, 3, 3}, 4};
  const auto plans = build(lists, serial_executor());

  EXPECT_EQ(read(plans[0]), (std::vector<Tuple>{{3, 0, 0, 1}, {3, 1, 2, 0}, {3, 1, 2, 2}, {3, 1, 2, 3}}));
}

TEST(SortedPlans, LargeIndicesMakeAWidePlan) {
  const std::int64_t large = std::int64_t{1} << 40;
  const TripleLists lists{Integers{large, 5, large + 7, 0}, Integers{1, 0, 1, 1}, Integers{2, 0, 2, 0}, 4};
  OwnedPlan plan;
  const auto metas = build_sorted(lists.triples(), {{View::forward, 3, plan.allocate()}}, serial_executor());
  plan.meta = metas[0];

  EXPECT_TRUE(plan.wide);
  EXPECT_TRUE(plan.meta.has(PlanMeta::wide));
  EXPECT_EQ(read(plan), lists.expected(View::forward));
  EXPECT_EQ(plan.meta.need1, large + 8);
}

TEST(SortedPlans, TheBorderBetweenNarrowAndWide) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t largest : {most - 2, most - 1, most, most + 1}) {
    const TripleLists lists{Integers{largest, 0}, Integers{0, 0}, Integers{1, 0}, 2};
    OwnedPlan plan;
    plan.meta = build_sorted(lists.triples(), {{View::forward, 2, plan.allocate()}}, serial_executor())[0];

    EXPECT_EQ(read(plan), lists.expected(View::forward)) << largest;
    EXPECT_EQ(plan.wide, largest + 1 >= most) << largest;
  }
}

TEST(SortedPlans, HashesAreThoseOfTheSetOfTermsInTheirRoles) {
  const TripleLists lists{random_integers(300, 20), random_integers(300, 20), random_integers(300, 20), 300};
  TripleLists turned{lists.index2, lists.row, lists.index1, 300};
  TripleLists exchanged{lists.index2, lists.index1, lists.row, 300};
  TripleLists reversed = lists;
  for (auto* const index : {&reversed.index1, &reversed.index2, &reversed.row}) {
    std::reverse((*index)->begin(), (*index)->end());
  }
  TripleLists other = lists;
  (*other.index2)[17] += 1;
  const auto hash_of = [](const TripleLists& l) { return build(l, serial_executor())[0].meta.hash; };

  const auto plans = build(lists, executor_of(3));

  const PlanMeta meta = plans[0].meta;
  EXPECT_EQ(plans[1].meta.hash, meta.hash_bwd1);
  EXPECT_EQ(plans[2].meta.hash, meta.hash_bwd2);
  EXPECT_EQ(plans[1].meta.hash_bwd1, meta.hash_bwd2);
  EXPECT_EQ(plans[1].meta.hash_bwd2, meta.hash);
  EXPECT_EQ(plans[2].meta.hash_bwd1, meta.hash);
  EXPECT_EQ(plans[2].meta.hash_bwd2, meta.hash_bwd1);
  for (const OwnedPlan& plan : plans) {
    EXPECT_EQ(plan.meta.order_hash, meta.order_hash);
  }
  EXPECT_EQ(hash_of(turned), meta.hash_bwd1);
  EXPECT_EQ(hash_of(reversed), meta.hash);
  EXPECT_NE(build(reversed, serial_executor())[0].meta.order_hash, meta.order_hash);
  EXPECT_NE(hash_of(exchanged), meta.hash);
  EXPECT_NE(hash_of(other), meta.hash);
  EXPECT_NE(meta.hash, meta.hash_bwd1);
  EXPECT_NE(meta.hash, meta.hash_bwd2);
  EXPECT_NE(meta.hash_bwd1, meta.hash_bwd2);
}

TEST(SortedPlans, OfASparseScaleAndItsTranspose) {
  const TripleLists lists{random_integers(300, 20), std::nullopt, random_integers(300, 30), 300};
  Triples triples = lists.triples();
  triples.unary = true;
  triples.limit2 = 0;
  OwnedPlan forward;
  OwnedPlan transpose;
  const auto metas = build_sorted(
      triples, {{View::forward, 30, forward.allocate()}, {View::backward1, 20, transpose.allocate()}}, executor_of(2));
  forward.meta = metas[0];
  transpose.meta = metas[1];
  // (row, index, entry): the second index says nothing here.
  using Entry = std::array<std::int64_t, 3>;
  const auto entries = [](const OwnedPlan& plan) {
    std::vector<Entry> found;
    for (const Tuple& t : read(plan)) {
      found.push_back({t[0], t[1], t[3]});
    }
    return found;
  };
  std::vector<Entry> by_row;
  std::vector<Entry> by_index;
  for (std::int64_t t = 0; t < 300; ++t) {
    by_row.push_back({lists.at(lists.row, t), lists.at(lists.index1, t), t});
    by_index.push_back({lists.at(lists.index1, t), lists.at(lists.row, t), t});
  }
  std::sort(by_row.begin(), by_row.end());
  std::sort(by_index.begin(), by_index.end());

  EXPECT_EQ(entries(forward), by_row);
  EXPECT_EQ(entries(transpose), by_index);
  EXPECT_FALSE(forward.meta.has(PlanMeta::has_index2));
  EXPECT_FALSE(transpose.meta.has(PlanMeta::has_index2));
  EXPECT_EQ(transpose.meta.hash, forward.meta.hash_bwd1);
  EXPECT_EQ(transpose.meta.hash_bwd1, forward.meta.hash);
  EXPECT_EQ(transpose.meta.need1, triples.limit_row);
}

struct FieldLists {
  std::optional<Integers> index1, index2, segments, gather, index_out;
  std::int64_t entries;
  std::optional<std::int64_t> out_size;

  OwnedPlan plan() const {
    const auto data = [](const std::optional<Integers>& index) { return index ? index->data() : nullptr; };
    const std::int64_t length = gather ? static_cast<std::int64_t>(gather->size()) : entries;
    Fields fields;
    fields.index1 = data(index1);
    fields.index2 = data(index2);
    fields.segments = data(segments);
    fields.gather = data(gather);
    fields.index_out = data(index_out);
    fields.entries = entries;
    fields.gather_length = gather ? std::optional(length) : std::nullopt;
    fields.segment_count = segments ? static_cast<std::int64_t>(segments->size()) - 1 : length;
    fields.out_size = out_size;
    fields.limit1 = limit_of(index1, entries);
    fields.limit2 = limit_of(index2, entries);
    OwnedPlan plan;
    plan.meta = build_from_fields(fields, plan.allocate());
    return plan;
  }

  std::vector<Tuple> expected() const {
    const auto at = [](const std::optional<Integers>& index, std::int64_t i) {
      return index ? (*index)[static_cast<std::size_t>(i)] : i;
    };
    const std::int64_t length = gather ? static_cast<std::int64_t>(gather->size()) : entries;
    const std::int64_t count = segments ? static_cast<std::int64_t>(segments->size()) - 1 : length;
    std::vector<Tuple> tuples;
    for (std::int64_t s = 0; s < count; ++s) {
      for (std::int64_t k = at(segments, s); k < (segments ? at(segments, s + 1) : s + 1); ++k) {
        const std::int64_t t = at(gather, k);
        tuples.push_back({at(index_out, s), at(index1, t), at(index2, t), t});
      }
    }
    std::stable_sort(tuples.begin(), tuples.end(), [](const Tuple& a, const Tuple& b) { return a[0] < b[0]; });
    return tuples;
  }
};

/// Fields with those absent whose bits are set: index1, index2, seg_out, gather_index, index_out.
FieldLists random_fields(int absent) {
  FieldLists f;
  f.entries = 12;
  const auto missing = [&](int bit) { return (absent & bit) != 0; };
  if (!missing(1)) {
    f.index1 = random_integers(12, 7);
  }
  if (!missing(2)) {
    f.index2 = random_integers(12, 9);
  }
  std::int64_t length = 12;
  if (!missing(8)) {
    length = 17;
    f.gather = random_integers(17, 12);
  }
  std::int64_t count = length;
  if (!missing(4)) {
    // Terms before the first segment and behind the last belong to no row.
    f.segments = Integers{1, 1, 4, 4, 9, 10};
    count = 5;
  }
  if (!missing(16)) {
    Integers rows(static_cast<std::size_t>(count + 3));
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), generator());
    rows.resize(static_cast<std::size_t>(count));
    f.index_out = rows;
    f.out_size = count + 3;
  }
  return f;
}

TEST(FieldPlans, LargeIndicesMakeAWidePlan) {
  FieldLists fields;
  fields.entries = 3;
  fields.index1 = Integers{std::int64_t{1} << 40, 0, 5};
  fields.gather = Integers{2, 0, 2};
  const OwnedPlan plan = fields.plan();

  EXPECT_TRUE(plan.meta.has(PlanMeta::wide));
  EXPECT_EQ(read(plan), fields.expected());
}

TEST(FieldPlans, EveryCombinationOfAbsentFields) {
  for (int absent = 0; absent < 32; ++absent) {
    const FieldLists fields = random_fields(absent);

    const OwnedPlan plan = fields.plan();

    EXPECT_EQ(plan.length(), plan.meta.length());
    EXPECT_EQ(plan.meta.entries, 12);
    EXPECT_EQ(plan.meta.terms, static_cast<std::int64_t>(fields.expected().size()));
    EXPECT_EQ(read(plan), fields.expected()) << "absent " << absent;
  }
}

TEST(FieldPlans, RepeatedEntriesHaveAnInverse) {
  FieldLists fields;
  fields.entries = 4;
  fields.gather = Integers{2, 0, 2, 3, 0};
  const OwnedPlan plan = fields.plan();

  EXPECT_TRUE(plan.meta.has(PlanMeta::has_inverse));
  EXPECT_EQ(array_of(plan, &kernels::Terms::inverse_segments, 5), (Integers{0, 2, 2, 4, 5}));
  EXPECT_EQ(array_of(plan, &kernels::Terms::inverse_terms, 5), (Integers{1, 4, 0, 2, 3}));
}

TEST(FieldPlans, DistinctEntriesHaveNone) {
  FieldLists fields;
  fields.entries = 4;
  fields.gather = Integers{2, 0, 3};

  EXPECT_FALSE(fields.plan().meta.has(PlanMeta::has_inverse));
}

TEST(FieldPlans, WithNoFieldAtAllSizesFollowTheInputs) {
  std::int64_t asked = -1;

  const PlanMeta meta = build_from_fields({}, [&](std::int64_t length, bool) -> void* {
    asked = length;
    return nullptr;
  });

  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(meta.is_dynamic());
  EXPECT_EQ(meta.resolved(5).entries, 5);
  EXPECT_EQ(meta.resolved(5).terms, 5);
  EXPECT_EQ(meta.resolved(5).rows, 5);
}

TEST(FieldPlans, MoreRowsThanSegmentsAreEmpty) {
  FieldLists fields;
  fields.entries = 2;
  fields.out_size = 5;

  EXPECT_EQ(array_of(fields.plan(), &kernels::Terms::segments, 6), (Integers{0, 1, 2, 2, 2, 2}));
}

PlanMeta full_meta(PlanMeta::Flag flags) {
  PlanMeta meta;
  meta.entries = 7;
  meta.terms = 9;
  meta.rows = 4;
  meta.need1 = 3;
  meta.need2 = 5;
  meta.flags = flags;
  meta.hash = -11;
  meta.hash_bwd1 = 13;
  meta.hash_bwd2 = 17;
  meta.order_hash = 19;
  return meta;
}

/// The terms by an index and then by row, of a small plan.
void expect_groups(const OwnedPlan& plan) {
  const std::vector<Tuple> terms = read(plan);
  for (const int key : {1, 2}) {
    Integers expected(terms.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](std::int64_t a, std::int64_t b) {
      return terms[static_cast<std::size_t>(a)][static_cast<std::size_t>(key)] <
             terms[static_cast<std::size_t>(b)][static_cast<std::size_t>(key)];
    });
    EXPECT_EQ(array_of(plan, key == 1 ? &kernels::Terms::by_index1 : &kernels::Terms::by_index2, plan.meta.terms),
              expected);
  }
}

TEST(PlanGroups, OfSmallPlansOfEveryKind) {
  const TripleLists lists{random_integers(200, 5), random_integers(200, 6), random_integers(200, 7), 200};
  for (OwnedPlan plan : build(lists, serial_executor())) {
    EXPECT_TRUE(plan.meta.has(PlanMeta::has_groups));
    expect_groups(plan);
    plan.meta = plan.meta.mirror();
    expect_groups(plan);
  }
  for (int absent = 0; absent < 32; ++absent) {
    const OwnedPlan plan = random_fields(absent).plan();
    EXPECT_TRUE(plan.meta.has(PlanMeta::has_groups));
    expect_groups(plan);
  }
}

TEST(PlanGroups, LargePlansHaveNone) {
  for (const std::int64_t count : {PlanMeta::grouped_terms, PlanMeta::grouped_terms + 1}) {
    const TripleLists lists{random_integers(count, 5), random_integers(count, 6), random_integers(count, 7), count};
    for (const OwnedPlan& plan : build(lists, serial_executor())) {
      EXPECT_EQ(plan.meta.has(PlanMeta::has_groups), count == PlanMeta::grouped_terms);
    }
  }
}

TEST(PlanDescription, PassesThroughIntegers) {
  const PlanMeta meta = full_meta(42);

  EXPECT_EQ(PlanMeta::from(meta.to_array()).to_array(), meta.to_array());
  EXPECT_EQ(meta.to_array(), (std::array<std::int64_t, 10>{7, 9, 4, 3, 5, 42, -11, 13, 17, 19}));
}

TEST(PlanDescription, LengthIsTheSumOfTheArraysThatAreThere) {
  EXPECT_EQ(full_meta(0).length(), 0);
  EXPECT_EQ(full_meta(PlanMeta::has_segments).length(), 5);
  EXPECT_EQ(full_meta(PlanMeta::has_index1).length(), 9);
  EXPECT_EQ(full_meta(PlanMeta::has_index2).length(), 9);
  EXPECT_EQ(full_meta(PlanMeta::has_order).length(), 9);
  EXPECT_EQ(full_meta(PlanMeta::has_inverse).length(), 8 + 9);
  EXPECT_EQ(full_meta(PlanMeta::has_groups).length(), 18);
  EXPECT_EQ(full_meta(255).length(), 5 + 27 + 17 + 18);
}

TEST(PlanDescription, ResolvedLeavesWhatIsKnown) {
  EXPECT_EQ(full_meta(0).resolved(99).to_array(), full_meta(0).to_array());
  PlanMeta open = full_meta(0);
  open.terms = open.rows = PlanMeta::unknown;
  EXPECT_EQ(open.resolved(99).terms, 7);
  EXPECT_EQ(open.resolved(99).rows, 7);
}

TEST(PlanDescription, MirrorExchangesTheIndicesOverTheSameArray) {
  const TripleLists lists{random_integers(50, 5), random_integers(50, 6), random_integers(50, 7), 50};
  const OwnedPlan plan = build(lists, serial_executor())[0];
  const PlanMeta mirror = plan.meta.mirror();

  std::vector<Tuple> expected = read(plan);
  for (Tuple& tuple : expected) {
    std::swap(tuple[1], tuple[2]);
  }

  EXPECT_EQ(read(mirror, plan.bytes.data()), expected);
  EXPECT_EQ(mirror.need1, plan.meta.need2);
  EXPECT_EQ(mirror.need2, plan.meta.need1);
  EXPECT_EQ(mirror.length(), plan.meta.length());
  EXPECT_EQ(mirror.mirror().to_array(), plan.meta.to_array());
}

TEST(PlanDescription, MirrorOfAPlanWithOneIndexOnly) {
  const TripleLists lists{random_integers(50, 5), std::nullopt, random_integers(50, 7), 50};
  OwnedPlan plan;
  plan.meta = build_sorted(lists.triples(), {{View::forward, 7, plan.allocate()}}, serial_executor())[0];
  std::vector<Tuple> expected = read(plan);
  for (Tuple& tuple : expected) {
    std::swap(tuple[1], tuple[2]);
  }

  EXPECT_EQ(read(plan.meta.mirror(), plan.bytes.data()), expected);
}

OwnedPlan derived_from(const PlanMeta& meta, const void* array, View view, std::int64_t rows, bool unary,
                       const CpuExecutor& executor) {
  OwnedPlan out;
  out.meta = derived_meta(meta, view, rows, unary);
  derive(meta, array, view, rows, unary, out.allocate()(out.meta.length(), out.meta.has(PlanMeta::wide)), executor);
  return out;
}

/// The terms of a view from those of the plan: stable by the new row alone.
std::vector<Tuple> rotated_terms(std::vector<Tuple> tuples, View view, bool unary) {
  for (Tuple& t : tuples) {
    t = view == View::backward1 ? Tuple{t[1], t[2], t[0], t[3]} : Tuple{t[2], t[0], t[1], t[3]};
    if (unary) {
      std::swap(t[1], t[2]);
    }
  }
  std::stable_sort(tuples.begin(), tuples.end(), [](const Tuple& a, const Tuple& b) { return a[0] < b[0]; });
  return tuples;
}

TEST(DerivedPlans, OfEveryCombinationOfAbsentFields) {
  for (int absent = 0; absent < 32; ++absent) {
    const OwnedPlan plan = random_fields(absent).plan();
    for (const View view : {View::backward1, View::backward2}) {
      const std::int64_t rows = (view == View::backward1 ? plan.meta.need1 : plan.meta.need2) + 2;

      const OwnedPlan derived = derived_from(plan.meta, plan.bytes.data(), view, rows, false, executor_of(2));

      EXPECT_EQ(read(derived), rotated_terms(read(plan), view, false)) << "absent " << absent;
      expect_groups(derived);
      EXPECT_EQ(derived.meta.rows, rows);
      EXPECT_EQ(derived.meta.has(PlanMeta::has_inverse), plan.meta.has(PlanMeta::has_inverse));
    }
  }
}

TEST(DerivedPlans, InverseOfRepeatedEntriesIsThatOfTheDerivedOrder) {
  FieldLists fields;
  fields.entries = 3;
  fields.index1 = Integers{1, 0, 2};
  fields.gather = Integers{0, 2, 0, 1};
  const OwnedPlan plan = fields.plan();

  const OwnedPlan derived = derived_from(plan.meta, plan.bytes.data(), View::backward1, 3, false, serial_executor());

  // By index1: entry 1 (row 0), entry 0 twice (row 1), entry 2 (row 2).
  EXPECT_EQ(array_of(derived, &kernels::Terms::order, 4), (Integers{1, 0, 0, 2}));
  EXPECT_EQ(array_of(derived, &kernels::Terms::inverse_segments, 4), (Integers{0, 2, 3, 4}));
  EXPECT_EQ(array_of(derived, &kernels::Terms::inverse_terms, 4), (Integers{1, 2, 0, 3}));
}

TEST(DerivedPlans, OfSortedTriplesHoldTheTermsOfTheBuiltOnes) {
  for (const int threads : {1, 4}) {
    const TripleLists lists{random_integers(20000, 30), random_integers(20000, 2000), random_integers(20000, 50),
                            20000};
    const auto plans = build(lists, executor_of(threads), 0);
    for (const View view : {View::backward1, View::backward2}) {
      const OwnedPlan& built = plans[static_cast<std::size_t>(view)];

      OwnedPlan derived =
          derived_from(plans[0].meta, plans[0].bytes.data(), view, built.meta.rows, false, executor_of(threads));

      EXPECT_EQ(derived.meta.need1, built.meta.need1);
      EXPECT_EQ(derived.meta.need2, built.meta.need2);
      EXPECT_EQ(derived.meta.hash, built.meta.hash);
      EXPECT_EQ(derived.meta.hash_bwd1, built.meta.hash_bwd1);
      EXPECT_EQ(derived.meta.hash_bwd2, built.meta.hash_bwd2);
      EXPECT_EQ(array_of(derived, &kernels::Terms::segments, derived.meta.rows + 1),
                array_of(built, &kernels::Terms::segments, built.meta.rows + 1));
      std::vector<Tuple> terms = read(derived);
      std::sort(terms.begin(), terms.end());
      EXPECT_EQ(terms, read(built));
    }
  }
}

TEST(DerivedPlans, ThreeRotationsAreTheTermsAgain) {
  const TripleLists lists{random_integers(400, 11), random_integers(400, 12), random_integers(400, 13), 400};
  const OwnedPlan plan = build(lists, serial_executor(), 0)[0];

  const OwnedPlan once = derived_from(plan.meta, plan.bytes.data(), View::backward1, 11, false, serial_executor());
  const OwnedPlan twice = derived_from(once.meta, once.bytes.data(), View::backward1, 12, false, serial_executor());
  const OwnedPlan thrice = derived_from(twice.meta, twice.bytes.data(), View::backward1, 13, false, serial_executor());

  std::vector<Tuple> terms = read(thrice);
  std::sort(terms.begin(), terms.end());
  EXPECT_EQ(terms, read(plan));
}

TEST(DerivedPlans, OfAnIdentityIsItself) {
  FieldLists fields;
  fields.entries = 5;
  const OwnedPlan plan = fields.plan();
  ASSERT_TRUE(plan.meta.is_identity());
  for (const View view : {View::backward1, View::backward2}) {
    const OwnedPlan same = derived_from(plan.meta, plan.bytes.data(), view, 5, false, serial_executor());
    EXPECT_EQ(read(same), read(plan));
    EXPECT_EQ(same.bytes, plan.bytes);

    // With more rows it is no identity.
    const OwnedPlan more = derived_from(plan.meta, plan.bytes.data(), view, 7, false, serial_executor());
    EXPECT_EQ(read(more), rotated_terms(read(plan), view, false));
    EXPECT_EQ(array_of(more, &kernels::Terms::segments, 8), (Integers{0, 1, 2, 3, 4, 5, 5, 5}));
  }
}

TEST(DerivedPlans, TheTransposeOfASparseScale) {
  FieldLists fields;
  fields.entries = 4;
  fields.index1 = Integers{2, 0, 2, 1};
  fields.segments = Integers{0, 1, 1, 4};
  const OwnedPlan plan = fields.plan();

  const OwnedPlan derived = derived_from(plan.meta, plan.bytes.data(), View::backward1, 4, true, serial_executor());

  EXPECT_EQ(array_of(derived, &kernels::Terms::segments, 5), (Integers{0, 1, 2, 4, 4}));
  EXPECT_EQ(array_of(derived, &kernels::Terms::index1, 4), (Integers{2, 2, 0, 2}));
  EXPECT_EQ(array_of(derived, &kernels::Terms::order, 4), (Integers{1, 3, 0, 2}));
  EXPECT_EQ(derived.meta.need1, 3);
}

TEST(DerivedPlans, OfAWidePlan) {
  const std::int64_t large = std::int64_t{1} << 33;
  const TripleLists lists{Integers{large, 1, 0}, Integers{0, 1, 1}, Integers{1, 0, 1}, 3};
  OwnedPlan plan;
  plan.meta = build_sorted(lists.triples(), {{View::forward, 2, plan.allocate()}}, serial_executor())[0];

  const OwnedPlan derived = derived_from(plan.meta, plan.bytes.data(), View::backward2, 2, false, serial_executor());

  EXPECT_TRUE(derived.meta.has(PlanMeta::wide));
  EXPECT_EQ(read(derived), rotated_terms(read(plan), View::backward2, false));
}

TEST(DerivedPlans, OfAMirroredPlan) {
  const TripleLists lists{random_integers(60, 5), random_integers(60, 6), random_integers(60, 7), 60};
  const OwnedPlan plan = build(lists, serial_executor(), 0)[0];
  const PlanMeta mirror = plan.meta.mirror();

  const OwnedPlan derived = derived_from(mirror, plan.bytes.data(), View::backward1, 6, false, serial_executor());

  EXPECT_EQ(read(derived), rotated_terms(read(mirror, plan.bytes.data()), View::backward1, false));
}

TEST(DerivedPlans, OfNoTerms) {
  FieldLists fields;
  fields.entries = 0;
  fields.index1 = Integers{};
  const OwnedPlan plan = fields.plan();

  const OwnedPlan derived = derived_from(plan.meta, plan.bytes.data(), View::backward1, 3, false, serial_executor());

  EXPECT_EQ(array_of(derived, &kernels::Terms::segments, 4), (Integers{0, 0, 0, 0}));
}

}  // namespace
}  // namespace lacewing::structure
