// Sparse scale through the C++ API: values and derivatives against the dense matrix, and the sentence of every error.
#include <c10/core/GradMode.h>

#include "support.h"

namespace lacewing::test {
namespace {

at::Tensor dense_scale(const at::Tensor& input, const at::Tensor& matrix) {
  const auto type = input.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::matmul(matrix.to(type), input.to(type));
}

struct ScaleCase {
  at::Tensor out, in, scale;
  std::int64_t rows = 7, columns = 9;

  explicit ScaleCase(at::ScalarType type)
      : out(at::randint(1, 6, {25}, at::kLong)), in(at::randint(0, 9, {25}, at::kLong)), scale(random({25}, type)) {}
  SparseScaleInfos infos(const at::Tensor& s) const { return sparse_scale_infos(out, in, s, rows, columns); }
  at::Tensor dense(const at::Tensor& s) const {
    const auto type = s.is_complex() ? at::kComplexDouble : at::kDouble;
    return at::zeros({rows * columns}, type).index_add(0, out * columns + in, s.to(type)).view({rows, columns});
  }
};

TEST(SparseScale, ByHand) {
  const auto infos = sparse_scale_infos(index_of({0, 1, 1}), index_of({0, 0, 1}), numbers({1, 2, -1}, {3}), 3, 2);
  const auto input = leaf(numbers({1, 2, 3, 4}, {2, 2}));

  const auto z = sparse_scale(input, infos.fwd, infos.bwd);
  z.backward(numbers({1, 1, 1, -1, 5, 5}, {3, 2}));

  EXPECT_TRUE(z.detach().equal(numbers({1, 2, -1, 0, 0, 0}, {3, 2})));
  EXPECT_TRUE(input.grad().equal(numbers({3, -1, -1, 1}, {2, 2})));
}

TEST(SparseScale, TheSecondInfoIsTheTranspose) {
  at::manual_seed(20);
  const ScaleCase c(at::kDouble);
  const auto infos = c.infos(c.scale);

  EXPECT_TRUE(close(sparse_scale(at::eye(9, at::kDouble), infos.fwd), c.dense(c.scale), 1e-14));
  EXPECT_TRUE(close(sparse_scale(at::eye(7, at::kDouble), infos.bwd), c.dense(c.scale).t(), 1e-14));
}

TEST(SparseScale, LeadingDimsDtypesAndWidths) {
  at::manual_seed(21);
  for (const at::ScalarType type : kDtypes) {
    const ScaleCase c(type);
    for (const std::vector<std::int64_t>& lead :
         {std::vector<std::int64_t>{}, {1}, {4}, {2, 3}, {2, 1, 2}, {0}, {2, 0}}) {
      for (const std::int64_t width : {1, 3, 16, 17, 64, 67}) {
        auto shape = lead;
        shape.insert(shape.end(), {c.columns, width});
        const auto input = random(shape, type);
        const auto expected = dense_scale(input, c.dense(c.scale));

        EXPECT_TRUE(close(sparse_scale(input, c.infos(c.scale).fwd), expected, tolerance_of(type))) << type;
        const BackendScope reference(Backend::reference);
        EXPECT_TRUE(close(sparse_scale(input, c.infos(c.scale).fwd), expected, tolerance_of(type))) << type;
      }
    }
  }
}

TEST(SparseScale, DerivativesOfTwoOrders) {
  at::manual_seed(22);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    const ScaleCase c(type);
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{9, 5}, {3, 9, 17}, {2, 2, 9, 3}}) {
      for (const bool given : {false, true}) {
        const auto value = random(shape, type);
        const auto wide = c10::isComplexType(type) ? at::kComplexDouble : at::kDouble;
        const Tensors mine{leaf(value), leaf(c.scale)};
        const Tensors theirs{leaf(value.to(wide)), leaf(c.scale.to(wide))};
        const auto infos = c.infos(mine[1]);
        const auto z = given ? sparse_scale(mine[0], infos.fwd, infos.bwd) : sparse_scale(mine[0], infos.fwd);
        const auto expected = dense_scale(theirs[0], c.dense(theirs[1]));
        const auto upstream = random({z.sizes().begin(), z.sizes().end()}, type);
        const Tensors weights{random(shape, type), random({25}, type)};
        const Tensors wide_weights{weights[0].to(wide), weights[1].to(wide)};

        const auto first = gradients(z, mine, upstream, true);
        const auto first_expected = gradients(expected, theirs, upstream.to(wide), true);
        const auto second = gradients(weighted_sum(first, weights), mine);
        const auto second_expected = gradients(weighted_sum(first_expected, wide_weights), theirs);

        EXPECT_TRUE(close(z, expected, tolerance_of(type)));
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_TRUE(close(first[i], first_expected[i], gradient_tolerance(type))) << type << " given " << given;
          EXPECT_TRUE(close(second[i], second_expected[i], gradient_tolerance(type))) << type << " given " << given;
        }
      }
    }
  }
}

