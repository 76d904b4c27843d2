// The derivatives that linear ops share, on products small enough to check by hand.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <gtest/gtest.h>

#include "autograd/linear_op.h"

namespace lacewing::autograd {
namespace {

at::Tensor leaf(at::ArrayRef<double> values) { return at::tensor(values, at::kDouble).requires_grad_(); }

/// a * b, element by element.
struct Product : LinearOp {
  std::string name() const override { return "product"; }
  at::Tensor call(const Tensors& in) const override { return product(in[0], in[1]); }
  Tensors gradients(const Tensors& in, const at::Tensor& g, const std::vector<bool>& wanted) const override {
    return {wanted[0] ? product(g, in[1].conj()) : at::Tensor(), wanted[1] ? product(in[0].conj(), g) : at::Tensor()};
  }
  static at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
    return differentiable({a, b}, [] { return std::make_shared<Product>(); }, [&] { return a * b; });
  }
};

/// The integer 7, a * b and a + a.
struct ProductAndSum : LinearOps {
  std::string name() const override { return "product_and_sum"; }
  Tensors call(const Tensors& in) const override { return outputs(in[0], in[1]); }
  Tensors gradients(const Tensors& in, const Tensors& g, const std::vector<bool>& wanted) const override {
    at::Tensor of_a;
    if (wanted[0]) {
      of_a = g[1].defined() && g[2].defined() ? g[1] * in[1] + 2 * g[2] : g[1].defined() ? g[1] * in[1] : 2 * g[2];
    }
    return {of_a, wanted[1] && g[1].defined() ? g[1] * in[0] : at::Tensor()};
  }
  Tensors tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                  const Tensors& /*outputs*/) const override {
    return {at::Tensor(), tangent * primals[1 - i], i == 0 ? 2 * tangent : at::Tensor()};
  }
  static Tensors outputs(const at::Tensor& a, const at::Tensor& b) {
    return differentiable(
        {a, b}, [] { return std::make_shared<ProductAndSum>(); },
        [&] { return Tensors{at::tensor({7}, at::kLong), a * b, a + a}; });
  }
};

/// exp(a) and a * exp(a), whose gradients are made of what they gave.
struct Exponents : LinearOps {
  std::string name() const override { return "exponents"; }
  bool reads_outputs() const override { return true; }
  Tensors call(const Tensors& in) const override { return outputs(in[0]); }
  Tensors gradients(const Tensors& in, const Tensors& g, const std::vector<bool>& /*wanted*/) const override {
    const at::Tensor first = g[0].defined() ? g[0] * in[1] : at::Tensor();
    const at::Tensor second = g[1].defined() ? g[1] * (in[1] + in[2]) : at::Tensor();
    return {!first.defined() ? second : second.defined() ? first + second : first};
  }
  bool reads(std::size_t /*i*/, std::size_t /*j*/) const override { return false; }
  Tensors tangent(const Tensors& /*primals*/, std::size_t /*i*/, const at::Tensor& tangent,
                  const Tensors& outputs) const override {
    return {tangent * outputs[0], tangent * (outputs[0] + outputs[1])};
  }
  static Tensors outputs(const at::Tensor& a) {
    return differentiable(
        {a}, [] { return std::make_shared<Exponents>(); }, [&] { return Tensors{a.exp(), a * a.exp()}; });
  }
};

/// Forward mode, as long as it lives.
struct DualLevel {
  DualLevel() { torch::autograd::ForwardADLevel::get_next_idx(); }
  ~DualLevel() { torch::autograd::ForwardADLevel::release_idx(0); }
};

TEST(LinearOp, HasTheGradientsOfBothInputs) {
  const at::Tensor a = leaf({2, 3});
  const at::Tensor b = leaf({5, 7});

  Product::product(a, b).sum().backward();

  EXPECT_TRUE(at::equal(a.grad(), b));
  EXPECT_TRUE(at::equal(b.grad(), a));
}

TEST(LinearOp, DifferentiatesTwice) {
  const at::Tensor a = leaf({2});
  const at::Tensor b = leaf({5});

  const auto first = torch::autograd::grad({Product::product(a, b)}, {a}, {}, std::nullopt, /*create_graph=*/true);
  const auto second = torch::autograd::grad({first[0]}, {b});

  EXPECT_EQ(second[0].item<double>(), 1);
}

