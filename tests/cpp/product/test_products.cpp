// The products through the C++ API, without Python: values and derivatives against numbers written out and the oracle.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include <c10/core/GradMode.h>

#include "support.h"

namespace lacewing::test {
namespace {

/// Terms (0,0) -> 0, (0,1) -> 1, (1,1) -> 1 with scale 1, 2, -1; output 2 has none.
SparseProductInfo by_hand(const at::Tensor& scale = numbers({1, 2, -1}, {3})) {
  return sparse_product_info(index_of({0, 0, 1}), index_of({0, 1, 1}), index_of({0, 1, 1}), scale, 3);
}

const at::Tensor vectors_x = numbers({1, 2, 3, 4}, {1, 2, 2});
const at::Tensor vectors_y = numbers({5, 6, 7, 8}, {1, 2, 2});
const at::Tensor matrices = numbers({1, 0, 2, 1, 0, 1, 1, -1}, {1, 2, 2, 2});

TEST(ProductsByHand, Mul) {
  EXPECT_TRUE(sparse_mul(vectors_x, vectors_y, by_hand()).equal(numbers({5, 12, -7, 0, 0, 0}, {1, 3, 2})));
}

TEST(ProductsByHand, Outer) {
  EXPECT_TRUE(sparse_outer(vectors_x, vectors_y, by_hand())
                  .equal(numbers({5, 6, 10, 12, -7, -8, 0, 0, 0, 0, 0, 0}, {1, 3, 2, 2})));
}

TEST(ProductsByHand, Inner) {
  EXPECT_TRUE(sparse_inner(vectors_x, vectors_y, by_hand()).equal(numbers({17, -7, 0}, {1, 3})));
}

TEST(ProductsByHand, Vecmat) {
  EXPECT_TRUE(sparse_vecmat(vectors_x, matrices, by_hand()).equal(numbers({5, 2, 0, -1, 0, 0}, {1, 3, 2})));
}

TEST(ProductsByHand, Vecsca) {
  EXPECT_TRUE(
      sparse_vecsca(vectors_x, numbers({5, 7}, {1, 2}), by_hand()).equal(numbers({5, 10, -7, 0, 0, 0}, {1, 3, 2})));
}

TEST(ProductsByHand, Scavec) {
  EXPECT_TRUE(
      sparse_scavec(numbers({1, 3}, {1, 2}), vectors_y, by_hand()).equal(numbers({5, 6, -7, -8, 0, 0}, {1, 3, 2})));
}

TEST(ProductsByHand, MatTVec) {
  EXPECT_TRUE(sparse_mat_t_vec(matrices, vectors_y, by_hand()).equal(numbers({17, 6, 38, 17, 0, 0}, {1, 3, 2})));
}

TEST(ProductsByHand, SharedAndAccumulated) {
  const auto x = numbers({1, 2, 3, 4, 10, 20, 30, 40}, {2, 2, 2});
  const auto y = vectors_y.squeeze(0);

  EXPECT_TRUE(sparse_mul(x, y, by_hand()).equal(numbers({5, 12, -7, 0, 0, 0, 50, 120, -70, 0, 0, 0}, {2, 3, 2})));
  EXPECT_TRUE(
      sparse_mul(x, y, by_hand(), {}, {}, /*out_accumulated=*/true).equal(numbers({55, 132, -77, 0, 0, 0}, {3, 2})));
  EXPECT_TRUE(sparse_mul(x[0], y, by_hand()).equal(numbers({5, 12, -7, 0, 0, 0}, {3, 2})));
}

TEST(ProductsByHand, GradientsOfTheSum) {
  const auto x = leaf(vectors_x);
  const auto y = leaf(vectors_y);
  const auto scale = leaf(numbers({1, 2, -1}, {3}));

  sparse_mul(x, y, by_hand(scale)).sum().backward();

  EXPECT_TRUE(x.grad().equal(numbers({19, 22, -7, -8}, {1, 2, 2})));
  EXPECT_TRUE(y.grad().equal(numbers({1, 2, -1, 0}, {1, 2, 2})));
  EXPECT_TRUE(scale.grad().equal(numbers({17, 23, 53}, {3})));
}

TEST(ProductsByHand, GradientsAddUp) {
  const auto x = leaf(vectors_x);

  sparse_mul(x, vectors_y, by_hand()).sum().backward();
  sparse_mul(x, vectors_y, by_hand()).sum().backward();

  EXPECT_TRUE(x.grad().equal(numbers({38, 44, -14, -16}, {1, 2, 2})));
}

TEST(ProductsByHand, HessianOfASquare) {
  // z = x[0]^2: gradient 2 x, second derivative 2.
  const auto x = leaf(numbers({3}, {1, 1, 1}));
  const SparseProductInfo info;

  const auto z = sparse_mul(x, x, info);
  const auto first = gradients(z.sum(), {x}, {}, /*create_graph=*/true)[0];
  const auto second = gradients(first.sum(), {x})[0];

  EXPECT_EQ(z.item<double>(), 9);
  EXPECT_EQ(first.item<double>(), 6);
  EXPECT_EQ(second.item<double>(), 2);
}

TEST(ProductsByHand, ComplexGradientsConjugate) {
  const auto x = leaf(at::complex(numbers({1}, {1, 1, 1}), numbers({2}, {1, 1, 1})));
  const auto y = leaf(at::complex(numbers({3}, {1, 1, 1}), numbers({-1}, {1, 1, 1})));

  sparse_mul(x, y, SparseProductInfo()).backward(at::ones_like(x));

  EXPECT_TRUE(x.grad().resolve_conj().equal(y.conj().resolve_conj()));
  EXPECT_TRUE(y.grad().resolve_conj().equal(x.conj().resolve_conj()));
}

/// An op and which of {x shared, y shared, z accumulated} hold.
class Products : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const Op& op() const { return ops()[static_cast<std::size_t>(std::get<0>(GetParam()))]; }
  bool shared_x() const { return (std::get<1>(GetParam()) & 1) != 0; }
  bool shared_y() const { return (std::get<1>(GetParam()) & 2) != 0; }
  bool accumulated() const { return (std::get<1>(GetParam()) & 4) != 0; }

