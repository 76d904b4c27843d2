// Builders of infos and their laws, and the sentence of every error.
#include <algorithm>
#include <limits>

#include <c10/core/GradMode.h>

#include "support.h"

namespace lacewing::test {
namespace {

using List = std::vector<std::int64_t>;

/// (index1, index2, output, entry) of every term, in the order of the rows.
using Term = std::array<std::int64_t, 4>;
std::vector<Term> terms_in(const SparseProductInfo& info, std::int64_t rows = 0) {
  const TermLists lists = terms_of(info.fields(), rows);
  std::vector<Term> terms;
  for (std::size_t k = 0; k < lists.row.size(); ++k) {
    terms.push_back({lists.first[k], lists.second[k], lists.row[k], lists.entry[k]});
  }
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a[2] < b[2]; });
  return terms;
}

std::vector<Term> sorted(std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end());
  return terms;
}

TEST(Builder, OutputsThatStartAboveZero) {
  const auto info = sparse_product_info(index_of({0, 1, 2}), index_of({2, 1, 0}), index_of({1, 1, 2}), {}, 3);

  EXPECT_EQ(list_of(info.fields().seg_out), (List{0, 0, 2, 3}));
  EXPECT_EQ(info.fields().out_size, 3);
}

TEST(Builder, WithoutOutSizeGapsDropNoTerm) {
  const auto info = sparse_product_info(index_of({0, 0, 0}), index_of({0, 0, 0}), index_of({4, 1, 4}));

  EXPECT_EQ(info.fields().out_size, 5);
  EXPECT_EQ(list_of(info.fields().seg_out), (List{0, 0, 1, 1, 1, 3}));
  EXPECT_EQ(list_of(info.fields().gather_index), (List{1, 0, 2}));
}

TEST(Builder, AnOutputWithoutATermShiftsNone) {
  const auto x = at::tensor({1., 2., 3.}, at::kDouble).view({1, 3, 1});
  const auto info = sparse_product_info(index_of({0, 1, 2}), index_of({0, 0, 0}), index_of({0, 2, 4}), {}, 6);

  const auto z = sparse_mul(x, at::ones_like(x), info);

  EXPECT_TRUE(z.view({-1}).equal(at::tensor({1., 0., 2., 0., 3., 0.}, at::kDouble)));
}

TEST(Builder, SortsByOutputThenIndicesAndKeepsDuplicatesInOrder) {
  const auto info =
      sparse_product_info(index_of({1, 0, 1, 1, 0}), index_of({2, 1, 2, 0, 1}), index_of({3, 3, 3, 0, 3}));

  EXPECT_EQ(terms_in(info), (std::vector<Term>{{1, 0, 0, 3}, {0, 1, 3, 1}, {0, 1, 3, 4}, {1, 2, 3, 0}, {1, 2, 3, 2}}));
}

TEST(Builder, CanonicalForm) {
  const auto identity = at::arange(4, at::kLong);

  const auto info = sparse_product_info(identity, identity, identity);

  EXPECT_FALSE(info.fields().index1.has_value());
  EXPECT_FALSE(info.fields().index2.has_value());
  EXPECT_FALSE(info.fields().seg_out.has_value());
  EXPECT_FALSE(info.fields().gather_index.has_value());
  EXPECT_FALSE(info.fields().index_out.has_value());
  EXPECT_EQ(info.fields().out_size, 4);

  const auto partly = sparse_product_info(identity, index_of({0, 1, 2, 2}), identity, {}, 5);
  EXPECT_FALSE(partly.fields().index1.has_value());
  EXPECT_EQ(list_of(partly.fields().index2), (List{0, 1, 2, 2}));
  EXPECT_EQ(list_of(partly.fields().seg_out), (List{0, 1, 2, 3, 4, 4}));
}

TEST(Builder, AnAbsentIndexIsTheIdentity) {
  at::manual_seed(1);
  const auto identity = at::arange(6, at::kLong);
  const auto other = at::randint(0, 4, {6}, at::kLong);
  for (int absent = 0; absent < 7; ++absent) {
    const auto given = [&](int bit, const at::Tensor& index) {
      return (absent & bit) != 0 ? std::optional<at::Tensor>() : std::optional<at::Tensor>(index);
    };
    const auto found = sparse_product_info(given(1, other), given(2, other), given(4, other));
    const auto expected = sparse_product_info(given(1, other).value_or(identity), given(2, other).value_or(identity),
                                              given(4, other).value_or(identity));

    EXPECT_EQ(terms_in(found), terms_in(expected)) << absent;
    EXPECT_EQ(found.fields().out_size, expected.fields().out_size);
    EXPECT_EQ(found.plan().sizes, expected.plan().sizes);
    EXPECT_TRUE(found.plan().array.equal(expected.plan().array));
  }
}

