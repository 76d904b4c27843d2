// The fused trace update: a case by hand, and the tuned kernel against the reference on every size of batch.
#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include <lacewing/backend.h>
#include <lacewing/etp.h>

namespace lacewing::etp {
namespace {

at::Tensor index(std::initializer_list<std::int64_t> values) { return at::tensor(values, at::kLong); }

/// One input, one neuron, two samples, a leaky cell: e <- 0.5 e + x, gradients by hand.
TEST(Trace, ByHand) {
  const auto pattern = SparsePattern::coo(index({0}), index({0}), 1, 1);
  CellOptions options;
  options.membrane = 0.5;
  const at::Tensor weight = at::ones({1}, at::kDouble);
  Executor executor(make_cell(options), {sparse_primitive(pattern, false), {{"weight", weight}}});

  executor.step(at::tensor({1.0, 2.0}, at::kDouble).view({2, 1}));
  const at::Tensor h = executor.step(at::tensor({3.0, -1.0}, at::kDouble).view({2, 1}));
  executor.backward(h.sum());

  EXPECT_TRUE(executor.traces().at("input.weight").flatten().equal(at::tensor({3.5, 0.0}, at::kDouble)));
  EXPECT_TRUE(weight.grad().equal(at::tensor({3.5}, at::kDouble)));
  EXPECT_EQ(executor.trace_elements(), 2);  // that of the input, which its weights share
}

/// n states: the first leaks, each other follows the one before it.
class Chain : public Cell {
 public:
  Chain(std::int64_t states, std::optional<double> shared) : states_(states), shared_(shared) {}

  std::int64_t states() const override { return states_; }
  std::optional<double> shared_decay() const override { return shared_; }
  at::Tensor forward(const at::Tensor& y, const at::Tensor& h) const override {
    std::vector<at::Tensor> next{0.5 * h.select(-1, 0) + y};
    for (std::int64_t a = 1; a < states_; ++a) {
      next.push_back(at::tanh(0.3 * h.select(-1, a) + h.select(-1, a - 1) * h.select(-1, 0) + next.back()));
    }
    return at::stack(next, -1);
  }

 private:
  std::int64_t states_;
  std::optional<double> shared_;
};

TEST(Trace, OfACellOfTheUserMayBeShared) {
  const auto pattern = fixed_degree(8, 30, 5, 2);
  for (const std::int64_t states : {1, 2, 5}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const auto gradient = [&](std::optional<double> shared) {
        at::manual_seed(6);
        const at::Tensor weight = at::randn({pattern.nse()}, at::kDouble).mul(0.3).to(dtype);
        Executor executor(std::make_shared<Chain>(states, shared),
                          {sparse_primitive(pattern, false), {{"weight", weight}}});
        for (int t = 0; t < 5; ++t) {
          executor.backward(executor.step(at::randn({19, 8}, at::kDouble).to(dtype)).square().sum());
        }
        const std::int64_t own = states - (shared ? 1 : 0);
        EXPECT_EQ(executor.trace_elements(), 19 * (own * pattern.nse() + (shared ? 8 : 0)));
        return weight.grad();
      };

      const at::Tensor whole = gradient(std::nullopt);
      const double error = ((gradient(0.5) - whole).abs().max() / whole.abs().max()).item<double>();

      EXPECT_LT(error, dtype == at::kDouble ? 1e-12 : 1e-5) << states;
    }
  }
}

TEST(Trace, IsNotSharedOnAFalseWord) {
  const auto pattern = fixed_degree(3, 4, 2, 2);
  const auto make = [&](double shared) {
    return Executor(std::make_shared<Chain>(2, shared),
                    {sparse_primitive(pattern, false), {{"weight", at::ones({pattern.nse()})}}});
  };

  EXPECT_NO_THROW(make(0.5));
  EXPECT_THROW(make(0.6), c10::Error);
}

struct Sizes {
  std::int64_t batch;
  bool filtered;
  at::ScalarType dtype;
  bool shared;
};

class TunedTrace : public testing::TestWithParam<Sizes> {};

Values run(const Sizes& sizes, Backend backend) {
  const BackendScope scope(backend);
  at::manual_seed(5);
  const auto pattern = fixed_degree(30, 40, 6, 1, /*fan_out=*/true);
  CellOptions options;
  options.kind = "alif";
  options.filtered = sizes.filtered;
  options.reset_gradient = !sizes.shared;
  options.threshold = 0.3;
  const at::Tensor weight = at::randn({pattern.nse()}, at::kDouble).to(sizes.dtype);
  const at::Tensor bias = at::randn({40}, at::kDouble).to(sizes.dtype);
  Executor executor(make_cell(options), {sparse_primitive(pattern, true), {{"weight", weight}, {"bias", bias}}});
  for (int t = 0; t < 3; ++t) {
    const at::Tensor h = executor.step(at::randn({sizes.batch, 30}, at::kDouble).to(sizes.dtype));
    executor.backward(t == 1 ? executor.output(h).mul(2).sum() : h.square().sum());
  }
  Values out = executor.traces();
  out["weight"] = weight.grad();
  out["bias"] = bias.grad();
  return out;
}

TEST_P(TunedTrace, EqualsTheReference) {
  const Values found = run(GetParam(), Backend::automatic);
  const Values expected = run(GetParam(), Backend::reference);

  for (const auto& [key, tensor] : expected) {
    const double size = tensor.to(at::kDouble).abs().max().item<double>();
    const double error = (found.at(key) - tensor).to(at::kDouble).abs().max().item<double>();
    EXPECT_LT(error, (GetParam().dtype == at::kDouble ? 1e-12 : 1e-4) * size) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Batches, TunedTrace,
                         testing::Values(Sizes{1, false, at::kFloat, false}, Sizes{7, true, at::kFloat, false},
                                         Sizes{16, false, at::kFloat, false}, Sizes{35, true, at::kFloat, false},
                                         Sizes{5, false, at::kDouble, false}, Sizes{16, true, at::kDouble, false},
                                         Sizes{1, false, at::kFloat, true}, Sizes{7, true, at::kFloat, true},
                                         Sizes{16, false, at::kFloat, true}, Sizes{35, true, at::kFloat, true},
                                         Sizes{5, false, at::kDouble, true}, Sizes{16, true, at::kDouble, true}));

}  // namespace
}  // namespace lacewing::etp