  at::Tensor x(std::int64_t n, std::int64_t rows, Extents extents, at::ScalarType type) const {
    return random(shape_of(op().x, shared_x() ? -1 : n, rows, extents), type);
  }
  at::Tensor y(std::int64_t n, std::int64_t rows, Extents extents, at::ScalarType type) const {
    return random(shape_of(op().y, shared_y() ? -1 : n, rows, extents), type);
  }
};

std::string name_of(const testing::TestParamInfo<std::tuple<int, int>>& info) {
  const auto [op, bits] = info.param;
  std::string name = ops()[static_cast<std::size_t>(op)].name;
  name += (bits & 1) != 0 ? "_shared1" : "";
  name += (bits & 2) != 0 ? "_shared2" : "";
  name += (bits & 4) != 0 ? "_accumulated" : "";
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Products, testing::Combine(testing::Range(0, kOps), testing::Range(0, 8)), name_of);

TEST_P(Products, ValuesOfEveryDtypeAndWidth) {
  at::manual_seed(1);
  constexpr std::array<std::int64_t, 6> widths{1, 3, 16, 17, 64, 67};
  constexpr std::array<std::int64_t, 6> others{5, 17, 1, 3, 9, 16};
  constexpr std::array<std::int64_t, 6> batches{40, 3, 1, 7, 2, 5};
  for (std::size_t i = 0; i < widths.size(); ++i) {
    for (const at::ScalarType type : kDtypes) {
      const RandomTriples triples(40, type);
      const Extents extents = i % 2 == 0 ? Extents{widths[i], others[i]} : Extents{others[i], widths[i]};
      for (const Extents e : {extents, Extents{extents.b, extents.a}}) {
        if (e.a != extents.a && type != at::kFloat) {
          continue;
        }
        const auto a = x(batches[i], triples.in1, e, type);
        const auto b = y(batches[i], triples.in2, e, type);
        const auto infos = triples.infos();

        const auto z = op().apply(a, b, infos.fwd, {}, {}, accumulated());

        EXPECT_EQ(z.scalar_type(), type);
        EXPECT_TRUE(close(z, oracle(op(), a, b, triples.fields(), accumulated()), tolerance_of(type)))
            << type << ", " << e.a << " x " << e.b;
        if (e.a == extents.a) {
          const BackendScope reference(Backend::reference);
          EXPECT_TRUE(close(op().apply(a, b, infos.fwd, {}, {}, accumulated()), z, tolerance_of(type)))
              << "reference, " << type << ", " << e.a << " x " << e.b;
        }
      }
    }
  }
}

TEST_P(Products, DerivativesOfEveryDtype) {
  at::manual_seed(2);
  for (const at::ScalarType type : kDtypes) {
    const RandomTriples triples(30, type);
    const Extents extents{5, 3};
    const auto a = x(4, triples.in1, extents, type);
    const auto b = y(4, triples.in2, extents, type);
    const auto infos = triples.infos();

    EXPECT_TRUE(all_orders_agree(op(), a, b, triples.fields(), accumulated())) << type << ", derived";
    EXPECT_TRUE(all_orders_agree(op(), a, b, triples.fields(), accumulated(), infos.bwd1, infos.bwd2)) << type;
    EXPECT_TRUE(all_orders_agree(op(), a, b, triples.fields(), accumulated(), {}, infos.bwd2)) << type << ", half";
    const BackendScope reference(Backend::reference);
    EXPECT_TRUE(all_orders_agree(op(), a, b, triples.fields(), accumulated())) << type << ", reference";
  }
}

TEST_P(Products, DerivativesOfWideChannels) {
  at::manual_seed(3);
  const RandomTriples triples(24, at::kFloat);
  for (const Extents extents : {Extents{67, 17}, Extents{16, 35}}) {
    EXPECT_TRUE(all_orders_agree(op(), x(4, triples.in1, extents, at::kFloat), y(4, triples.in2, extents, at::kFloat),
                                 triples.fields(), accumulated()));
  }
}

TEST_P(Products, MixedDtypes) {
  at::manual_seed(4);
  using Types = std::tuple<at::ScalarType, at::ScalarType, at::ScalarType>;
  for (const auto& [type_x, type_y, type_s] :
       {Types{at::kFloat, at::kDouble, at::kDouble}, Types{at::kDouble, at::kFloat, at::kFloat},
        Types{at::kDouble, at::kComplexDouble, at::kDouble}, Types{at::kComplexDouble, at::kDouble, at::kComplexDouble},
        Types{at::kFloat, at::kComplexFloat, at::kComplexFloat}, Types{at::kHalf, at::kFloat, at::kFloat},
        Types{at::kHalf, at::kBFloat16, at::kFloat}}) {
    const RandomTriples triples(20, type_s);
    const auto a = x(3, triples.in1, {}, type_x);
    const auto b = y(3, triples.in2, {}, type_y);

    EXPECT_EQ(op().apply(a, b, triples.infos().fwd, {}, {}, accumulated()).scalar_type(), at::result_type(a, b));
    EXPECT_TRUE(all_orders_agree(op(), a, b, triples.fields(), accumulated())) << type_x << " " << type_y;
  }
}

TEST_P(Products, AFrozenOperandLeavesTheOthersGradient) {
  at::manual_seed(5);
  const RandomTriples triples(30, at::kDouble);
  const auto infos = triples.infos();
  const auto a = x(4, triples.in1, {}, at::kDouble);
  const auto b = y(4, triples.in2, {}, at::kDouble);
  Tensors all{leaf(a), leaf(b), leaf(triples.scale)};
  const auto full = op().apply(all[0], all[1], infos.fwd.with_scale(all[2]), {}, {}, accumulated());
  const auto upstream = at::randn_like(full);
  const Tensors expected = gradients(full, all, upstream);
  for (int wanted = 1; wanted < 8; ++wanted) {
    const Tensors mine{a.clone().requires_grad_((wanted & 1) != 0), b.clone().requires_grad_((wanted & 2) != 0),
                       triples.scale.clone().requires_grad_((wanted & 4) != 0)};

    const auto z = op().apply(mine[0], mine[1], infos.fwd.with_scale(mine[2]), {}, {}, accumulated());
    z.backward(upstream);

    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(mine[i].grad().defined(), mine[i].requires_grad());
      if (mine[i].requires_grad()) {
        EXPECT_TRUE(mine[i].grad().equal(expected[i])) << wanted;
      }
    }
  }
  EXPECT_FALSE(op().apply(a, b, infos.fwd, {}, {}, accumulated()).requires_grad());
  const c10::NoGradGuard no_grad;
  EXPECT_FALSE(op().apply(all[0], all[1], infos.fwd, {}, {}, accumulated()).requires_grad());
}