TEST(Builder, AllAbsentTakesTFromScaleOrIsEmpty) {
  const auto info = sparse_product_info({}, {}, {}, at::ones({3}));
  EXPECT_EQ(info.fields().out_size, 3);
  EXPECT_EQ(terms_in(info).size(), 3u);

  const auto empty = sparse_product_info({}, {}, {});
  EXPECT_EQ(empty.fields().out_size, 0);
  EXPECT_TRUE(terms_in(empty).empty());
}

TEST(Builder, ListsOfLengthZero) {
  const auto none = at::zeros({0}, at::kLong);
  const auto infos = sparse_product_infos(none, none, none, at::zeros({0}), 3, 4, 5);

  EXPECT_EQ(list_of(infos.fwd.fields().seg_out), (List{0, 0, 0, 0}));
  EXPECT_EQ(list_of(infos.bwd1.fields().seg_out), (List{0, 0, 0, 0, 0}));
  EXPECT_EQ(list_of(infos.bwd2.fields().seg_out), (List{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sparse_product_info(none, none, none).fields().out_size, 0);
}

TEST(Builder, IndicesOfBothWidths) {
  const auto wide = sparse_product_info(index_of({2, 0}), index_of({1, 1}), index_of({1, 0}));
  const auto narrow =
      sparse_product_info(index_of({2, 0}).to(at::kInt), index_of({1, 1}).to(at::kInt), index_of({1, 0}).to(at::kInt));

  EXPECT_EQ(terms_in(wide), terms_in(narrow));
}

TEST(Builder, InfosHoldTheSameTermsInTheirOwnRoles) {
  at::manual_seed(2);
  const RandomTriples triples(500, at::kDouble);
  const auto infos = triples.infos();

  std::vector<Term> forward = terms_in(infos.fwd);
  std::vector<Term> by1;
  std::vector<Term> by2;
  for (const Term& t : forward) {
    by1.push_back({t[1], t[2], t[0], t[3]});
    by2.push_back({t[2], t[0], t[1], t[3]});
  }
  EXPECT_EQ(sorted(terms_in(infos.bwd1)), sorted(by1));
  EXPECT_EQ(sorted(terms_in(infos.bwd2)), sorted(by2));
  EXPECT_EQ(infos.bwd1.fields().out_size, triples.in1);
  EXPECT_EQ(infos.bwd2.fields().out_size, triples.in2);
}

TEST(Builder, RotatedThreeTimesIsTheSame) {
  at::manual_seed(3);
  const RandomTriples t(300, at::kDouble);
  const auto infos = t.infos();
  const auto once = sparse_product_infos(t.index2, t.index, t.index1, t.scale, t.in1, t.in2, t.out);
  const auto twice = sparse_product_infos(t.index, t.index1, t.index2, t.scale, t.in2, t.out, t.in1);
  const auto same = [](const SparseProductInfo& a, const SparseProductInfo& b) {
    EXPECT_EQ(terms_in(a), terms_in(b));
    EXPECT_EQ(a.fields().out_size, b.fields().out_size);
    EXPECT_EQ(list_of(a.fields().seg_out), list_of(b.fields().seg_out));
    EXPECT_EQ(a.plan().sizes, b.plan().sizes);
    EXPECT_TRUE(a.plan().array.equal(b.plan().array));
  };

  same(once.fwd, infos.bwd1);
  same(once.bwd1, infos.bwd2);
  same(once.bwd2, infos.fwd);
  same(twice.fwd, infos.bwd2);
  same(twice.bwd1, infos.fwd);
  same(twice.bwd2, infos.bwd1);
}

TEST(Builder, TheOrderOfTheTriplesIsOfNoMatter) {
  at::manual_seed(4);
  const RandomTriples t(200, at::kDouble);
  const auto order = at::randperm(200, at::kLong);
  const auto shuffled = sparse_product_info(t.index1.index({order}), t.index2.index({order}), t.index.index({order}),
                                            t.scale.index({order}), t.out);
  const auto x = at::randn({3, t.in1, 5}, at::kDouble);
  const auto y = at::randn({3, t.in2, 5}, at::kDouble);

  EXPECT_TRUE(close(sparse_mul(x, y, shuffled), sparse_mul(x, y, t.infos().fwd), 1e-14));
}

TEST(Builder, RandomTriplesAgainstAPlainSort) {
  at::manual_seed(5);
  for (const std::int64_t count : {1, 10, 1000, 30'000}) {
    const RandomTriples t(count, at::kDouble);
    const auto l1 = list_of(t.index1);
    const auto l2 = list_of(t.index2);
    const auto lo = list_of(t.index);
    std::vector<std::array<std::int64_t, 4>> keys;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto k = static_cast<std::size_t>(i);
      keys.push_back({lo[k], l1[k], l2[k], i});
    }
    std::sort(keys.begin(), keys.end());
    std::vector<Term> expected;
    for (const auto& key : keys) {
      expected.push_back({key[1], key[2], key[0], key[3]});
    }

    EXPECT_EQ(terms_in(t.infos().fwd), expected) << count;
  }
}

TEST(DeriveBackward, HoldsTheTermsOfTheBuiltInfos) {
  at::manual_seed(6);
  const RandomTriples t(100, at::kDouble);
  const auto built = t.infos();

  const auto derived = derive_backward(built.fwd, t.in1, t.in2);

  EXPECT_EQ(sorted(terms_in(derived.bwd1)), sorted(terms_in(built.bwd1)));
  EXPECT_EQ(sorted(terms_in(derived.bwd2)), sorted(terms_in(built.bwd2)));
  EXPECT_EQ(derived.bwd1.fields().out_size, t.in1);
  EXPECT_EQ(derived.bwd2.fields().out_size, t.in2);
}

TEST(DeriveBackward, ItsInfosAreProductsOfTheirOwn) {
  at::manual_seed(7);
  Fields fields;
  fields.scale = random({6}, at::kDouble);
  fields.index1 = index_of({0, 2, 1, 1, 0, 3});
  fields.index2 = index_of({1, 0, 0, 2, 2, 1});
  fields.gather_index = index_of({5, 0, 2, 4, 1});
  fields.seg_out = index_of({0, 2, 2, 5});
  fields.index_out = index_of({3, 0, 1});
  fields.out_size = 4;
  for (const bool repeated : {false, true}) {
    if (repeated) {
      fields.gather_index = index_of({5, 0, 0, 4, 5});
    }
    const SparseProductInfo info(fields);
    const auto x = leaf(random({2, 4, 3}, at::kDouble));
    const auto y = leaf(random({2, 3, 3}, at::kDouble));
    const auto upstream = random({2, 4, 3}, at::kDouble);
    const auto expected = gradients(oracle(ops()[0], x, y, fields, false), {x, y}, upstream);

    const auto infos = derive_backward(info, 4, 3);

    EXPECT_TRUE(close(sparse_mul(y.detach(), upstream, infos.bwd1), expected[0], 1e-13)) << repeated;
    EXPECT_TRUE(close(sparse_mul(upstream, x.detach(), infos.bwd2), expected[1], 1e-13)) << repeated;
    const auto given = gradients(sparse_mul(x, y, info, infos.bwd1, infos.bwd2), {x, y}, upstream);
    EXPECT_TRUE(close(given[0], expected[0], 1e-13)) << repeated;
    EXPECT_TRUE(close(given[1], expected[1], 1e-13)) << repeated;
  }
}

TEST(Infos, ProductsTakeThemAsOne) {
  at::manual_seed(8);
  const RandomTriples t(50, at::kDouble);
  const SparseProductInfos infos = t.infos();
  const auto x = leaf(random({2, t.in1, 3}, at::kDouble));
  const auto y = leaf(random({2, t.in2, 3}, at::kDouble));
  const auto expected = sparse_mul(x, y, infos.fwd, infos.bwd1, infos.bwd2);
  const auto upstream = random(expected.sizes().vec(), at::kDouble);

  const auto z = sparse_mul(x, y, infos);

  EXPECT_TRUE(z.equal(expected));
  EXPECT_TRUE(gradients(z, {x, y}, upstream)[0].equal(gradients(expected, {x, y}, upstream)[0]));
  EXPECT_TRUE(sparse_outer(x, y, infos, true).equal(sparse_outer(x, y, infos.fwd, {}, {}, true)));
  const SparseScaleInfos matrix = sparse_scale_infos(index_of({0, 2}), index_of({1, 0}), std::nullopt, 3, t.in1);
  EXPECT_TRUE(sparse_scale(x, matrix).equal(sparse_scale(x, matrix.fwd, matrix.bwd)));
}

TEST(DeriveBackward, AGatheredScaleKeepsItsHistory) {
  Fields fields;
  fields.scale = leaf(at::tensor({2., 3.}, at::kDouble));
  fields.gather_index = index_of({0, 0, 1});
  fields.index1 = index_of({0, 1});
  const auto infos = derive_backward(SparseProductInfo(fields), 2, 2);

  sparse_mul(at::ones({1, 2, 1}, at::kDouble), at::ones({1, 3, 1}, at::kDouble), infos.bwd1).sum().backward();

  EXPECT_TRUE(fields.scale->grad().equal(at::tensor({2., 1.}, at::kDouble)));
}

TEST(DeriveBackward, OfAnInfoWithNoFields) {
  const auto infos = derive_backward(SparseProductInfo(), 3, 3);
  const auto x = at::randn({2, 3, 4});

  EXPECT_TRUE(sparse_mul(x, x, infos.bwd1).equal(x * x));
  EXPECT_TRUE(sparse_mul(x, x, infos.bwd2).equal(x * x));
}

TEST(DeriveBackward, CopiesOfAnInfoShareWhatIsDerived) {
  const RandomTriples t(20, at::kDouble);
  const auto info = t.infos().fwd;
  const SparseProductInfo copy = info;

  const auto first = info.backward_plan(1, t.in1, t.in2);
  const auto second = copy.backward_plan(1, t.in1, t.in2);

  EXPECT_TRUE(first.array.is_same(second.array));
  EXPECT_FALSE(first.array.is_same(info.backward_plan(1, t.in1 + 1, t.in2).array));
}

// Errors. Each is one sentence that starts with the name of the function.

std::string error_of(const Fields& fields) {
  return message_of([&] { SparseProductInfo info(fields); });
}

TEST(InfoErrors, Segments) {
  Fields f;
  f.index1 = index_of({0, 1, 2});
  f.seg_out = index_of({0, 2, 1});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] seg_out must not decrease, but seg_out[2] = 1 follows 2");

  f.seg_out = index_of({0, 2, 4});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] seg_out[2] = 4 is out of range: there are 3 terms");

  f.seg_out = at::zeros({0}, at::kLong);
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] seg_out must have at least one entry, its start");

  f.seg_out = index_of({-1, 2});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] seg_out[0] = -1 is negative");

  f.seg_out = index_of({0, 3});
  f.gather_index = index_of({0, 1});
  EXPECT_EQ(error_of(f),
            "[lacewing.SparseProductInfo] seg_out[1] = 3 is out of range: there are 2 entries of gather_index");
}

