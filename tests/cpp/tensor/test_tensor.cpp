// Sparse tensors from C++: they go where tensors go, with gradients.
#include <sstream>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <lacewing/tensor.h>

namespace lacewing {
namespace {

struct Example {
  at::Tensor indices = torch::tensor({{0, 1, 2, 3}, {1, 0, 4, 2}}, torch::kLong);
  at::Tensor values = torch::tensor({0.5, -1.0, 2.0, 3.0}, torch::kDouble).requires_grad_();
  at::Tensor fill = torch::zeros({}, torch::kDouble);
  at::Tensor sparse = lacewing::sparse_coo_tensor(indices, values, at::IntArrayRef({4, 5}), Fill::of(fill));
};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(SparseTensor, PointwiseOpsKeepTheFormat) {
  const Example e;

  const at::Tensor result = torch::cos(e.sparse);

  EXPECT_TRUE(is_sparse_tensor(result));
  EXPECT_EQ(nse(result), 4);
  EXPECT_TRUE(torch::equal(lacewing::to_dense(result), torch::cos(lacewing::to_dense(e.sparse))));
}

TEST(SparseTensor, ModulesAndProductsTakeItWithGradients) {
  const Example e;
  torch::nn::Linear linear(5, 3);
  linear->to(torch::kDouble);
  const at::Tensor x = torch::randn({5, 3}, torch::kDouble).requires_grad_();
  const auto loss = [&](const at::Tensor& s) { return (torch::nn::functional::gelu(s).mm(x) + linear(s)).sin().sum(); };

  const auto found = torch::autograd::grad({loss(e.sparse)}, {e.values, x, linear->weight});
  const auto wanted = torch::autograd::grad({loss(lacewing::to_dense(e.sparse))}, {e.values, x, linear->weight});

  for (std::size_t k = 0; k < found.size(); ++k) {
    EXPECT_TRUE(torch::allclose(found[k], wanted[k])) << k;
  }
}

TEST(SparseTensor, RequiresGradIsSetAndUnsetForTheComponents) {
  const Example e;

  ASSERT_TRUE(e.sparse.requires_grad());
  e.sparse.set_requires_grad(false);

  EXPECT_FALSE(e.sparse.requires_grad());
  EXPECT_FALSE(e.values.requires_grad());
  e.sparse.requires_grad_();
  EXPECT_TRUE(e.sparse.requires_grad());
  EXPECT_TRUE(e.values.requires_grad());
}

TEST(SparseTensor, WritesThroughIndicesThatAreCopiesAreRefused) {
  const Example e;
  const at::Tensor before = lacewing::to_dense(e.sparse);

  const std::string message = message_of([&] {
    e.sparse[0][1] = 5.0;
    e.sparse.sum();
  });

  EXPECT_NE(message.find("the strided result of aten::select was written to in place"), std::string::npos) << message;
  EXPECT_TRUE(torch::equal(lacewing::to_dense(e.sparse), before));
}

TEST(SparseTensor, InPlaceOpsReplaceItsComponents) {
  const Example e;
  const at::Tensor s = e.sparse.clone();
  const at::Tensor before = lacewing::to_dense(s);

  s.add_(1);

  EXPECT_TRUE(torch::equal(lacewing::to_dense(s), before + 1));
}

TEST(SparseTensor, InPlaceOpsOnListsReachEveryTensor) {
  const Example e;
  const at::Tensor s = e.sparse.clone();
  const at::Tensor d = torch::ones({2}, torch::kDouble);
  const at::Tensor before = lacewing::to_dense(s);

  at::_foreach_mul_({d, s}, 5);

  EXPECT_TRUE(torch::equal(lacewing::to_dense(s), before * 5));
  EXPECT_TRUE(torch::equal(d, torch::full({2}, 5, torch::kDouble)));
}

TEST(SparseTensor, InPlaceOpsOnLeavesAreRefusedButWithoutGradMode) {
  const at::Tensor entries = torch::ones({1}).requires_grad_();
  const at::Tensor s = lacewing::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), entries, at::IntArrayRef({3}));

  const std::string message = message_of([&] { s.mul_(2); });
  {
    const torch::NoGradGuard no_grad;
    s.mul_(2);
  }

  EXPECT_NE(message.find("a leaf Variable that requires grad"), std::string::npos) << message;
  EXPECT_EQ(entries.item<float>(), 2);
  EXPECT_TRUE(values(s).is_same(entries));
}

TEST(SparseTensor, InPlaceOpsThatCannotStaySparseAreRefused) {
  const Example e;

  const at::Tensor s = e.sparse.clone();

  const std::string message = message_of([&] { s.add_(torch::randn({4, 5}, torch::kDouble)); });

  EXPECT_NE(message.find("[lacewing.SparseTensor] aten::add_ in place"), std::string::npos) << message;
}

TEST(SparseTensor, InPlaceOpsOnViewsAreRefused) {
  const Example e;

  const std::string message = message_of([&] { e.sparse.select(0, 1).fill_(1); });

  EXPECT_NE(message.find("in place on a view of a sparse tensor"), std::string::npos) << message;
}