TEST_P(Products, NonContiguousInputs) {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kHalf, at::kFloat, at::kComplexDouble}) {
    const RandomTriples triples(30, type);
    const Extents extents{19, 9};
    const auto a = x(6, triples.in1, extents, type);
    const auto b = y(6, triples.in2, extents, type);
    const auto info = triples.infos().fwd;
    const auto expected = oracle(op(), a, b, triples.fields(), accumulated());

    for (const auto& other : in_other_layouts(a)) {
      EXPECT_TRUE(close(op().apply(other, b, info, {}, {}, accumulated()), expected, tolerance_of(type))) << type;
    }
    for (const auto& other : in_other_layouts(b)) {
      EXPECT_TRUE(close(op().apply(a, other, info, {}, {}, accumulated()), expected, tolerance_of(type))) << type;
    }
    for (const auto& other : expanded(a)) {
      EXPECT_TRUE(close(op().apply(other, b, info, {}, {}, accumulated()),
                        oracle(op(), other, b, triples.fields(), accumulated()), tolerance_of(type)))
          << type << " strides " << other.strides();
    }
    for (const auto& other : expanded(b)) {
      EXPECT_TRUE(close(op().apply(a, other, info, {}, {}, accumulated()),
                        oracle(op(), a, other, triples.fields(), accumulated()), tolerance_of(type)))
          << type << " strides " << other.strides();
    }
  }
}