TEST(InfoErrors, IndexOut) {
  Fields f;
  f.index_out = index_of({2, 0, 2});
  f.out_size = 4;
  EXPECT_EQ(error_of(f),
            "[lacewing.SparseProductInfo] index_out must be distinct, but index_out[2] = 2 stands at 0 already");

  f.index_out = index_of({2, 0, 1});
  f.out_size = std::nullopt;
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] out_size must be given where index_out is");

  f.out_size = 2;
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index_out[0] = 2 is out of range: out_size is 2");

  f.out_size = 4;
  f.seg_out = index_of({0, 1, 2});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index_out has 3 entries for 2 segments");
}

TEST(InfoErrors, LengthsAndGather) {
  Fields f;
  f.index1 = index_of({0, 1, 2});
  f.index2 = index_of({0, 1});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index2 has 2 entries but the fields before it have 3");

  f.index2 = at::zeros({0}, at::kLong);
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index2 has 0 entries but the fields before it have 3");

  f.index2 = std::nullopt;
  f.scale = at::ones({4});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index1 has 3 entries but the fields before it have 4");

  f.scale = std::nullopt;
  f.gather_index = index_of({0, 3});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] gather_index[1] = 3 is out of range: T is 3");
}

TEST(InfoErrors, SizesAndOverflow) {
  Fields f;
  f.index1 = index_of({0, 1, 2});
  f.out_size = 2;
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] out_size is 2 but there are 3 segments");

  f.out_size = -1;
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] out_size must lie in [0, 281474976710656], not -1");

  f.out_size = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(error_of(f),
            "[lacewing.SparseProductInfo] out_size must lie in [0, 281474976710656], not 9223372036854775807");
}