TEST(LinearOp, GradientsThatReadOutputsDifferentiateThroughThem) {
  const at::Tensor a = leaf({0.5});

  const Tensors outputs = Exponents::outputs(a);
  const auto first =
      torch::autograd::grad({outputs[0], outputs[1]}, {a}, {at::ones({1}, at::kDouble), at::ones({1}, at::kDouble)},
                            std::nullopt, /*create_graph=*/true);
  const auto second = torch::autograd::grad({first[0]}, {a});

  EXPECT_DOUBLE_EQ(first[0].item<double>(), 2.5 * std::exp(0.5));
  EXPECT_DOUBLE_EQ(second[0].item<double>(), 3.5 * std::exp(0.5));
}

TEST(LinearOp, GivesARealInputARealGradient) {
  const at::Tensor a = leaf({2}).to(at::kFloat).detach().requires_grad_();
  const at::Tensor b = at::complex(at::tensor({3.0}), at::tensor({4.0})).to(at::kComplexDouble);

  at::real(Product::product(a, b)).sum().backward();

  EXPECT_EQ(a.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(a.grad().item<float>(), 3);
}

TEST(LinearOp, IsNotMadeWhereNothingIsWanted) {
  bool made = false;
  const at::Tensor a = at::ones({2});

  differentiable(
      {a, at::Tensor()},
      [&] {
        made = true;
        return std::make_shared<Product>();
      },
      [&] { return a * 2; });

  EXPECT_FALSE(made);
}

TEST(LinearOp, SavesWhatAWantedGradientReads) {
  const at::Tensor a = leaf({2});
  const at::Tensor b = at::tensor({5.0}, at::kDouble);
  const at::Tensor z = Product::product(a, b);

  b.add_(1);

  EXPECT_THROW(z.sum().backward(), c10::Error);
}

TEST(LinearOp, SavesNothingThatNoWantedGradientReads) {
  const at::Tensor a = at::tensor({2.0}, at::kDouble);
  const at::Tensor b = leaf({5});
  const at::Tensor z = Product::product(b, a);

  {
    const at::NoGradGuard guard;
    b.add_(1);
  }
  z.sum().backward();

  EXPECT_EQ(b.grad().item<double>(), 2);
}

TEST(LinearOp, ReleasesWhatItSaved) {
  const at::Tensor z = Product::product(leaf({2}), leaf({5})).sum();
  z.backward();

  EXPECT_THROW(z.backward(), c10::Error);
}

TEST(LinearOp, IsNamedInTheGraph) {
  EXPECT_EQ(Product::product(leaf({2}), leaf({5})).grad_fn()->name(), "LacewingBackward_product");
}

TEST(LinearOp, AddsTheTangentsOfItsInputs) {
  const DualLevel level;
  const at::Tensor a = at::_make_dual(at::tensor({2.0}), at::tensor({1.0}), 0);
  const at::Tensor b = at::_make_dual(at::tensor({5.0}), at::tensor({10.0}), 0);

  const at::Tensor z = Product::product(a, b);

  EXPECT_EQ(z._fw_grad(0).item<double>(), 1 * 5 + 2 * 10);
}

TEST(LinearOps, SumTheGradientsOfAllOutputs) {
  const at::Tensor a = leaf({2});
  const at::Tensor b = leaf({5});
  const Tensors z = ProductAndSum::outputs(a, b);

  (z[1] + z[2]).sum().backward();

  EXPECT_EQ(a.grad().item<double>(), 5 + 2);
  EXPECT_EQ(b.grad().item<double>(), 2);
}

TEST(LinearOps, GiveNoGradientForAnOutputThatIsNotUsed) {
  const at::Tensor a = leaf({2});
  const at::Tensor b = leaf({5});

  ProductAndSum::outputs(a, b)[2].sum().backward();

  EXPECT_EQ(a.grad().item<double>(), 2);
  EXPECT_FALSE(b.grad().defined());
}

TEST(LinearOps, LeaveIntegersWithoutHistory) {
  const Tensors z = ProductAndSum::outputs(leaf({2}), leaf({5}));

  EXPECT_FALSE(z[0].requires_grad());
  EXPECT_TRUE(z[1].requires_grad());
}

TEST(LinearOps, AddTheTangentsForEachOutput) {
  const DualLevel level;
  const at::Tensor a = at::_make_dual(at::tensor({2.0}), at::tensor({1.0}), 0);
  const at::Tensor b = at::_make_dual(at::tensor({5.0}), at::tensor({10.0}), 0);

  const Tensors z = ProductAndSum::outputs(a, b);

  EXPECT_FALSE(z[0]._fw_grad(0).defined());
  EXPECT_EQ(z[1]._fw_grad(0).item<double>(), 1 * 5 + 2 * 10);
  EXPECT_EQ(z[2]._fw_grad(0).item<double>(), 2);
}

}  // namespace
}  // namespace lacewing::autograd