TEST_P(Products, DerivativesAtNonContiguousInputs) {
  at::manual_seed(7);
  for (const at::ScalarType type : {at::kDouble, at::kComplexDouble}) {
    const RandomTriples triples(20, type);
    const auto a = x(3, triples.in1, {5, 9}, type);
    const auto b = y(3, triples.in2, {5, 9}, type);
    const auto infos = triples.infos();
    const Tensors inputs{leaf(a), leaf(b)};
    const auto z = op().apply(inputs[0], inputs[1], infos.fwd, {}, {}, accumulated());
    const auto upstream = random({z.sizes().begin(), z.sizes().end()}, type);
    const auto expected = gradients(z, inputs, upstream);
    const auto layouts_a = in_other_layouts(a);
    const auto layouts_b = in_other_layouts(b);
    for (std::size_t i = 0; i < std::min(layouts_a.size(), layouts_b.size()); ++i) {
      // A leaf that keeps its strides.
      const auto u = layouts_a[i].detach().requires_grad_();
      const auto v = layouts_b[i].detach().requires_grad_();

      const auto found = gradients(op().apply(u, v, infos.fwd, {}, {}, accumulated()), {u, v}, upstream);

      EXPECT_TRUE(close(found[0], expected[0], 1e-12)) << i;
      EXPECT_TRUE(close(found[1], expected[1], 1e-12)) << i;
    }
  }
}