TEST(InfoErrors, SizesBeyondTheMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the process where memory runs out";
#endif
  const std::int64_t huge = std::int64_t{1} << 47;
  Fields f;
  f.index1 = index_of({0});
  f.out_size = huge;
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] there is not enough memory for an info of these sizes");

  f.index_out = index_of({0});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] there is not enough memory for an info of these sizes");

  EXPECT_EQ(message_of([&] { sparse_product_info(index_of({0}), {}, {}, {}, huge); }),
            "[lacewing.sparse_product_info] there is not enough memory for an info of these sizes");
}

TEST(InfoErrors, NoInfoIsEmpty) {
  SparseProductInfo info = sparse_product_info(index_of({0, 1}), index_of({1, 0}), index_of({0, 0}));
  const SparseProductInfo other = std::move(info);
  EXPECT_EQ(info.fields().out_size, other.fields().out_size);

  EXPECT_EQ(message_of([] { SparseProductInfo(std::nullopt, InfoPlan{}); }),
            "[lacewing.SparseProductInfo] the plan is empty or its integers do not describe its array");
  EXPECT_EQ(message_of([] { SparseScaleInfo(std::nullopt, InfoPlan{at::zeros({3}, at::kInt), {2, 2, 2}}); }),
            "[lacewing.SparseScaleInfo] the plan is empty or its integers do not describe its array");
}

