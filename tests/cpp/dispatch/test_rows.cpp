// gather_rows and scatter_add_rows for callers without Python, gradients included.
#include <string>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <gtest/gtest.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/rows.h>
#include <lacewing/dispatch/torch.h>

namespace lacewing {
namespace {

at::Tensor matrix(std::initializer_list<double> values, std::int64_t rows) {
  return at::tensor(values, at::kDouble).reshape({rows, -1});
}

at::Tensor index_of(std::initializer_list<std::int64_t> values) { return at::tensor(values, at::kLong); }

at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, bool create_graph = false) {
  return torch::autograd::grad({output}, {input}, {}, std::nullopt, create_graph)[0];
}

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(Rows, GatherByHand) {
  const auto out = gather_rows(matrix({1, 2, 3, 4, 5, 6}, 3), index_of({2, 0, 2}));

  EXPECT_TRUE(out.equal(matrix({5, 6, 1, 2, 5, 6}, 3)));
}

TEST(Rows, ScatterAddByHandInEveryMode) {
  const auto src = matrix({1, 2, 3, 4, 5, 6}, 3);

  EXPECT_TRUE(scatter_add_rows(src, index_of({1, 3, 1}), 4).equal(matrix({0, 0, 6, 8, 0, 0, 3, 4}, 4)));
  EXPECT_TRUE(scatter_add_rows(src, index_of({1, 3, 1}), 4, "atomic").equal(matrix({0, 0, 6, 8, 0, 0, 3, 4}, 4)));
  EXPECT_TRUE(scatter_add_rows(src, index_of({1, 3, 0}), 4, "distinct").equal(matrix({5, 6, 1, 2, 0, 0, 3, 4}, 4)));
}

TEST(Rows, TheReferenceBackendGivesTheSame) {
  const auto src = at::randint(-8, 8, {500, 37}, at::kFloat);
  const auto index = at::randint(0, 500, {900}, at::kInt);
  const auto gathered = gather_rows(src, index);
  const auto summed = scatter_add_rows(gathered, index, 500);

  const BackendScope reference(Backend::reference);

  EXPECT_TRUE(gather_rows(src, index).equal(gathered));
  EXPECT_TRUE(scatter_add_rows(gathered, index, 500).equal(summed));
}

TEST(Rows, GradientsWithoutPython) {
  const auto src = matrix({1, 2, 3}, 3).requires_grad_();
  const auto index = index_of({2, 0, 2});

  // The sum of squares of (3, 1, 3): x[2] counts twice.
  const auto loss = gather_rows(src, index).pow(2).sum();
  const auto first = gradient(loss, src, /*create_graph=*/true);
  const auto second = gradient(first.sum(), src);

  EXPECT_TRUE(first.equal(matrix({2, 0, 12}, 3)));
  EXPECT_TRUE(second.equal(matrix({2, 0, 4}, 3)));
}

TEST(Rows, AFrozenSourceGetsNoNode) {
  const auto out = gather_rows(matrix({1, 2, 3}, 3), index_of({0}));

  EXPECT_FALSE(out.requires_grad());
}

TEST(Rows, AnIndexChangedAfterwardsIsAnErrorAndNotAWrongGradient) {
  const auto src = matrix({1, 2, 3}, 3).requires_grad_();
  const auto index = index_of({2, 0, 2});
  const auto loss = gather_rows(src, index).sum();

  index.fill_(1);

  EXPECT_THROW(gradient(loss, src), c10::Error);
}

TEST(Rows, ErrorsAreSentences) {
  const auto src = at::ones({8, 9});

  EXPECT_EQ(message_of([&] { gather_rows(src, index_of({0, 42})); }),
            "[lacewing.gather_rows] index[1] = 42 is out of range for src of shape (8, 9): dim 0 has 8 entries");
  EXPECT_EQ(message_of([&] { scatter_add_rows(src, at::zeros({8}, at::kLong), 1, "distinct"); }),
            "[lacewing.scatter_add_rows] index[1] = 0 repeats index[0]: mode \"distinct\" needs distinct indices");
}

TEST(TorchViews, KeepStrides) {
  const auto pairs = at::tensor({0, 10, 1, 11, 2, 12}, at::kInt).reshape({3, 2});

  const auto view = dispatch::const_vector<Device::cpu, ScalarType::i32>("demo", "pairs", pairs.select(1, 1));

  EXPECT_EQ(view.stride, 2);
  EXPECT_EQ(view[2], 12);
}

TEST(TorchViews, TransposedMatricesAreNotCopied) {
  const auto matrix = at::arange(6, at::kDouble).reshape({2, 3});

  const auto view = dispatch::mutable_matrix<Device::cpu, ScalarType::f64>("demo", "matrix", matrix.t());
  view(2, 1) = 50;

  EXPECT_EQ(view.rows, 3);
  EXPECT_EQ((matrix[1][2].item<double>()), 50);
}

TEST(TorchViews, CheckRankDtypeAndDevice) {
  using dispatch::const_matrix;

  EXPECT_EQ(message_of([] { const_matrix<Device::cpu, ScalarType::f32>("demo", "x", at::ones({2})); }),
            "[lacewing.demo] x must have 2 dimensions, not shape (2,)");
  EXPECT_EQ(message_of([] { const_matrix<Device::cpu, ScalarType::f64>("demo", "x", at::ones({2, 2})); }),
            "[lacewing.demo] x must have dtype float64, not float32");
  EXPECT_EQ(message_of([] { const_matrix<Device::cuda, ScalarType::f32>("demo", "x", at::ones({2, 2})); }),
            "[lacewing.demo] x must be on cuda, not on cpu");
  EXPECT_EQ(message_of([] { const_matrix<Device::cpu, ScalarType::f32>("demo", "x", at::ones({2, 2}, at::kMeta)); }),
            "[lacewing.demo] x is on meta: expected cpu or cuda");
}

TEST(TorchViews, RefuseWhatTheMemoryDoesNotHold) {
  using dispatch::const_matrix;
  const at::Tensor x = at::ones({2, 2}, at::kComplexFloat);
  const std::string sentence =
      "[lacewing.demo] x is a conjugated or negated view, whose memory holds other values: "
      "resolve_conj().resolve_neg() first";

  EXPECT_EQ(message_of([&] { const_matrix<Device::cpu, ScalarType::c64>("demo", "x", x.conj()); }), sentence);
  EXPECT_EQ(message_of([&] { const_matrix<Device::cpu, ScalarType::f32>("demo", "x", at::imag(x.conj())); }), sentence);
  EXPECT_EQ(message_of([] { const_matrix<Device::cpu, ScalarType::f32>("demo", "x", at::ones({2, 2}).to_sparse()); }),
            "[lacewing.demo] x must be a dense tensor, not one of layout Sparse");
}

}  // namespace
}  // namespace lacewing