TEST_P(Products, UpstreamGradientsOfEveryLayout) {
  at::manual_seed(8);
  for (const at::ScalarType type : {at::kHalf, at::kFloat, at::kDouble, at::kComplexDouble}) {
    const RandomTriples triples(30, type);
    const Extents extents{17, 9};
    const Tensors inputs{leaf(x(5, triples.in1, extents, type)), leaf(y(5, triples.in2, extents, type)),
                         leaf(triples.scale)};
    const auto z = op().apply(inputs[0], inputs[1], triples.infos().fwd.with_scale(inputs[2]), {}, {}, accumulated());
    const auto plain = random({z.sizes().begin(), z.sizes().end()}, type);
    Tensors upstreams = in_other_layouts(plain);
    for (const auto& view : expanded(plain)) {
      upstreams.push_back(view);
    }
    for (const auto& upstream : upstreams) {
      const auto found = gradients(z, inputs, upstream);
      const auto expected = gradients(z, inputs, upstream.clone(at::MemoryFormat::Contiguous).resolve_conj());

      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(close(found[i], expected[i], gradient_tolerance(type)))
            << type << " input " << i << " strides " << upstream.strides();
      }
    }
  }
}

TEST_P(Products, TheSameBitsWithAnyNumberOfThreads) {
  at::manual_seed(9);
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    for (const bool transposed : {false, true}) {
      const RandomTriples triples(60, type);
      const Extents extents{35, 20};
      auto a = x(17, triples.in1, extents, type);
      auto b = y(17, triples.in2, extents, type);
      if (transposed) {
        a = in_other_layouts(a)[1];
        b = in_other_layouts(b)[1];
      }
      const auto infos = triples.infos();
      at::Tensor upstream;
      std::optional<Tensors> first;
      for (const int threads : {1, 2, 4}) {
        const ThreadCount count(threads);
        const Tensors inputs{a.detach().requires_grad_(), b.detach().requires_grad_(), leaf(triples.scale)};
        const auto z = op().apply(inputs[0], inputs[1], infos.fwd.with_scale(inputs[2]), {}, {}, accumulated());
        if (!upstream.defined()) {
          upstream = random({z.sizes().begin(), z.sizes().end()}, type);
        }
        Tensors found = gradients(z, inputs, upstream);
        found.push_back(z.detach());
        if (!first) {
          first = found;
        }
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i].equal((*first)[i])) << type << " " << threads << " threads, tensor " << i;
        }
      }
    }
  }
}

TEST_P(Products, EmptyEverything) {
  struct Sizes {
    std::int64_t n, terms, rows;
    Extents extents;
  };
  for (const Sizes& s : {Sizes{0, 5, 3, {4, 3}}, Sizes{2, 0, 3, {4, 3}}, Sizes{2, 5, 3, {0, 3}}, Sizes{2, 5, 3, {4, 0}},
                         Sizes{2, 0, 0, {4, 3}}, Sizes{0, 0, 0, {0, 0}}}) {
    for (const std::int64_t out : {std::int64_t{0}, std::int64_t{6}}) {
      if (out == 0 && s.terms > 0) {
        continue;
      }
      const auto index = at::zeros({s.terms}, at::kLong);
      const auto scale = leaf(at::ones({s.terms}, at::kDouble));
      const auto info = sparse_product_info(index, index, index, scale, out);
      const auto a = leaf(x(s.n, s.rows, s.extents, at::kDouble));
      const auto b = leaf(y(s.n, s.rows, s.extents, at::kDouble));

      const auto z = op().apply(a, b, info, {}, {}, accumulated());

      const bool batched = !(shared_x() && shared_y()) && !accumulated();
      EXPECT_EQ(z.sizes(), at::IntArrayRef(shape_of(op().z, batched ? s.n : -1, out, s.extents)));
      const bool full = s.terms > 0 && (s.n > 0 || (shared_x() && shared_y())) && s.extents.a > 0 && s.extents.b > 0;
      if (!full && s.extents.b > 0) {
        EXPECT_EQ(z.detach().abs().sum().item<double>(), 0);
      }
      for (const auto& gradient : gradients(z.sum(), {a, b, scale})) {
        EXPECT_TRUE(gradient.defined());
      }
      const auto found = gradients(z.sum(), {a, b, scale});
      EXPECT_EQ(found[0].sizes(), a.sizes());
      EXPECT_EQ(found[1].sizes(), b.sizes());
      EXPECT_EQ(found[2].sizes(), scale.sizes());
    }
  }
}

