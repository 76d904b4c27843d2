// Values and handles: shared between threads where they are const, whole after they were moved from, refused with a
// sentence where they are null or no value of their type.
#include <latch>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include <lacewing/backend.h>
#include <lacewing/conv_layers.h>
#include <lacewing/etp.h>
#include <lacewing/tensor.h>

#include "../conv/sentences.h"

namespace lacewing {
namespace {

/// (voxels, 2): one cloud on a line.
at::Tensor line(std::int64_t voxels) {
  return at::stack({at::zeros({voxels}, at::kInt), at::arange(voxels, at::kInt)}, 1);
}

ConvolutionPlan plan_of_line() { return ConvolutionPlan::build(line(10), {{3}, {}, {}}); }

/// Runs f(thread) on so many threads, which begin together.
template <typename F>
void at_once(int threads, F&& f) {
  std::latch ready(threads);
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      ready.arrive_and_wait();
      f(t);
    });
  }
  for (std::thread& each : all) {
    each.join();
  }
}

TEST(PlanCache, ThreadsShareItAndBuildEachPlanOnce) {
  constexpr int kThreads = 8;
  constexpr int kPlans = 24;
  for (int round = 0; round < 20; ++round) {
    const VoxelTensor x(at::ones({2, 2}), line(2));
    std::vector<std::map<std::int64_t, ConvolutionPlan>> found(kThreads);

    at_once(kThreads, [&](int t) {
      const VoxelTensor y = x.replace(x.features());
      for (std::int64_t i = 0; i < kPlans; ++i) {
        const std::int64_t size = 1 + (i + t) % kPlans;
        found[t].emplace(size, y.cache()->plan(y.coordinates(), {{size}, {2}, {}}, ConvolutionTargets::strided));
      }
    });

    EXPECT_EQ(x.cache()->size(), kPlans);
    for (const auto& plans : found) {
      for (const auto& [size, plan] : plans) {
        EXPECT_TRUE(plan.array().is_same(found[0].at(size).array()));
        EXPECT_TRUE(plan.target().is_same(found[0].at(1).target()));
      }
    }
  }
}

TEST(SparseTensor, ComponentsOutliveTheTensor) {
  const at::Tensor s = lacewing::sparse_coo_tensor(at::tensor({0, 2}, at::kLong).view({1, 2}), at::tensor({1.0, 2.0}),
                                                   at::IntArrayRef({3}));

  const at::Tensor& of_a_temporary = lacewing::values(s * 2);

  EXPECT_TRUE(of_a_temporary.equal(at::tensor({2.0, 4.0})));
  static_assert(!std::is_reference_v<decltype(lacewing::values(s))> &&
                !std::is_reference_v<decltype(lacewing::indices(s))> && !std::is_reference_v<decltype(fill_value(s))> &&
                !std::is_reference_v<decltype(plain_indices(s))> &&
                !std::is_reference_v<decltype(compressed_indices(s))>);
}

TEST(ConvolutionKernel, LeavesOutWhatIsOne) {
  const auto plan = ConvolutionPlan::build(line(10), {.size = {3}});

  EXPECT_EQ(plan.kernel().stride, std::vector<std::int64_t>{1});
}

TEST(Quantize, OneSizeServesAllAxes) {
  const at::Tensor points = at::randn({20, 3});
  const at::Tensor batch = at::zeros({}, at::kInt);

  EXPECT_TRUE(quantize(points, 0.1, batch).equal(quantize(points, {0.1, 0.1, 0.1}, batch)));
}

TEST(ReduceVoxels, NamesItsResults) {
  const at::Tensor voxels = at::tensor({0, 5, 0, 1, 0, 5}, at::kInt).view({3, 2});

  const ReducedVoxels merged = reduce_voxels(at::ones({3, 1}), voxels, VoxelReduction::sum);

  EXPECT_TRUE(merged.coordinates.equal(at::tensor({0, 1, 0, 5}, at::kInt).view({2, 2})));
  EXPECT_TRUE(merged.features.equal(at::tensor({1.0F, 2.0F}).view({2, 1})));
  EXPECT_TRUE(merged.inverse.equal(at::tensor({1, 0, 1}, at::kLong)));
}

TEST(MovedFrom, APlanIsStillWhole) {
  ConvolutionPlan plan = plan_of_line();

  const ConvolutionPlan taken = std::move(plan);

  EXPECT_EQ(plan.taps(), 3);  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(plan.pair_count(), taken.pair_count());
  EXPECT_EQ(sparse_conv(at::ones({10, 1}), at::ones({3, 1, 1, 1}), plan).size(0), 10);
}