TEST(InfoErrors, RankAndDtypeOfFields) {
  Fields f;
  f.index1 = at::zeros({2, 2}, at::kLong);
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index1 must have 1 dimension, not shape (2, 2)");

  f.index1 = at::zeros({2});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] index1 must have dtype int32 or int64, not float32");

  f.index1 = std::nullopt;
  f.scale = at::ones({3, 2});
  EXPECT_EQ(error_of(f), "[lacewing.SparseProductInfo] scale must have 1 dimension, not shape (3, 2)");
}

TEST(InfoErrors, NegativeIndicesOfEveryField) {
  for (const char* const field : {"index1", "index2", "gather_index", "index_out"}) {
    Fields f;
    f.out_size = 3;
    (field == std::string("index1")         ? f.index1
     : field == std::string("index2")       ? f.index2
     : field == std::string("gather_index") ? f.gather_index
                                            : f.index_out) = index_of({0, 1, -7});
    EXPECT_EQ(error_of(f), std::string("[lacewing.SparseProductInfo] ") + field + "[2] = -7 is negative");
  }
}

TEST(BuilderErrors, IndicesAndSizes) {
  const auto build = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, std::optional<std::int64_t> out,
                        std::optional<std::int64_t> in1, std::optional<std::int64_t> in2) {
    return message_of([&] { sparse_product_infos(a, b, c, {}, out, in1, in2); });
  };
  const auto i = index_of({0, 4});
  const auto j = index_of({0, 1});

  EXPECT_EQ(build(j, j, i, 4, 2, 2), "[lacewing.sparse_product_infos] index[1] = 4 is out of range: out_size is 4");
  EXPECT_EQ(build(i, j, j, 2, 3, 2), "[lacewing.sparse_product_infos] index1[1] = 4 is out of range: in1_size is 3");
  EXPECT_EQ(build(j, i, j, 2, 2, 1), "[lacewing.sparse_product_infos] index2[1] = 4 is out of range: in2_size is 1");
  EXPECT_EQ(build(j, index_of({0}), j, 2, 2, 2),
            "[lacewing.sparse_product_infos] index2 has 1 entries but another argument has 2");
  EXPECT_EQ(build(j, j, index_of({0, -1}), 2, 2, 2), "[lacewing.sparse_product_infos] index[1] = -1 is negative");
  EXPECT_EQ(build(j, j, at::ones({2}), 2, 2, 2),
            "[lacewing.sparse_product_infos] index must have dtype int32 or int64, not float32");
  EXPECT_EQ(build(j, j, j, -3, 2, 2),
            "[lacewing.sparse_product_infos] out_size must lie in [0, 281474976710656], not -3");
  EXPECT_EQ(message_of([&] { sparse_product_infos({}, j, j, {}, 2, 1, 2); }),
            "[lacewing.sparse_product_infos] index1 is absent, which means 0 to 1, but in1_size is 1");
  EXPECT_EQ(message_of([&] { sparse_product_info(j, j, j, at::ones({3})); }),
            "[lacewing.sparse_product_info] index1 has 2 entries but another argument has 3");
}