TEST(SparseScale, AbsentFields) {
  at::manual_seed(23);
  const auto input = random({2, 4, 3}, at::kDouble);
  SparseScaleInfo::Fields none;
  EXPECT_TRUE(sparse_scale(input, SparseScaleInfo(none)).equal(input));

  SparseScaleInfo::Fields scaled;
  scaled.scale = numbers({1, 2, 3, 4}, {4});
  EXPECT_TRUE(sparse_scale(input, SparseScaleInfo(scaled)).equal(input * scaled.scale->view({1, 4, 1})));

  SparseScaleInfo::Fields gathered;
  gathered.index = index_of({3, 0, 0});
  EXPECT_TRUE(sparse_scale(input, SparseScaleInfo(gathered)).equal(input.index_select(1, *gathered.index)));

  SparseScaleInfo::Fields summed;
  summed.seg_out = index_of({0, 1, 1, 4});
  const auto expected =
      at::stack({input.select(1, 0), at::zeros({2, 3}, at::kDouble), input.narrow(1, 1, 3).sum(1)}, 1);
  EXPECT_TRUE(close(sparse_scale(input, SparseScaleInfo(summed)), expected, 1e-15));
  const auto variable = leaf(input);
  sparse_scale(variable, SparseScaleInfo(summed)).sum().backward();
  EXPECT_TRUE(variable.grad().equal(at::ones_like(input)));
}

TEST(SparseScale, EmptyEverything) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{0, 9, 5}, {3, 9, 0}, {9, 0}, {2, 3, 9, 0}, {2, 0, 9, 5}}) {
    const ScaleCase c(at::kDouble);
    const auto input = leaf(random(shape, at::kDouble));
    auto expected = shape;
    expected[expected.size() - 2] = c.rows;

    const auto z = sparse_scale(input, c.infos(c.scale).fwd);
    z.sum().backward();

    EXPECT_EQ(z.sizes(), at::IntArrayRef(expected));
    EXPECT_EQ(input.grad().sizes(), input.sizes());
  }
  const auto none = at::zeros({0}, at::kLong);
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0, 5}, {2, 0, 5}, {2, 2, 0, 5}}) {
    const auto z = sparse_scale(at::zeros(shape, at::kDouble), sparse_scale_infos(none, none, {}, 4, 0).fwd);
    EXPECT_EQ(z.size(-2), 4);
    EXPECT_EQ(z.abs().sum().item<double>(), 0);
  }
}

TEST(SparseScale, LayoutsOfInputAndUpstream) {
  at::manual_seed(24);
  for (const at::ScalarType type : {at::kHalf, at::kFloat, at::kComplexDouble}) {
    const ScaleCase c(type);
    const auto plain = random({3, 9, 17}, type);
    const auto infos = c.infos(c.scale);
    for (const auto& input : in_other_layouts(plain)) {
      EXPECT_TRUE(close(sparse_scale(input, infos.fwd), dense_scale(plain, c.dense(c.scale)), tolerance_of(type)));
    }
    for (const auto& input : expanded(plain)) {
      EXPECT_TRUE(close(sparse_scale(input, infos.fwd), dense_scale(input, c.dense(c.scale)), tolerance_of(type)));
    }
    const Tensors inputs{leaf(plain), leaf(c.scale)};
    const auto z = sparse_scale(inputs[0], infos.fwd.with_scale(inputs[1]));
    for (const auto& upstream : expanded(random({3, 7, 17}, type))) {
      const auto found = gradients(z, inputs, upstream);
      const auto expected = gradients(z, inputs, upstream.contiguous());
      EXPECT_TRUE(close(found[0], expected[0], gradient_tolerance(type)));
      EXPECT_TRUE(close(found[1], expected[1], gradient_tolerance(type)));
    }
  }
}