TEST(MovedFrom, AVoxelTensorIsStillWhole) {
  VoxelTensor x(at::ones({10, 2}), line(10));

  const VoxelTensor taken = std::move(x);

  EXPECT_EQ(x.size(), 10);  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(x.batch_size(), 1);
  EXPECT_TRUE(x.cat(taken).cache() == taken.cache());
}

TEST(MovedFrom, APatternIsStillWhole) {
  etp::SparsePattern pattern = etp::fixed_degree(4, 6, 2, 9);

  const etp::SparsePattern taken = std::move(pattern);

  EXPECT_EQ(pattern.nse(), taken.nse());  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(pattern.matmul(at::ones({4}), at::ones({12})).size(0), 6);
}

TEST(MovedFrom, AnExecutorSaysSo) {
  etp::Executor executor(etp::make_cell(etp::CellOptions{}),
                         {etp::dense_primitive(false), {{"weight", at::ones({4, 6})}}});
  const etp::Executor taken = std::move(executor);
  constexpr const char* kSentence = "[lacewing.etp.Executor] this executor was moved from";

  EXPECT_EQ(sentence_of([&] { executor.step(at::ones({3, 4})); }), kSentence);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(sentence_of([&] { executor.reset_state(); }), kSentence);
  EXPECT_EQ(sentence_of([&] { executor.analysis(); }), kSentence);
  EXPECT_EQ(sentence_of([&] { return executor.hold(); }), kSentence);
  EXPECT_EQ(sentence_of([&] { executor.save(); }), kSentence);
}

TEST(MovedFrom, ALearnerIsStillWhole) {
  const auto cell = etp::make_cell(etp::CellOptions{});
  const auto executor = std::make_shared<etp::Executor>(
      cell, etp::Connection{etp::dense_primitive(false), {{"weight", at::ones({4, 6})}}});
  etp::Learner learner(executor, etp::Optimizer{.step = [] {}, .zero_grad = [] {}});

  const etp::Learner taken = std::move(learner);

  EXPECT_EQ(learner.step(at::ones({3, 4})).output.size(0), 3);  // NOLINT(bugprone-use-after-move): what is tested
}

TEST(EnumOutOfRange, IsRefused) {
  const ConvolutionPlan plan = plan_of_line();
  const at::Tensor x = at::ones({10, 2});
  PlanCache cache;

  EXPECT_EQ(
      sentence_of([&] { return ConvolutionPlan::build(line(10), {{3}, {}, {}}, static_cast<ConvolutionTargets>(77)); }),
      "[lacewing.convolution_plan] targets must be one of 3 values, not ConvolutionTargets(77)");
  EXPECT_EQ(sentence_of([&] { return cache.plan(line(10), {{3}, {}, {}}, static_cast<ConvolutionTargets>(3)); }),
            "[lacewing.convolution_plan] targets must be one of 3 values, not ConvolutionTargets(3)");
  EXPECT_EQ(sentence_of([&] { return plan.with_algorithm(static_cast<ConvolutionAlgorithm>(9)); }),
            "[lacewing.convolution_plan] algorithm must be one of 3 values, not ConvolutionAlgorithm(9)");
  EXPECT_EQ(sentence_of([] { const PlanCache refused(static_cast<ConvolutionAlgorithm>(9)); }),
            "[lacewing.PlanCache] algorithm must be one of 3 values, not ConvolutionAlgorithm(9)");
  EXPECT_EQ(sentence_of([&] { return pool(x, plan, static_cast<PoolMode>(77)); }),
            "[lacewing.sparse_pool] mode must be one of 3 values, not PoolMode(77)");
  EXPECT_EQ(sentence_of([&] { return global_pool(x, at::zeros({10}, at::kInt), 1, static_cast<PoolMode>(77)); }),
            "[lacewing.global_pool] mode must be one of 3 values, not PoolMode(77)");
  EXPECT_EQ(sentence_of([&] { return reduce_voxels(x, line(10), static_cast<VoxelReduction>(77)); }),
            "[lacewing.reduce_voxels] reduction must be one of 3 values, not VoxelReduction(77)");
  EXPECT_EQ(sentence_of([] { set_backend(static_cast<Backend>(77)); }),
            "[lacewing.backend] backend must be one of 2 values, not Backend(77)");
}

}  // namespace
}  // namespace lacewing