/// Each op by itself.
class EachProduct : public testing::TestWithParam<int> {
 protected:
  const Op& op() const { return ops()[static_cast<std::size_t>(GetParam())]; }
};

INSTANTIATE_TEST_SUITE_P(All, EachProduct, testing::Range(0, kOps), [](const auto& info) {
  return std::string(ops()[static_cast<std::size_t>(info.param)].name);
});

/// Fields without those whose bits are set: scale, index1, index2, seg_out, gather_index, index_out.
Fields fields_without(int absent) {
  constexpr std::int64_t terms = 12;
  const auto missing = [&](int bit) { return (absent & bit) != 0; };
  Fields f;
  if (!missing(1)) {
    f.scale = random({terms}, at::kDouble);
  }
  if (!missing(2)) {
    f.index1 = at::randint(0, 7, {terms}, at::kLong);
  }
  if (!missing(4)) {
    f.index2 = at::randint(0, 6, {terms}, at::kInt);
  }
  std::int64_t length = terms;
  if (!missing(16)) {
    length = 17;
    f.gather_index = at::randint(0, terms, {length}, at::kLong);
  }
  std::int64_t segments = length;
  if (!missing(8)) {
    // Where every other field is absent, T is the last of these.
    f.seg_out = index_of({1, 1, 4, 4, 9, 12});
    segments = 5;
  }
  if (!missing(32)) {
    f.index_out = at::randperm(segments + 3, at::kLong).narrow(0, 0, segments);
    f.out_size = segments + 3;
  }
  return f;
}

TEST_P(EachProduct, EveryCombinationOfAbsentFields) {
  at::manual_seed(10);
  for (int absent = 0; absent < 64; ++absent) {
    const Fields fields = fields_without(absent);
    // An absent index is the identity, so an input then has a row for each t.
    const std::int64_t rows1 = fields.index1 ? 7 : 12;
    const std::int64_t rows2 = fields.index2 ? 6 : 12;
    for (const int shared : {absent % 8, (absent + 3) % 8}) {
      const auto a = random(shape_of(op().x, (shared & 1) != 0 ? -1 : 3, rows1, {}), at::kDouble);
      const auto b = random(shape_of(op().y, (shared & 2) != 0 ? -1 : 3, rows2, {}), at::kDouble);
      const bool accumulated = (shared & 4) != 0;

      EXPECT_TRUE(all_orders_agree(op(), a, b, fields, accumulated)) << "absent " << absent << " shared " << shared;
      EXPECT_TRUE(close(op().raw(a, b, fields, accumulated), oracle(op(), a, b, fields, accumulated), 1e-13));
      const BackendScope reference(Backend::reference);
      EXPECT_TRUE(all_orders_agree(op(), a, b, fields, accumulated)) << "reference, absent " << absent;
    }
  }
}

TEST_P(EachProduct, OnlyOutSizeGiven) {
  const auto a = random(shape_of(op().x, 2, 4, {}), at::kDouble);
  const auto b = random(shape_of(op().y, 2, 4, {}), at::kDouble);
  Fields fields;
  for (const std::int64_t out : {4, 6}) {
    fields.out_size = out;
    EXPECT_TRUE(all_orders_agree(op(), a, b, fields, false)) << out;
  }
}

TEST_P(EachProduct, AnIdentityGivenBehavesAsAbsent) {
  at::manual_seed(11);
  const auto a = random(shape_of(op().x, 2, 5, {}), at::kDouble);
  const auto b = random(shape_of(op().y, 2, 5, {}), at::kDouble);
  const auto identity = at::arange(5, at::kLong);
  Fields given;
  given.index1 = given.index2 = given.gather_index = given.index_out = identity;
  given.seg_out = at::arange(6, at::kLong);
  given.scale = at::ones({5}, at::kDouble);
  given.out_size = 5;

  const auto expected = op().apply(a, b, SparseProductInfo(), {}, {}, false);

  EXPECT_TRUE(op().apply(a, b, SparseProductInfo(given), {}, {}, false).equal(expected));
  EXPECT_TRUE(op().apply(a, b, sparse_product_info(identity, identity, identity), {}, {}, false).equal(expected));
  EXPECT_TRUE(all_orders_agree(op(), a, b, given, false));
}