TEST(SparseTensor, RequiresGradIsThatOfTheValues) {
  const at::Tensor entries = torch::ones({1});
  const at::Tensor s = lacewing::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), entries, at::IntArrayRef({3}));
  EXPECT_FALSE(s.requires_grad());

  s.requires_grad_();

  EXPECT_TRUE(s.requires_grad());
  EXPECT_TRUE(values(s).requires_grad());
  EXPECT_TRUE(entries.requires_grad());
}

TEST(SparseTensor, DensifyingObeysThePolicy) {
  const Example e;
  const DensifyScope scope(DensifyPolicy::raise(8));

  const std::string message = message_of([&] { e.sparse.cumsum(0); });

  EXPECT_EQ(message,
            "[lacewing.densify] aten::cumsum has no sparse form here and makes a strided tensor of shape (4, 5), 160 "
            "bytes, above the limit of 8 bytes: raise it by lacewing.densify_policy(...) or LACEWING_DENSIFY, or call "
            "to_dense() on purpose");
}

TEST(SparseTensor, AFillOfNoKindIsRefused) {
  const auto index = torch::zeros({1, 1}, torch::kLong);
  const auto sentence = "a fill is a number, undefined, or an array of numbers";

  for (const auto kind : {FillKind::array, static_cast<FillKind>(7)}) {
    const auto make = [&] { return lacewing::sparse_coo_tensor(index, torch::ones({1}), {}, Fill{kind, {}}); };
    EXPECT_NE(message_of(make).find(sentence), std::string::npos);
  }
}

TEST(SparseTensor, AFillOfAnotherTypeIsATypeError) {
  const auto index = torch::zeros({1, 1}, torch::kLong);

  EXPECT_THROW(lacewing::sparse_coo_tensor(index, torch::ones({1, 2}), {}, Fill::of(torch::ones({2}, torch::kDouble))),
               FillError);
  EXPECT_THROW(lacewing::sparse_coo_tensor(index, torch::ones({1}, torch::kLong), {}, Fill::of(at::Scalar(1.5))),
               FillError);
}

TEST(SparseTensor, BadIndicesAreNamed) {
  const auto index = torch::tensor({{0, 7}, {1, -2}}, torch::kLong);
  const std::vector<std::int64_t> shape{8, 9};

  const std::string message = message_of([&] { return lacewing::sparse_coo_tensor(index, torch::ones({2}), shape); });

  EXPECT_EQ(message,
            "[lacewing.sparse_coo_tensor] indices[1, 1] = -2 is out of range for size (8, 9): dim 1 has 9 entries");
}

TEST(SparseTensor, GradientsOfASumFormNoTensorOfTheShape) {
  const auto values = torch::ones({2}, torch::kDouble).requires_grad_();
  const auto index = torch::tensor({{0, 999999}, {5, 7}, {1, 2}}, torch::kLong);
  const DensifyScope scope(DensifyPolicy::raise(1 << 24));

  const at::Tensor s = lacewing::sparse_coo_tensor(index, values, at::IntArrayRef({1000000, 1000000, 1000}));
  s.sum().backward();

  EXPECT_TRUE(torch::equal(values.grad(), torch::ones({2}, torch::kDouble)));
}

/// Twice the input, by a function of the user's.
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return lacewing::to_dense(x) * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 2};
  }
};

TEST(SparseTensor, AFunctionOfTheUsersDoesNotLoseItsGradient) {
  const Example e;
  const at::Tensor out = Doubled::apply(e.sparse);

  const std::string message = message_of([&] { out.sum().backward(); });

  EXPECT_NE(message.find("a sparse tensor has no grad of its own"), std::string::npos) << message;
}

TEST(SparseTensor, WithValuesKeepsPlacesAndFill) {
  const Example e;
  const at::Tensor values = torch::arange(4, torch::kDouble).requires_grad_();

  const at::Tensor made = with_values(e.sparse, values);
  made.square().sum().backward();

  EXPECT_TRUE(torch::equal(indices(made), e.indices));
  EXPECT_TRUE(torch::equal(values.grad(), 2 * values));
}

TEST(SparseTensor, StridedReadsTheElementsOfItsValues) {
  const at::Tensor values = torch::arange(12, torch::kDouble).slice(0, 0, 12, 2);

  const at::Tensor made = strided({3, 1}, values, {2, 3});
  const std::string message = message_of([&] { static_cast<void>(strided({3, 1}, values, {2, 4})); });

  EXPECT_TRUE(torch::equal(made, torch::tensor({{0.0, 2.0, 4.0}, {6.0, 8.0, 10.0}}, torch::kDouble)));
  EXPECT_NE(message.find("[lacewing.strided] shape (2, 4) with strides (3, 1) has an element at 6, but values have 6"),
            std::string::npos)
      << message;
}

TEST(SparseTensor, CodeThatReadsMemoryGetsASentence) {
  const Example e;
  std::ostringstream text;

  for (const std::string& message :
       {message_of([&] { text << e.sparse; }), message_of([&] { torch::save(e.sparse, text); })}) {
    EXPECT_NE(message.find("[lacewing.SparseTensor] a sparse tensor has no memory of its own"), std::string::npos)
        << message;
  }
}

TEST(SparseTensor, WritesToItsFillAreRefused) {
  const Example e;

  e.fill.add_(1);

  EXPECT_NE(message_of([&] {
              static_cast<void>(lacewing::to_dense(e.sparse));
            }).find("the fill of a sparse tensor was written to"),
            std::string::npos);
}

}  // namespace
}  // namespace lacewing