TEST(SparseScale, TheRawFormGivesTheSame) {
  at::manual_seed(25);
  SparseScaleInfo::Fields fields;
  fields.scale = random({5}, at::kDouble);
  fields.index = index_of({0, 2, 1, 1, 0});
  fields.seg_out = index_of({0, 2, 2, 5});
  fields.out_size = 3;
  const auto input = random({2, 3, 4}, at::kDouble);

  EXPECT_TRUE(indexed_scale_segment(input, fields).equal(sparse_scale(input, SparseScaleInfo(fields))));
}

TEST(SparseScale, TheSameBitsWithAnyNumberOfThreads) {
  at::manual_seed(26);
  const ScaleCase c(at::kFloat);
  const auto input = random({200, 9, 67}, at::kFloat);
  std::optional<at::Tensor> first;
  for (const int threads : {1, 2, 4}) {
    const ThreadCount count(threads);
    const auto z = sparse_scale(input, c.infos(c.scale).fwd);
    first = first.value_or(z);
    EXPECT_TRUE(z.equal(*first));
  }
}

TEST(ScaleErrors, InputsAndInfo) {
  const auto infos = sparse_scale_infos(index_of({0, 1}), index_of({2, 0}), {}, 2, 3);
  const auto error = [&](const at::Tensor& input, const SparseScaleInfo& info) {
    return message_of([&] { sparse_scale(input, info); });
  };

  EXPECT_EQ(error(at::ones({3}), infos.fwd), "[lacewing.sparse_scale] input must have shape (..., M, C), not (3,)");
  EXPECT_EQ(error(at::ones({4, 2, 5}), infos.fwd),
            "[lacewing.sparse_scale] index[0] = 2 is out of range for input of shape (4, 2, 5): dim 1 has 2 entries");
  EXPECT_EQ(
      error(at::ones({3, 5}, at::kLong), infos.fwd),
      "[lacewing.sparse_scale] input must have dtype float16, bfloat16, float32, float64, complex64 or complex128, "
      "not int64");
  EXPECT_EQ(error(at::ones({3, 5}), infos.fwd.with_scale(at::ones({3}))),
            "[lacewing.sparse_scale] scale must have shape (2,), one entry for each term, not (3,)");
  EXPECT_EQ(error(at::ones({3, 5}), infos.fwd.with_scale(at::ones({2}, at::kComplexFloat))),
            "[lacewing.sparse_scale] scale is complex but the input is real: its imaginary part would be lost");
  EXPECT_EQ(error(at::ones({3, 5}), infos.fwd.with_scale(at::ones({2}, at::device(at::kMeta)))),
            "[lacewing.sparse_scale] scale is on meta but input is on cpu");
}

TEST(ScaleErrors, FieldsAreNamedAsTheyAreGiven) {
  SparseScaleInfo::Fields f;
  f.index = index_of({0, -1});
  EXPECT_EQ(message_of([&] { SparseScaleInfo info(f); }), "[lacewing.SparseScaleInfo] index[1] = -1 is negative");
}

TEST(ScaleErrors, FewerSegmentsThanRows) {
  SparseScaleInfo::Fields f;
  f.index = index_of({0, 1});
  f.seg_out = index_of({0, 2});
  f.out_size = 3;

  const std::string message = message_of([&] { indexed_scale_segment(at::ones({2, 2, 2}), f); });

  EXPECT_NE(message.find("out_size is 3"), std::string::npos) << message;
  EXPECT_EQ(message.rfind("[lacewing.", 0), 0u) << message;
}