TEST_P(EachProduct, ThirdDerivatives) {
  at::manual_seed(12);
  const RandomTriples triples(15, at::kDouble);
  const auto a = random(shape_of(op().x, 3, triples.in1, {}), at::kDouble);
  const auto b = random(shape_of(op().y, 3, triples.in2, {}), at::kDouble);
  const auto third = [&](bool ours) {
    at::manual_seed(13);
    Fields fields = triples.fields();
    const Tensors inputs{leaf(a), leaf(b), leaf(triples.scale)};
    fields.scale = inputs[2];
    const auto z = ours ? op().apply(inputs[0], inputs[1], SparseProductInfo(fields), {}, {}, false)
                        : oracle(op(), inputs[0], inputs[1], fields, false);
    // A function of z that is not linear, so that every derivative has all of its terms.
    at::Tensor value = z.pow(3).sum();
    Tensors derivatives;
    for (int order = 0; order < 3; ++order) {
      derivatives = gradients(value, inputs, {}, /*create_graph=*/true);
      Tensors weights;
      for (const auto& input : inputs) {
        weights.push_back(at::randn_like(input));
      }
      value = weighted_sum(derivatives, weights);
    }
    return derivatives;
  };

  const Tensors found = third(true);
  const Tensors expected = third(false);

  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(close(found[i], expected[i], 1e-11)) << i;
  }
}

TEST(ProductsOfOneTensor, WithItself) {
  at::manual_seed(14);
  const auto index = at::randint(0, 6, {20}, at::kLong);
  const auto info = sparse_product_info(index, index.flip(0), at::randint(0, 4, {20}, at::kLong), {}, 4);
  for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
    const Op& op = ops()[i];
    const auto u = leaf(random(shape_of(op.x, 3, 6, {}), at::kDouble));
    const auto v = leaf(u);

    const auto found = gradients(op.apply(u, u, info, {}, {}, false).pow(2).sum(), {u})[0];
    const auto expected = gradients(oracle(op, v, v, info.fields(), false).pow(2).sum(), {v})[0];

    EXPECT_TRUE(close(found, expected, 1e-12)) << op.name;
  }
}

TEST_P(EachProduct, MoreThan65535Segments) {
  at::manual_seed(15);
  const std::int64_t rows = 70'001;
  Fields fields;
  fields.index1 = at::randint(0, 3, {rows}, at::kLong);
  const auto a = random(shape_of(op().x, 1, 3, {2, 1}), at::kDouble);
  const auto b = random(shape_of(op().y, 1, rows, {2, 1}), at::kDouble);

  EXPECT_TRUE(all_orders_agree(op(), a, b, fields, false));
}

TEST_P(EachProduct, BatchStridesBeyond32Bits) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "4 GiB of untouched memory are not untouched under a sanitizer";
#endif
  // Three entries of the batch lie 2^30 + 64 halves apart; only the pages that hold them are touched.
  const std::int64_t apart = (std::int64_t{1} << 30) + 64;
  const auto shape = shape_of(op().x, 3, 2, {8, 4});
  at::Tensor memory;
  try {
    memory = at::empty({2 * apart + 1024}, at::kHalf);
  } catch (const c10::Error&) {
    GTEST_SKIP() << "4 GiB of address space are not to be had";
  }
  auto strides = at::empty(shape, at::kHalf).strides().vec();
  strides[0] = apart;
  const auto a = memory.as_strided(shape, strides);
  a.copy_(random(shape, at::kHalf));
  const auto b = random(shape_of(op().y, 3, 2, {8, 4}), at::kHalf);

  const auto z = op().apply(a, b, SparseProductInfo(), {}, {}, false);

  EXPECT_TRUE(z.equal(op().apply(a.contiguous(), b, SparseProductInfo(), {}, {}, false)));
}

