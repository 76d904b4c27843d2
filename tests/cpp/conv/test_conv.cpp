// The C++ API of sparse convolution: values and gradients against dense convolution, plans, pooling, bad input.
#include <functional>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/serialize.h>

#include <gtest/gtest.h>

#include <lacewing/conv.h>

#include "sentences.h"

namespace lacewing {
namespace {

/// Distinct voxels of a 6x6x6 grid in random order.
at::Tensor cloud(std::int64_t voxels) {
  const at::Tensor cells = at::randperm(216, at::kLong).narrow(0, 0, voxels);
  return at::stack(
             {at::zeros_like(cells), cells.floor_divide(36), cells.floor_divide(6).remainder(6), cells.remainder(6)}, 1)
      .to(at::kInt);
}

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(); }

at::Tensor at_voxels(const at::Tensor& grid, const at::Tensor& voxels) {
  const auto index = voxels.to(at::kLong).unbind(1);
  return grid.permute({0, 2, 3, 4, 1}).index({index[0], index[1], index[2], index[3]});
}

at::Tensor on_grid(const at::Tensor& features, const at::Tensor& voxels) {
  const auto index = voxels.to(at::kLong).unbind(1);
  const at::Tensor grid = at::zeros({1, 6, 6, 6, features.size(1)}, features.options());
  return grid.index_put({index[0], index[1], index[2], index[3]}, features).permute({0, 4, 1, 2, 3});
}

TEST(SparseConv, IsDenseConvolutionWithGradients) {
  const auto plan = ConvolutionPlan::build(cloud(80), {{3, 3, 3}, {}, {}});
  const at::Tensor x = random({80, 4});
  const at::Tensor weight = random({6, 2, 3, 3, 3});
  const at::Tensor bias = random({6});

  const at::Tensor out = sparse_conv(x, weight_from_user(weight, 2), plan, bias);
  const at::Tensor dense = at_voxels(at::conv3d(on_grid(x, plan.source()), weight, bias, 1, 1, 1, 2), plan.target());

  EXPECT_TRUE(at::allclose(out, dense));
  out.square().sum().backward();
  const at::Tensor grads[] = {x.grad().clone(), weight.grad().clone(), bias.grad().clone()};
  for (const at::Tensor* const t : {&x, &weight, &bias}) {
    t->mutable_grad().reset();
  }
  dense.square().sum().backward();
  EXPECT_TRUE(at::allclose(grads[0], x.grad()));
  EXPECT_TRUE(at::allclose(grads[1], weight.grad()));
  EXPECT_TRUE(at::allclose(grads[2], bias.grad()));
}

TEST(SparseConv, GoesDownAndBackUp) {
  const auto down = ConvolutionPlan::build(cloud(60), {{2, 2, 2}, {2, 2, 2}, {}}, ConvolutionTargets::strided);
  const auto up = down.transposed();

  const at::Tensor coarse = sparse_conv(random({60, 3}), random({8, 1, 3, 5}), down);
  const at::Tensor fine = sparse_conv(coarse, random({8, 1, 5, 2}), up);

  EXPECT_EQ(fine.sizes(), at::IntArrayRef({60, 2}));
  EXPECT_TRUE(up.target().is_same(down.source()));
  EXPECT_TRUE(up.array().is_same(down.array()));
  EXPECT_TRUE(up.is_transposed());
  EXPECT_EQ(down.pair_count(), 60);
  EXPECT_EQ(down.taps(), 8);
}

TEST(ConvolutionPlan, IsSavedAndLoaded) {
  const auto plan = ConvolutionPlan::build(cloud(60), {{2, 3, 1}, {2, 1, 1}, {}}, ConvolutionTargets::strided);
  const auto back = plan.transposed().with_algorithm(ConvolutionAlgorithm::gather_gemm_scatter);
  std::stringstream stream;
  std::vector<at::Tensor> loaded;
  const at::Tensor x = random({plan.target().size(0), 3});
  const at::Tensor weight = random({6, 1, 3, 2});

  torch::save(back.pack(), stream);
  torch::load(loaded, stream);
  const auto again = ConvolutionPlan::unpack(loaded);

  EXPECT_EQ(again.sizes(), back.sizes());
  EXPECT_EQ(again.kernel().size, back.kernel().size);
  EXPECT_TRUE(at::equal(again.target(), plan.source()));
  EXPECT_TRUE(at::equal(sparse_conv(x, weight, again), sparse_conv(x, weight, back)));
}

TEST(ConvolutionPlan, DamagedPacksAreRefused) {
  const auto plan = ConvolutionPlan::build(cloud(60), {{3, 1, 1}, {}, {}});
  const auto refusal = [&](std::size_t part, const std::function<void(at::Tensor&)>& damage) {
    std::vector<at::Tensor> packed = plan.pack();
    packed[part] = packed[part].clone();
    damage(packed[part]);
    const std::string sentence = sentence_of([&] { return ConvolutionPlan::unpack(packed); });
    const std::string op = "[lacewing.convolution_plan] ";
    return sentence.starts_with(op) ? sentence.substr(op.size()) : sentence;
  };
  const auto set = [](std::int64_t at, std::int64_t value) { return [=](at::Tensor& tensor) { tensor[at] = value; }; };
  const std::string saved = "this is not a plan as it was saved: ";
  const std::string description = saved + "its description does not fit together";

  EXPECT_EQ(refusal(0, set(0, 1000)), saved + "fine row 1000 of tap 0 is out of range");
  EXPECT_EQ(refusal(3, set(3, 64)), description);  // flags
  EXPECT_EQ(refusal(3, set(4, 0)), description);   // identity tap
  EXPECT_EQ(refusal(3, set(5, 0)), description);   // longest tap
  EXPECT_EQ(refusal(3, set(5, -7)), description);
  EXPECT_EQ(refusal(4, set(0, 7)), saved + "kernel_size (7, 1, 1) has 7 taps, but the description says 3");
  EXPECT_EQ(refusal(4, set(0, 0)), "kernel_size[0] = 0 must lie in [1, 2^24]");
  EXPECT_EQ(refusal(5, [](at::Tensor& t) { t = t.narrow(0, 0, 2); }),
            "stride has 2 entries, but the coordinates have 3 axes");
  EXPECT_EQ(refusal(1, [](at::Tensor& t) { t = t.narrow(0, 0, 59); }),
            saved + "coordinates of shapes (59, 4) and (60, 4) are not those of 60 and 60 voxels");
  EXPECT_NE(refusal(1, [](at::Tensor& t) { t += 1; }).find("are not a pair of tap"), std::string::npos);
  EXPECT_EQ(sentence_of([] { return ConvolutionPlan::unpack(std::vector<at::Tensor>(7)); }),
            "[lacewing.convolution_plan] these tensors are not a packed plan");
}

TEST(ConvolutionPlan, ViewsOfOneTensorAreNotTheSameVoxels) {
  const at::Tensor line = at::arange(30, at::kInt).view({30, 1}).mul(at::tensor({0, 1}, at::kInt));
  const ConvolutionKernel kernel{{3}, {}, {}};

  const auto parts = line.split(10);
  EXPECT_EQ(ConvolutionPlan::build(parts[0], kernel, parts[1]).pair_count(), 1);
  EXPECT_EQ(ConvolutionPlan::build(line, kernel, line.narrow(0, 0, 10)).pair_count(), 29);
  EXPECT_EQ(ConvolutionPlan::build_transposed(line, kernel, line.narrow(0, 0, 10)).pair_count(), 29);
  EXPECT_EQ(ConvolutionPlan::build(line, kernel, line.clone()).sizes(), ConvolutionPlan::build(line, kernel).sizes());
}

TEST(ConvolutionPlan, NoticesCoordinatesThatWereChanged) {
  const at::Tensor voxels = cloud(20);
  const auto plan = ConvolutionPlan::build(voxels, {{3, 3, 3}, {}, {}});

  plan.check_source(voxels);
  voxels.add_(1);

  for (const ConvolutionPlan& stale : {plan, plan.transposed()}) {
    EXPECT_EQ(sentence_of([&] { stale.check_source(voxels); }),
              "[lacewing.convolution_plan] the coordinates of the plan were changed in place after it was built");
  }
}

TEST(SparseConv, AlgorithmsAgree) {
  const auto plan = ConvolutionPlan::build(cloud(70), {{3, 3, 3}, {}, {2, 1, 1}}, ConvolutionTargets::reachable);
  const auto gemm = plan.with_algorithm(ConvolutionAlgorithm::gather_gemm_scatter);
  const at::Tensor x = random({70, 8});
  const at::Tensor weight = random({27, 1, 8, 16});

  EXPECT_TRUE(at::allclose(sparse_conv(x, weight, plan), sparse_conv(x, weight, gemm)));
  EXPECT_GT(sparse_conv_workspace(x, weight, gemm), 0);
  EXPECT_EQ(sparse_conv_workspace(x, weight, plan), 0);
}

TEST(SparseConv, GenerativeAndGivenTargets) {
  const at::Tensor coarse = cloud(10);
  const ConvolutionKernel kernel{{2, 2, 2}, {2, 2, 2}, {}};

  const auto all = ConvolutionPlan::build_transposed(coarse, kernel);
  const auto some = ConvolutionPlan::build_transposed(coarse, kernel, all.target().narrow(0, 3, 20));

  EXPECT_EQ(all.target().size(0), 80);
  EXPECT_EQ(some.pair_count(), 20);
  const auto [source, target] = all.pairs(0);
  EXPECT_EQ(source.size(0), 10);
  EXPECT_TRUE(at::equal(all.target().index_select(0, target.to(at::kLong)).narrow(1, 1, 3),
                        2 * coarse.index_select(0, source.to(at::kLong)).narrow(1, 1, 3)));
}

TEST(MaxPool, TakesTheLargest) {
  const at::Tensor voxels = at::tensor({0, 0, 0, 1, 0, 2}, at::kInt).view({3, 2});
  const auto plan = ConvolutionPlan::build(voxels, {{2}, {2}, {}}, ConvolutionTargets::strided);
  const at::Tensor x = at::tensor({1.0, 3.0, 2.0}).view({3, 1}).requires_grad_();

  EXPECT_TRUE(at::equal(sum_pool(x, plan), pool(x, plan, PoolMode::sum)));
  EXPECT_TRUE(at::equal(avg_pool(x, plan), pool(x, plan, PoolMode::avg)));
  EXPECT_TRUE(at::equal(max_pool(x, plan), max_pool_with_indices(x, plan).values));
  const auto [values, rows] = max_pool_with_indices(x, plan);
  values.sum().backward();

  EXPECT_TRUE(at::equal(values.detach().view({-1}), at::tensor({3.0, 2.0})));
  EXPECT_TRUE(at::equal(rows.view({-1}), at::tensor({1, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(x.grad().view({-1}), at::tensor({0.0, 1.0, 1.0})));
  EXPECT_TRUE(at::equal(max_unpool(values, rows, plan).view({-1}), at::tensor({0.0, 3.0, 2.0})));
  EXPECT_EQ(sentence_of([&] { return max_unpool(values, at::full_like(rows, 3), plan); }),
            "[lacewing.max_unpool] row 3 is out of range: the plan's source has 3 voxels");
}

TEST(UniqueVoxels, AreSortedWithTheirRows) {
  const at::Tensor voxels = at::tensor({1, 5, 0, -1, 1, 5}, at::kInt).view({3, 2});

  const auto [unique, first, inverse] = unique_voxels(voxels);

  EXPECT_TRUE(at::equal(unique, at::tensor({0, -1, 1, 5}, at::kInt).view({2, 2})));
  EXPECT_TRUE(at::equal(first, at::tensor({1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(inverse, at::tensor({1, 0, 1}, at::kLong)));
}

TEST(BadInput, GetsASentence) {
  const at::Tensor twice = at::zeros({2, 4}, at::kInt);
  const auto plan = ConvolutionPlan::build(cloud(5), {{1, 1, 1}, {}, {}});

  EXPECT_EQ(sentence_of([&] { return ConvolutionPlan::build(twice, {{3, 3, 3}, {}, {}}); }),
            "[lacewing.convolution_plan] coordinates[1] = (0, 0, 0, 0) repeats coordinates[0]: voxels must be distinct "
            "(unique_voxels merges them)");
  EXPECT_EQ(sentence_of([&] { return sparse_conv(at::zeros({4, 2}), at::zeros({1, 1, 2, 2}), plan); }),
            "[lacewing.sparse_conv] features of shape (4, 2) do not belong to this plan: its source coordinates have 5 "
            "voxels");
  EXPECT_EQ(sentence_of([&] { return plan.pairs(1); }),
            "[lacewing.convolution_plan] tap 1 is out of range: there are 1");
}

}  // namespace
}  // namespace lacewing