TEST(BuilderErrors, OfSparseScale) {
  const auto j = index_of({0, 5});
  EXPECT_EQ(message_of([&] { sparse_scale_infos(j, {}, {}, 3, 9); }),
            "[lacewing.sparse_scale_infos] index_out[1] = 5 is out of range: out_size is 3");
  EXPECT_EQ(message_of([&] { sparse_scale_infos({}, j, {}, 9, 3); }),
            "[lacewing.sparse_scale_infos] index_in[1] = 5 is out of range: in_size is 3");
}

class ProductErrors : public testing::TestWithParam<int> {
 protected:
  const Op& op() const { return ops()[static_cast<std::size_t>(GetParam())]; }
  std::string prefix() const { return std::string("[lacewing.") + op().name + "] "; }

  at::Tensor x(std::int64_t n = 2, std::int64_t rows = 3, Extents e = {}) const {
    return at::ones(shape_of(op().x, n, rows, e), at::kDouble);
  }
  at::Tensor y(std::int64_t n = 2, std::int64_t rows = 3, Extents e = {}) const {
    return at::ones(shape_of(op().y, n, rows, e), at::kDouble);
  }
  std::string error(const at::Tensor& a, const at::Tensor& b,
                    const SparseProductInfo& info = SparseProductInfo()) const {
    return message_of([&] { op().apply(a, b, info, {}, {}, false); });
  }
  static std::string text(at::IntArrayRef shape) {
    std::string out = "(";
    for (std::size_t i = 0; i < shape.size(); ++i) {
      out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return out + (shape.size() == 1 ? ",)" : ")");
  }
};

INSTANTIATE_TEST_SUITE_P(All, ProductErrors, testing::Range(0, kOps), [](const auto& info) {
  return std::string(ops()[static_cast<std::size_t>(info.param)].name);
});

TEST_P(ProductErrors, Rank) {
  const auto expected = [](const std::string& letters) {
    const std::string tail = letters.size() == 2 ? ", C1, C2" : letters.size() == 1 ? ", C" : "";
    return "must have shape (N, M" + tail + "), or (M" + tail + ") where it is shared, not ";
  };
  const auto scalar = at::ones({}, at::kDouble);
  const auto high = at::ones({1, 1, 1, 1, 1}, at::kDouble);

  EXPECT_EQ(error(scalar, y()), prefix() + "input1 " + expected(op().x) + "()");
  EXPECT_EQ(error(high, y()), prefix() + "input1 " + expected(op().x) + "(1, 1, 1, 1, 1)");
  EXPECT_EQ(error(x(), scalar), prefix() + "input2 " + expected(op().y) + "()");
  EXPECT_EQ(error(x(), high), prefix() + "input2 " + expected(op().y) + "(1, 1, 1, 1, 1)");
}

TEST_P(ProductErrors, ChannelsThatAreJoined) {
  if (op().x.empty() || op().y.find('a') == std::string::npos) {
    GTEST_SKIP() << op().name << " joins no channels";
  }
  const auto b = y(2, 3, {6, 3});

  EXPECT_EQ(error(x(), b), prefix() + "input1 of shape " + text(x().sizes()) + " and input2 of shape " +
                               text(b.sizes()) +
                               " do not fit: they must agree in the channels that the product joins, and have 4 and 6");
}

TEST_P(ProductErrors, BatchSizes) {
  for (const std::int64_t n : {1, 3}) {
    EXPECT_EQ(error(x(2), y(n)), prefix() + "input1 of shape " + text(x(2).sizes()) + " and input2 of shape " +
                                     text(y(n).sizes()) +
                                     " must agree in N; an operand that is the same for every n has no dim N");
  }
}

TEST_P(ProductErrors, Dtype) {
  const std::string wanted = " must have dtype float16, bfloat16, float32, float64, complex64 or complex128, not ";

  EXPECT_EQ(error(x().to(at::kLong), y()), prefix() + "input1" + wanted + "int64");
  EXPECT_EQ(error(x(), y().to(at::kBool)), prefix() + "input2" + wanted + "Bool");
  Fields f;
  f.scale = at::empty({3}, at::kFloat8_e5m2);
  EXPECT_EQ(error(x(), y(), SparseProductInfo(f)).rfind(prefix() + "scale" + wanted, 0), 0u);
  f.scale = at::ones({3}, at::kComplexDouble);
  EXPECT_EQ(error(x(), y(), SparseProductInfo(f)),
            prefix() + "scale is complex but both inputs are real: its imaginary part would be lost");
}

TEST_P(ProductErrors, IntegersAreAScale) {
  Fields f;
  f.scale = at::tensor({2, -1, 0}, at::kInt);
  const SparseProductInfo of_fields(f);

  EXPECT_TRUE(of_fields.scale()->equal(at::tensor({2.0, -1.0, 0.0}, at::kDouble)));
  EXPECT_TRUE(of_fields.with_scale(at::ones({3}, at::kBool)).scale()->equal(at::ones({3}, at::kDouble)));
  EXPECT_EQ(error(x(), y(), of_fields), "nothing was thrown");
}

TEST_P(ProductErrors, Device) {
  EXPECT_EQ(error(x(), y().to(at::kMeta)), prefix() + "input2 is on meta but input1 is on cpu");
  EXPECT_EQ(error(x().to(at::kMeta), y().to(at::kMeta)), prefix() + "the info is on cpu but input1 is on meta");
  Fields f;
  f.index1 = index_of({0, 1, 2});
  const auto info = SparseProductInfo(f).with_scale(at::ones({3}, at::device(at::kMeta)));
  EXPECT_EQ(error(x(), y(), info), prefix() + "scale is on meta but input1 is on cpu");
}

TEST_P(ProductErrors, IndexOutOfRange) {
  Fields f;
  f.index1 = index_of({0, 2, 5, 4});
  f.index2 = index_of({0, 2, 0, 0});
  EXPECT_EQ(error(x(), y(), SparseProductInfo(f)), prefix() + "index1[2] = 5 is out of range for input1 of shape " +
                                                       text(x().sizes()) + ": dim 1 has 3 entries");
  EXPECT_EQ(error(x()[0], y(), SparseProductInfo(f)), prefix() + "index1[2] = 5 is out of range for input1 of shape " +
                                                          text(x()[0].sizes()) + ": dim 0 has 3 entries");
  std::swap(f.index1, f.index2);
  EXPECT_EQ(error(x(), y(), SparseProductInfo(f)), prefix() + "index2[2] = 5 is out of range for input2 of shape " +
                                                       text(y().sizes()) + ": dim 1 has 3 entries");
  // Also with gradients, where plans are derived first.
  EXPECT_EQ(error(leaf(x()), y(), SparseProductInfo(f)), error(x(), y(), SparseProductInfo(f)));
}

TEST_P(ProductErrors, AnAbsentIndexBeyondItsInput) {
  Fields f;
  f.index1 = index_of({0, 0, 0, 0});
  EXPECT_EQ(error(x(), y(), SparseProductInfo(f)), prefix() + "index2[3] = 3 is out of range for input2 of shape " +
                                                       text(y().sizes()) + ": dim 1 has 3 entries");
}

TEST_P(ProductErrors, NoFieldsAndInputsOfDifferentRows) {
  EXPECT_EQ(error(x(2, 3), y(2, 4)),
            prefix() + "an info whose fields are all absent takes as many rows of input1 as of input2, not 3 and 4");
}

TEST_P(ProductErrors, LengthOfScale) {
  Fields f;
  f.index1 = index_of({0, 1, 2});
  const SparseProductInfo info(f);

  EXPECT_EQ(error(x(), y(), info.with_scale(at::ones({2}, at::kDouble))),
            prefix() + "scale must have shape (3,), one entry for each term, not (2,)");
  EXPECT_EQ(error(x(), y(), info.with_scale(at::ones({3, 1}, at::kDouble))),
            prefix() + "scale must have shape (3,), one entry for each term, not (3, 1)");
}

TEST_P(ProductErrors, BackwardInfosOfOtherTermsOrSizes) {
  const auto index = index_of({0, 1, 2});
  const auto infos = sparse_product_infos(index, index_of({1, 1, 0}), index_of({0, 0, 1}), {}, 3, 3, 3);
  const auto other = sparse_product_infos(index, index_of({1, 1, 1}), index_of({0, 0, 1}), {}, 3, 3, 3);
  const auto larger = sparse_product_infos(index, index_of({1, 1, 0}), index_of({0, 0, 1}), {}, 3, 4, 5);
  const auto with = [&](const SparseProductInfo& bwd1, const SparseProductInfo& bwd2) {
    return message_of([&] { op().apply(leaf(x()), leaf(y()), infos.fwd, bwd1, bwd2, false); });
  };

  const std::string roles =
      " does not hold the same terms as info_fwd, in the roles of this gradient: build the infos together, or leave it "
      "out";

  EXPECT_EQ(with(other.bwd1, infos.bwd2), prefix() + "info_bwd1" + roles);
  EXPECT_EQ(with(infos.bwd1, other.bwd2), prefix() + "info_bwd2" + roles);
  EXPECT_EQ(with(larger.bwd1, infos.bwd2),
            prefix() + "info_bwd1 gives a gradient of 4 rows for an input of 3 rows: build it with the input's size");
  EXPECT_EQ(with(infos.bwd1, larger.bwd2),
            prefix() + "info_bwd2 gives a gradient of 5 rows for an input of 3 rows: build it with the input's size");
}

TEST_P(ProductErrors, BackwardInfosInTheWrongRoles) {
  at::manual_seed(8);
  const auto index1 = index_of({0, 1, 2, 2});
  const auto index2 = index_of({1, 1, 0, 2});
  const auto infos = sparse_product_infos(index1, index2, index_of({0, 0, 1, 1}), {}, 3, 3, 3);
  const auto a = leaf(at::randn_like(x()));
  const auto b = leaf(at::randn_like(y()));

  EXPECT_EQ(message_of([&] { op().apply(a, b, infos.fwd, infos.bwd2, infos.bwd1, false); }),
            prefix() +
                "info_bwd1 does not hold the same terms as info_fwd, in the roles of this gradient: build the infos "
                "together, or leave it out");
}

TEST_P(ProductErrors, TheRawFormRefusesGradients) {
  const auto raw = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale) {
    Fields f;
    f.scale = scale;
    return message_of([&] { op().raw(a, b, f, false); });
  };
  const auto scale = at::ones({3}, at::kDouble);
  const auto sentence = [&](const char* argument) {
    return std::string("[lacewing.") + op().raw_name + "] " + argument +
           " requires grad, but this op has no gradient: use " + op().name + ", or detach it";
  };