TEST(ScaleErrors, TheRawFormRefusesGradients) {
  SparseScaleInfo::Fields f;
  f.scale = at::ones({2});
  const std::string sentence = " requires grad, but this op has no gradient: use sparse_scale, or detach it";
  const std::string prefix = "[lacewing.indexed_scale_segment] ";

  EXPECT_EQ(message_of([&] { indexed_scale_segment(leaf(at::ones({2, 2})), f); }), prefix + "input" + sentence);
  {
    const c10::NoGradGuard no_gradient_is_asked_for;
    EXPECT_EQ(indexed_scale_segment(leaf(at::ones({2, 2})), f).sum().item<double>(), 4);
  }
  f.scale = leaf(*f.scale);
  EXPECT_EQ(message_of([&] { indexed_scale_segment(at::ones({2, 2}), f); }), prefix + "scale" + sentence);
}

TEST(ScaleErrors, TheRawFormWritesOut) {
  SparseScaleInfo::Fields f;
  f.index = index_of({1, 0});
  const at::Tensor input = at::arange(4, at::kDouble).view({2, 2});
  at::Tensor out = at::full({2, 2}, 7.0, at::kDouble);
  const auto version = out._version();

  EXPECT_EQ(&indexed_scale_segment_out(out, input, f), &out);

  EXPECT_TRUE(out.equal(input.flip(0)));
  EXPECT_GT(out._version(), version);
  at::Tensor part = input.narrow(0, 0, 2);
  EXPECT_EQ(message_of([&] { indexed_scale_segment_out(part, input, f); }),
            "[lacewing.indexed_scale_segment] out must not share memory with the input");
  at::Tensor other = at::empty({3, 2}, at::kDouble);
  EXPECT_EQ(
      message_of([&] { indexed_scale_segment_out(other, input, f); }),
      "[lacewing.indexed_scale_segment] out must have shape (2, 2), dtype float64 and be on cpu, not (3, 2), float64 "
      "and cpu");
}

TEST(ScaleErrors, UndefinedTensors) {
  const auto infos = sparse_scale_infos(index_of({0, 1}), index_of({2, 0}), {}, 2, 3);
  at::Tensor none;
  EXPECT_EQ(message_of([&] { sparse_scale(none, infos.fwd); }), "[lacewing.sparse_scale] input is an undefined tensor");
  EXPECT_EQ(message_of([&] { indexed_scale_segment_out(none, at::ones({3, 2}), infos.fwd.fields()); }),
            "[lacewing.indexed_scale_segment] out is an undefined tensor");
  for (const Op& op : ops()) {
    EXPECT_EQ(message_of([&] { op.apply(none, at::ones({3, 2}), SparseProductInfo(), {}, {}, false); }),
              std::string("[lacewing.") + op.name + "] input1 is an undefined tensor");
    EXPECT_EQ(message_of([&] { op.raw(at::ones({3, 2}), none, {}, false); }),
              std::string("[lacewing.") + op.raw_name + "] input2 is an undefined tensor");
  }
}

TEST(ScaleErrors, BackwardInfosOfOtherTermsOrSizes) {
  const auto infos = sparse_scale_infos(index_of({0, 1}), index_of({2, 0}), {}, 2, 3);
  const auto other = sparse_scale_infos(index_of({0, 1}), index_of({2, 1}), {}, 2, 3);
  const auto larger = sparse_scale_infos(index_of({0, 1}), index_of({2, 0}), {}, 2, 4);
  const auto error = [&](const SparseScaleInfo& bwd) {
    return message_of([&] { sparse_scale(leaf(at::ones({3, 5})), infos.fwd, bwd); });
  };

  EXPECT_EQ(
      error(other.bwd),
      "[lacewing.sparse_scale] info_bwd does not hold the same terms as info_fwd, in the roles of this gradient: build "
      "the infos together, or leave it out");
  EXPECT_EQ(
      error(larger.bwd),
      "[lacewing.sparse_scale] info_bwd gives a gradient of 4 rows for an input of 3 rows: build it with the input's "
      "size");
}

}  // namespace
}  // namespace lacewing::test