TEST(ProductsInfo, ScaleInTheUsersOrderGetsItsGradientThere) {
  // Sorting by output exchanges the two terms.
  const auto scale = leaf(numbers({10, 1}, {2}));
  const auto infos = sparse_product_infos(index_of({0, 1}), index_of({0, 1}), index_of({1, 0}), scale, 2, 2, 2);
  const auto x = numbers({3, 5}, {1, 2, 1});

  const auto z = sparse_mul(x, at::ones_like(x), infos.fwd, infos.bwd1, infos.bwd2);
  z.backward(numbers({1, 2}, {1, 2, 1}));

  EXPECT_TRUE(z.detach().equal(numbers({5, 30}, {1, 2, 1})));
  EXPECT_TRUE(scale.grad().equal(numbers({6, 5}, {2})));
}

TEST(ProductsInfo, RepeatedEntriesOfScaleAddTheirGradients) {
  Fields fields;
  fields.scale = leaf(numbers({2, 7, 3}, {3}));
  fields.gather_index = index_of({0, 2, 0, 0});
  fields.seg_out = index_of({0, 1, 4});
  const auto x = numbers({1, 10, 100}, {1, 3, 1});

  const auto z = sparse_mul(x, at::ones_like(x), SparseProductInfo(fields));
  z.backward(numbers({1, 2}, {1, 2, 1}));

  EXPECT_TRUE(z.detach().equal(numbers({2, 304}, {1, 2, 1})));
  EXPECT_TRUE(fields.scale->grad().equal(numbers({5, 0, 200}, {3})));
}

TEST(ProductsInfo, WithScaleExchangesTheScaleOnly) {
  const auto info = by_hand().with_scale(numbers({2, 4, -2}, {3}));

  EXPECT_TRUE(sparse_mul(vectors_x, vectors_y, info).equal(numbers({10, 24, -14, 0, 0, 0}, {1, 3, 2})));
  EXPECT_TRUE(
      sparse_mul(vectors_x, vectors_y, by_hand().with_scale({})).equal(numbers({5, 12, 28, 48, 0, 0}, {1, 3, 2})));
}

TEST(ProductsInfo, IndicesAreCopied) {
  const auto index = index_of({0, 1});
  Fields fields;
  fields.index1 = index;
  const SparseProductInfo info(fields);
  const auto sorted = sparse_product_info(index, index.flip(0), index);
  const auto x = numbers({1, 2}, {1, 2, 1});

  index.fill_(99);

  EXPECT_TRUE(sparse_mul(x, at::ones_like(x), info).equal(x));
  EXPECT_TRUE(sparse_mul(x, x, sorted).equal(numbers({2, 2}, {1, 2, 1})));
  EXPECT_EQ(list_of(info.fields().index1), (std::vector<std::int64_t>{0, 1}));
}

TEST(ProductsInfo, GradientsAtInputsLargerThanTheInfoNeeds) {
  at::manual_seed(16);
  Fields fields;
  fields.index1 = index_of({0, 2, 1});
  fields.index2 = index_of({1, 1, 0});
  for (const Op& op : ops()) {
    // The same info at two sizes: each has gradients of its own.
    const SparseProductInfo info(fields);
    for (const std::int64_t rows : {4, 9}) {
      const auto x = leaf(random(shape_of(op.x, 2, rows, {}), at::kDouble));
      const auto y = leaf(random(shape_of(op.y, 2, rows + 1, {}), at::kDouble));
      const auto found = gradients(op.apply(x, y, info, {}, {}, false).sum(), {x, y});
      const auto expected = gradients(oracle(op, x, y, fields, false).sum(), {x, y});

      EXPECT_TRUE(close(found[0], expected[0], 1e-13)) << op.name;
      EXPECT_TRUE(close(found[1], expected[1], 1e-13)) << op.name;
    }
  }
}

}  // namespace
}  // namespace lacewing::test