  EXPECT_EQ(raw(leaf(x()), y(), scale), sentence("input1"));
  EXPECT_EQ(raw(x(), leaf(y()), scale), sentence("input2"));
  EXPECT_EQ(raw(x(), y(), leaf(scale)), sentence("scale"));
}

TEST_P(ProductErrors, TheRawFormNamesItselfInErrorsOfFields) {
  Fields f;
  f.seg_out = index_of({0, 2, 1});

  const std::string message = message_of([&] { op().raw(x(), y(), f, false); });

  EXPECT_EQ(message,
            std::string("[lacewing.") + op().raw_name + "] seg_out must not decrease, but seg_out[2] = 1 follows 2");
}

TEST_P(ProductErrors, TheRawFormNamesItselfInErrorsOfOperands) {
  Fields f;
  f.index1 = index_of({0, 99});
  const std::string prefix = std::string("[lacewing.") + op().raw_name + "] ";

  EXPECT_EQ(message_of([&] { op().raw(x(), y(), f, false); }).rfind(prefix + "index1[1] = 99 is out of range", 0), 0u);
  EXPECT_EQ(message_of([&] {
              op().raw(x().unsqueeze(0).unsqueeze(0), y(), f, false);
            }).rfind(prefix + "input1 must have shape", 0),
            0u);
  f.index1 = index_of({0, 1});
  f.scale = at::empty({2}, at::kFloat8_e5m2);
  EXPECT_EQ(message_of([&] { op().raw(x(), y(), f, false); }).rfind(prefix + "scale must have dtype", 0), 0u);
}

}  // namespace
}  // namespace lacewing::test
