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
}

struct Sizes {
  std::int64_t batch;
  bool filtered;
  at::ScalarType dtype;
};

class TunedTrace : public testing::TestWithParam<Sizes> {};

Values run(const Sizes& sizes, Backend backend) {
  const BackendScope scope(backend);
  at::manual_seed(5);
  const auto pattern = fixed_degree(30, 40, 6, 1, /*fan_out=*/true);
  CellOptions options;
  options.kind = "alif";
  options.filtered = sizes.filtered;
  options.threshold = 0.3;
  const at::Tensor weight = at::randn({pattern.nnz()}, at::kDouble).to(sizes.dtype);
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
                         testing::Values(Sizes{1, false, at::kFloat}, Sizes{7, true, at::kFloat},
                                         Sizes{16, false, at::kFloat}, Sizes{35, true, at::kFloat},
                                         Sizes{5, false, at::kDouble}, Sizes{16, true, at::kDouble}));

}  // namespace
}  // namespace lacewing::etp
