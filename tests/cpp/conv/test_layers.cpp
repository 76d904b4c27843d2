// The C++ layers of sparse convolution: values against dense convolution, gradients against differences, plans shared,
// state dicts, clones, bad input.
#include <cmath>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>

#include <gtest/gtest.h>

#include <lacewing/conv_layers.h>

#include "sentences.h"

namespace lacewing {
namespace {

using nn::ConvOptions;
using nn::PoolOptions;

/// Distinct voxels of two clouds on a square of 8, in random order; doubles.
VoxelTensor cloud(std::int64_t voxels, std::int64_t channels) {
  const at::Tensor cells = at::randperm(128, at::kLong).narrow(0, 0, voxels);
  const at::Tensor coordinates =
      at::stack({cells.floor_divide(64), cells.floor_divide(8).remainder(8) - 4, cells.remainder(8) - 4}, 1)
          .to(at::kInt);
  return {at::randn({voxels, channels}, at::kDouble), coordinates, 2};
}

template <typename Layer>
Layer in_double(Layer layer) {
  layer->to(at::kDouble);
  return layer;
}

/// The gradients of sum(f(x) * upstream) with respect to the features and every parameter are those of central
/// differences.
template <typename F>
void expect_gradients(const torch::nn::Module& module, const VoxelTensor& x, F&& f) {
  const at::Tensor features = x.features().clone().requires_grad_();
  const at::Tensor upstream = at::randn_like(f(x.replace(features)));
  const auto total = [&] { return (f(x.replace(features)) * upstream).sum(); };
  total().backward();
  std::vector<at::Tensor> inputs = module.parameters();
  inputs.push_back(features);
  for (const at::Tensor& input : inputs) {
    const at::NoGradGuard guard;
    const at::Tensor flat = input.view(-1);
    const at::Tensor grad = input.grad().reshape(-1);
    for (std::int64_t i = 0; i < flat.numel(); i += 1 + flat.numel() / 7) {
      constexpr double kStep = 1e-4;
      const double start = flat[i].item<double>();
      flat[i].fill_(start + kStep);
      const double above = total().template item<double>();
      flat[i].fill_(start - kStep);
      const double below = total().template item<double>();
      flat[i].fill_(start);
      EXPECT_NEAR(grad[i].item<double>(), (above - below) / (2 * kStep), 1e-5);
    }
  }
}

TEST(Layers, SubmanifoldConvIsDenseConvolution) {
  const VoxelTensor x = cloud(70, 4);
  auto layer = in_double(nn::SubmanifoldConv(ConvOptions(4, 6, {3, 3}).groups(2).dilation({2, 1})));

  const VoxelTensor y = layer(x);

  const auto at = (x.coordinates() + at::tensor({0, 4, 4}, at::kInt)).to(at::kLong).unbind(1);
  const at::Tensor grid = at::zeros({2, 8, 8, 4}, at::kDouble).index_put({at[0], at[1], at[2]}, x.features());
  const at::Tensor dense = at::conv2d(grid.permute({0, 3, 1, 2}), layer->user_weight(), layer->bias, 1,
                                      at::IntArrayRef({2, 1}), at::IntArrayRef({2, 1}), 2);
  EXPECT_TRUE(at::allclose(y.features(), dense.permute({0, 2, 3, 1}).index({at[0], at[1], at[2]})));
  EXPECT_TRUE(y.coordinates().is_same(x.coordinates()));
}

TEST(Layers, HaveTheGradientsOfDifferences) {
  const VoxelTensor x = cloud(30, 2);
  auto same = in_double(nn::SubmanifoldConv(ConvOptions(2, 3, {3, 3})));
  auto down = in_double(nn::SparseConv(ConvOptions(2, 3, {2, 3})));
  auto all = in_double(nn::SparseConv(ConvOptions(2, 3, {3, 3}).targets(ConvolutionTargets::reachable).bias(false)));
  auto up = in_double(nn::SparseConvTranspose(ConvOptions(2, 3, {2, 2})));
  auto coarse = in_double(nn::SparseConv(ConvOptions(2, 2, {2, 2})));
  auto back = in_double(nn::InverseConv(ConvOptions(2, 3, {2, 2})));
  auto norm = in_double(nn::VoxelBatchNorm(2));

  expect_gradients(*same, x, [&](const VoxelTensor& v) { return same(v).features(); });
  expect_gradients(*down, x, [&](const VoxelTensor& v) { return down(v).features(); });
  expect_gradients(*all, x, [&](const VoxelTensor& v) { return all(v).features(); });
  expect_gradients(*up, x, [&](const VoxelTensor& v) { return up(v).features(); });
  expect_gradients(*back, x, [&](const VoxelTensor& v) { return back(coarse(v)).features(); });
  expect_gradients(*norm, x, [&](const VoxelTensor& v) { return norm(v).features(); });
}

TEST(Layers, PoolingHasTheGradientsOfDifferences) {
  const VoxelTensor x = cloud(40, 2);
  for (const PoolMode mode : {PoolMode::sum, PoolMode::avg, PoolMode::max}) {
    nn::SparsePool pool(PoolOptions({2, 2}).mode(mode));
    nn::SparseUnpool unpool(PoolOptions({2, 2}));
    nn::GlobalPool global(mode);

    expect_gradients(*pool, x, [&](const VoxelTensor& v) { return pool(v).features(); });
    expect_gradients(*pool, x, [&](const VoxelTensor& v) { return unpool(pool(v)).features(); });
    expect_gradients(*global, x, [&](const VoxelTensor& v) { return global(v); });
  }
}

TEST(Layers, ShareThePlansOfACloud) {
  const VoxelTensor x = cloud(60, 4);
  auto stem = in_double(nn::SubmanifoldConv(ConvOptions(4, 8, {3, 3})));
  auto again = in_double(nn::SubmanifoldConv(ConvOptions(8, 8, {3, 3})));
  auto down = in_double(nn::SparseConv(ConvOptions(8, 8, {2, 2})));
  nn::SparsePool pool(PoolOptions({3, 3}).stride({2, 2}).mode(PoolMode::avg));
  auto up = in_double(nn::InverseConv(ConvOptions(8, 4, {2, 2})));

  const VoxelTensor fine = again(stem(x));
  const VoxelTensor coarse = down(fine);
  const VoxelTensor sum = coarse + pool(fine);
  const VoxelTensor y = up(sum).cat(fine);

  EXPECT_EQ(x.cache()->size(), 3U);
  EXPECT_TRUE(y.coordinates().is_same(x.coordinates()));
  EXPECT_EQ(y.features().sizes(), at::IntArrayRef({60, 12}));
  EXPECT_EQ(coarse.stride(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(y.stride(), (std::vector<std::int64_t>{1, 1}));
}

TEST(Layers, GenerativeThenPruned) {
  const VoxelTensor x = cloud(12, 3);
  auto up = in_double(nn::SparseConvTranspose(ConvOptions(3, 2, {2, 2})));

  const VoxelTensor all = up(x);
  const VoxelTensor kept = all.prune(all.features().select(1, 0).gt(0));

  EXPECT_EQ(all.size(), 48);
  EXPECT_TRUE(at::equal(up->onto(x, kept.coordinates()).features(), kept.features()));
}

TEST(Layers, RunOverAPlanThatWasBuiltBefore) {
  const VoxelTensor x = cloud(20, 2);
  const auto plan = ConvolutionPlan::build(x.coordinates(), {{3, 3}, {}, {}});
  auto layer = in_double(nn::SubmanifoldConv(ConvOptions(2, 3, {3, 3})));
  at::Tensor moved = x.coordinates().clone();
  moved[7][2] += 100;

  EXPECT_TRUE(at::equal(layer->over(x, plan).features(), layer(x).features()));
  EXPECT_EQ(x.cache()->size(), 1U);
  const std::string sentence = sentence_of([&] { layer->over(VoxelTensor(x.features(), moved), plan); });
  EXPECT_NE(sentence.find("the plan belongs to other coordinates: coordinates[7] = ("), std::string::npos) << sentence;
  EXPECT_EQ(
      sentence_of([&] { layer->over(x, ConvolutionPlan::build(x.coordinates(), {{3, 3}, {}, {2, 1}}).transposed()); }),
      "[lacewing.SubmanifoldConv] the plan has kernel_size (3, 3), stride (1, 1), dilation (2, 1), transposed, but "
      "the layer has kernel_size (3, 3), stride (1, 1), dilation (1, 1)");
  EXPECT_EQ(sentence_of([&] {
              layer->over(x,
                          ConvolutionPlan::build(x.coordinates(), {{3, 3}, {}, {}}, x.coordinates().narrow(0, 0, 9)));
            }),
            "[lacewing.SubmanifoldConv] the plan leads to other voxels than it comes from");
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("stem", stem);
    register_module("norm", norm);
    register_module("down", down);
    register_module("up", up);
  }
  VoxelTensor forward(const VoxelTensor& x) {
    const VoxelTensor fine = norm(stem(x)).map([](const at::Tensor& t) { return t.relu(); });
    return up(down(fine)).cat(fine);
  }
  nn::SubmanifoldConv stem{ConvOptions(2, 4, {3, 3}).groups(2)};
  nn::VoxelBatchNorm norm{4};
  nn::SparseConv down{ConvOptions(4, 6, {2, 2})};
  nn::InverseConv up{ConvOptions(6, 4, {2, 2})};
};
TORCH_MODULE(Net);

TEST(Layers, StateDictsHaveTheUserLayout) {
  const VoxelTensor x = cloud(40, 2);
  auto net = in_double(Net());
  auto other = in_double(Net());
  net->eval();
  other->eval();

  const auto state = nn::state_dict(*net);
  nn::load_state_dict(*other, state);

  EXPECT_EQ(state["stem.weight"].sizes(), at::IntArrayRef({4, 1, 3, 3}));
  EXPECT_EQ(state["up.weight"].sizes(), at::IntArrayRef({6, 4, 2, 2}));
  EXPECT_TRUE(at::equal(net(x).features(), other(x).features()));
  torch::OrderedDict<std::string, at::Tensor> short_state;
  EXPECT_EQ(sentence_of([&] { nn::load_state_dict(*net, short_state); }),
            "[lacewing.load_state_dict] stem.weight is missing");
}

TEST(Layers, ARefusedStateDictChangesNothing) {
  auto net = in_double(Net());
  const auto before = nn::state_dict(*net);
  torch::OrderedDict<std::string, at::Tensor> kept;
  torch::OrderedDict<std::string, at::Tensor> extended;
  for (const auto& item : before) {
    kept.insert(item.key(), item.value().clone());
    extended.insert(item.key(), item.value() + 1);
  }
  torch::OrderedDict<std::string, at::Tensor> misshapen = extended;
  misshapen["up.bias"] = at::zeros({5}, at::kDouble);
  extended.insert("head.weight", at::zeros({1}));

  EXPECT_EQ(sentence_of([&] { nn::load_state_dict(*net, extended); }),
            "[lacewing.load_state_dict] the module has no head.weight");
  EXPECT_EQ(sentence_of([&] { nn::load_state_dict(*net, misshapen); }),
            "[lacewing.load_state_dict] up.bias has the shape (5,), but the module's has (4,)");
  for (const auto& item : nn::state_dict(*net)) {
    EXPECT_TRUE(at::equal(item.value(), kept[item.key()])) << item.key();
  }
}

TEST(Layers, GoBackTheWayTheyCame) {
  const VoxelTensor a = cloud(30, 2);
  const VoxelTensor b(at::randn({40, 2}, at::kDouble), cloud(40, 2).coordinates(), 2, {}, a.cache());
  auto down = in_double(nn::SparseConv(ConvOptions(2, 2, {2, 2})));
  auto up = in_double(nn::InverseConv(ConvOptions(2, 2, {2, 2})));
  const at::Tensor targets = down(a).coordinates().clone();

  const VoxelTensor from_a = down->onto(a, targets);
  const VoxelTensor from_b = down->onto(b, targets);

  EXPECT_TRUE(up(from_a).coordinates().is_same(a.coordinates()));
  EXPECT_TRUE(up(from_b).coordinates().is_same(b.coordinates()));
  EXPECT_EQ(sentence_of([&] { up(VoxelTensor(from_a.features(), targets, 2, {2, 2}, a.cache())); }),
            "[lacewing.InverseConv] layers with kernel_size (2, 2), stride (2, 2) and dilation (1, 1) led to these "
            "voxels from different ones");
}

TEST(Layers, BuildNewPlansForCoordinatesThatWereChanged) {
  const VoxelTensor x = cloud(30, 2);
  auto layer = in_double(nn::SubmanifoldConv(ConvOptions(2, 3, {3, 3})));
  layer(x);

  x.coordinates().select(1, 1).mul_(10);

  const VoxelTensor fresh(x.features(), x.coordinates().clone());
  EXPECT_TRUE(at::equal(layer(x).features(), layer(fresh).features()));
  EXPECT_EQ(x.cache()->size(), 2U);
}

TEST(Layers, MakeCoarseVoxelsThatWereChangedAnew) {
  const VoxelTensor x(at::ones({3, 1}), at::tensor({0, 0, 0, 1, 0, 4}, at::kInt).view({3, 2}));
  nn::SparsePool(PoolOptions({2}).mode(PoolMode::sum))(x).coordinates().select(1, 1).add_(100);

  const VoxelTensor y = nn::SparsePool(PoolOptions({3}).stride({2}).mode(PoolMode::sum))(x);

  EXPECT_TRUE(at::equal(y.coordinates(), at::tensor({0, 0, 0, 2}, at::kInt).view({2, 2})));
  EXPECT_TRUE(at::equal(y.features(), at::tensor({2.0F, 1.0F}).view({2, 1})));
}

TEST(Layers, CountCloudsThatLostTheirVoxels) {
  const VoxelTensor x(at::ones({2, 2}), at::tensor({0, 0, 1, 1}, at::kInt).view({2, 2}));
  nn::SparseConv layer(ConvOptions(2, 2, {1}).stride({2}).targets(ConvolutionTargets::reachable));

  const VoxelTensor y = layer(x);  // no tap leads from voxel 1

  EXPECT_EQ(y.size(), 1);
  EXPECT_EQ(y.batch_size(), 2);
  EXPECT_EQ(y.replace(y.features()).prune(at::zeros({1}, at::kBool)).batch_size(), 2);
  EXPECT_EQ(layer->onto(x, at::tensor({4, 0}, at::kInt).view({1, 2})).batch_size(), 5);
  EXPECT_EQ(VoxelTensor(x.features(), x.coordinates(), 7).prune(at::zeros({2}, at::kBool)).batch_size(), 7);
}

TEST(Layers, TransposedOnesBeginAsTorchs) {
  const nn::SparseConvTranspose up(ConvOptions(4, 100, {2, 2, 2}));

  EXPECT_LE(up->weight.abs().max().item<double>(), 1.0 / std::sqrt(800.0));
  EXPECT_GE(up->weight.abs().max().item<double>(), 0.9 / std::sqrt(800.0));
}

TEST(Layers, CloneAndStandInSequences) {
  const VoxelTensor x = cloud(40, 2);
  auto layer = in_double(nn::SubmanifoldConv(ConvOptions(2, 2, {3, 3})));
  const auto copy = std::dynamic_pointer_cast<nn::SubmanifoldConvImpl>(layer->clone());
  torch::nn::Sequential stack(in_double(nn::SparseConv(ConvOptions(2, 4, {2, 2}))), in_double(nn::VoxelBatchNorm(4)),
                              in_double(nn::InverseConv(ConvOptions(4, 1, {2, 2}).bias(false))));

  EXPECT_TRUE(at::equal(copy->forward(x).features(), layer(x).features()));
  EXPECT_FALSE(copy->weight.is_same(layer->weight));
  EXPECT_EQ(stack->forward<VoxelTensor>(x).features().sizes(), at::IntArrayRef({40, 1}));
  EXPECT_EQ(stack->parameters().size(), 5U);
}

/// relu(norm(conv(x)) + residual) by its parts.
at::Tensor unit_by_parts(nn::SubmanifoldConv conv, nn::VoxelBatchNorm norm, const VoxelTensor& x,
                         const VoxelTensor& residual) {
  return (norm(conv(x)).features() + residual.features()).relu();
}

TEST(Layers, UnitsAreTheirParts) {
  const VoxelTensor x = cloud(60, 3);
  const VoxelTensor residual = x.replace(at::randn({60, 4}, at::kDouble));
  auto conv = in_double(nn::SubmanifoldConv(ConvOptions(3, 4, {3, 3})));
  auto norm = in_double(nn::VoxelBatchNorm(4));
  nn::ConvUnit unit(conv, norm);
  const auto by_parts = [&] { return unit_by_parts(conv, norm, x, residual); };

  for (int step = 0; step < 3; ++step) {  // training: the running statistics move away from where they start
    EXPECT_TRUE(at::allclose(unit(x, residual).features(), by_parts()));
  }
  unit->eval();
  const at::NoGradGuard guard;

  EXPECT_TRUE(at::allclose(unit(x, residual).features(), by_parts()));
  EXPECT_TRUE(at::allclose(nn::ConvUnit(conv)(x).features(), conv(x).features().relu()));
  EXPECT_TRUE(at::allclose(nn::ConvUnit(conv, norm, false)(x).features(), norm(conv(x)).features()));
}

TEST(Layers, UnitsHaveTheGradientsOfDifferences) {
  const VoxelTensor x = cloud(30, 2);
  nn::ConvUnit unit(in_double(nn::SparseConv(ConvOptions(2, 3, {2, 2}))), in_double(nn::VoxelBatchNorm(3)), false);
  unit->eval();
  expect_gradients(*unit, x, [&](const VoxelTensor& input) { return unit(input).features(); });
}

TEST(Layers, UnitsAreClonedWithTheirLayers) {
  const VoxelTensor x = cloud(20, 2);
  nn::ConvUnit unit(in_double(nn::SubmanifoldConv(ConvOptions(2, 2, {3, 3}))), in_double(nn::VoxelBatchNorm(2)));
  unit->eval();
  const auto copy = std::dynamic_pointer_cast<nn::ConvUnitImpl>(unit->clone());

  EXPECT_TRUE(at::equal(copy->forward(x).features(), unit(x).features()));
  EXPECT_FALSE(copy->conv->weight.is_same(unit->conv->weight));
  EXPECT_EQ(unit->parameters().size(), 4U);
  EXPECT_TRUE(nn::state_dict(*unit).contains("conv.weight"));
}

TEST(Layers, RefuseBadInputWithASentence) {
  const VoxelTensor x = cloud(10, 2);

  EXPECT_EQ(sentence_of([] { nn::SubmanifoldConv(ConvOptions(4, 6, {3, 3}).groups(3)); }),
            "[lacewing.SubmanifoldConv] 3 groups do not divide 4 input and 6 output channels");
  EXPECT_EQ(sentence_of([] { nn::SparseConv(ConvOptions(-4, 6, {3, 3})); }),
            "[lacewing.SparseConv] channels must be positive, not -4 and 6");
  EXPECT_EQ(sentence_of([&] { VoxelTensor(x.features(), x.coordinates(), 2, {1, 0}); }),
            "[lacewing.VoxelTensor] stride must be positive, not (1, 0)");
  nn::SparseUnpool unpool(PoolOptions({2, 2}));
  EXPECT_EQ(sentence_of([&] { unpool(x); }),
            "[lacewing.SparseUnpool] no layer with kernel_size (2, 2), stride (2, 2) and dilation (1, 1) led to these "
            "voxels");
  EXPECT_EQ(sentence_of([] { nn::SparseConv(ConvOptions(4, 6, {3, 0})); }),
            "[lacewing.SparseConv] kernel_size must be 2 positive integers, not (3, 0)");
  EXPECT_EQ(sentence_of([] { nn::SparseConv(ConvOptions(4, 6, {3, 3}).stride({2})); }),
            "[lacewing.SparseConv] stride must be 2 positive integers, not (2,)");
  EXPECT_EQ(sentence_of([] { nn::SparsePool(PoolOptions({})); }),
            "[lacewing.SparsePool] kernel_size must have 1 to 4 entries, not 0");
  EXPECT_EQ(sentence_of([&] { in_double(nn::InverseConv(ConvOptions(2, 2, {2, 2})))(x); }),
            "[lacewing.InverseConv] no layer with kernel_size (2, 2), stride (2, 2) and dilation (1, 1) led to these "
            "voxels");
  EXPECT_EQ(sentence_of([&] { return x.replace(x.features().narrow(0, 0, 9)); }),
            "[lacewing.VoxelTensor] features of shape (9, 2) do not have one row for each of the 10 voxels");
  EXPECT_EQ(sentence_of([&] { VoxelTensor(x.features(), x.coordinates().to(at::kLong)); }),
            "[lacewing.VoxelTensor] coordinates must be int32 of shape (voxels, 1 + axes), not int64 of shape (10, 3)");
  EXPECT_EQ(sentence_of([&] { return x + cloud(9, 2); }),
            "[lacewing.VoxelTensor] the two tensors lie on different voxels (10 and 9 of them)");
  nn::ConvUnit unit(in_double(nn::SubmanifoldConv(ConvOptions(2, 2, {3, 3}))));
  EXPECT_EQ(sentence_of([&] { unit(x, cloud(9, 2)); }),
            "[lacewing.VoxelTensor] the two tensors lie on different voxels (10 and 9 of them)");
  EXPECT_EQ(sentence_of([&] { unit(x, x.replace(x.features().narrow(1, 0, 1))); }),
            "[lacewing.sparse_conv_unit] the residual has 1 channels, but there are 2 output channels");
  EXPECT_EQ(sentence_of([&] { unit(x, x.map([](const at::Tensor& f) { return f.to(at::kFloat); })); }),
            "[lacewing.ConvUnit] the residual has dtype float32 but features have float64");
  EXPECT_EQ(sentence_of([&] { return x + VoxelTensor(x.features(), x.coordinates(), 2, {2, 2}); }),
            "[lacewing.VoxelTensor] the two tensors have the strides (1, 1) and (2, 2)");
  EXPECT_EQ(sentence_of([&] { VoxelTensor(x.features(), at::zeros({10, 0}, at::kInt)); }),
            "[lacewing.VoxelTensor] coordinates must be int32 of shape (voxels, 1 + axes), not int32 of shape (10, 0)");
  EXPECT_EQ(sentence_of([&] { VoxelTensor(at::Tensor(), x.coordinates()); }),
            "[lacewing.VoxelTensor] features and coordinates must be tensors");
  EXPECT_EQ(sentence_of([&] { VoxelTensor(x.features().to_sparse(), x.coordinates()); }),
            "[lacewing.VoxelTensor] features must be a dense tensor, not one of Sparse");
  EXPECT_EQ(sentence_of([] { return ConvolutionPlan::build(at::Tensor(), {{3, 3}}); }),
            "[lacewing.convolution_plan] coordinates must be a tensor");
  EXPECT_EQ(sentence_of([&] { return x.prune(x.features()); }),
            "[lacewing.VoxelTensor] mask must be 10 booleans, not float64 of shape (10, 2)");
}

}  // namespace
}  // namespace lacewing
