// Maximum pooling and its gradient, on both executors of the CPU, against brute force over the pairs.
#include <cmath>

#include "kernels/pool.h"
#include "maps.h"

namespace lacewing::kernels::test {
namespace {

constexpr std::int64_t kChannels = 3;

/// Windows that overlap, over two clouds in random order, and an operand and a result of zeros for them.
struct Problem {
  Problem(ScalarType type, bool backward)
      : fine(random_cloud(random, 300, 2, 12)),
        coarse(random_cloud(random, 90, 2, 8)),
        plan(build({fine.data(), 300, 2}, {coarse.data(), 90, 2}, geometry(), false, 1)),
        map(plan.map()),
        operand(type, (backward ? map.target_rows : map.source_rows) * kChannels),
        result(type, (backward ? map.source_rows : map.target_rows) * kChannels, 16),
        arg(static_cast<std::size_t>(map.target_rows * kChannels), -1) {
    for (std::int64_t i = 0; i < result.count(); ++i) {
      result.put(i, 0);
    }
  }

  static Geometry geometry() {
    Geometry geometry;
    geometry.axes = 2;
    geometry.kernel = {3, 3, 1, 1};
    geometry.stride = {2, 1, 1, 1};
    return geometry;
  }

  template <typename Args>
  Args args(ScalarType type) {
    Args args;
    args.type = type;
    args.map = map;
    args.channels = kChannels;
    args.arg = arg.data();
    return args;
  }

  Random random{5};
  std::vector<std::int32_t> fine;
  std::vector<std::int32_t> coarse;
  Plan plan;
  ConvMap map;
  Array operand;
  Array result;
  std::vector<std::int64_t> arg;
};

struct Largest {
  double value = 0;
  std::int64_t source = -1;
};

/// The largest of a target's sources: the first of equals, NaN above all.
Largest largest(const ConvMap& map, const Array& x, std::int64_t target, std::int64_t channel) {
  Largest best;
  for (std::int64_t p = 0; p < map.pairs(); ++p) {
    const double value = x.get(map.source[p] * kChannels + channel).real();
    const bool wins = best.source < 0 || value > best.value || (std::isnan(value) && !std::isnan(best.value));
    if (map.target[p] == target && wins) {
      best = {value, map.source[p]};
    }
  }
  return best;
}

template <Device Dev>
void expect_brute_force(const PoolKernels<Dev>& kernels, const CpuExecutor& executor, ScalarType type) {
  Problem problem(type, false);
  for (std::int64_t i = 0; i < problem.operand.count(); ++i) {
    problem.operand.put(i, i % 17 == 0 ? std::nan("") : problem.random.integer());
  }
  auto args = problem.args<MaxPoolArgs>(type);
  args.x = problem.operand.data();
  args.y = problem.result.data();

  kernels.max(executor, args);

  for (std::int64_t i = 0; i < problem.result.count(); ++i) {
    const Largest best = largest(problem.map, problem.operand, i / kChannels, i % kChannels);
    ASSERT_EQ(problem.arg[static_cast<std::size_t>(i)], best.source);
    const double found = problem.result.get(i).real();
    ASSERT_TRUE(found == best.value || (std::isnan(found) && std::isnan(best.value)));
  }
  EXPECT_TRUE(problem.result.guard_untouched());
}

template <Device Dev>
void expect_gradient(const PoolKernels<Dev>& kernels, const CpuExecutor& executor, ScalarType type) {
  Problem problem(type, true);
  const ConvMap& map = problem.map;
  for (std::int64_t p = map.pairs() - 1; p >= 0; --p) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      if (problem.random.below(3) == 0) {
        problem.arg[static_cast<std::size_t>(map.target[p] * kChannels + c)] = map.source[p];
      }
    }
  }
  std::vector<double> expected(static_cast<std::size_t>(problem.result.count()), 0.0);
  for (std::int64_t i = 0; i < problem.operand.count(); ++i) {
    problem.operand.put(i, problem.random.integer());
    const std::int64_t source = problem.arg[static_cast<std::size_t>(i)];
    if (source >= 0) {
      expected[static_cast<std::size_t>(source * kChannels + i % kChannels)] += problem.operand.get(i).real();
    }
  }
  auto args = problem.args<MaxPoolGradArgs>(type);
  args.grad = problem.operand.data();
  args.out = problem.result.data();

  kernels.max_grad(executor, args);

  for (std::int64_t i = 0; i < problem.result.count(); ++i) {
    ASSERT_EQ(problem.result.get(i).real(), expected[static_cast<std::size_t>(i)]);
  }
  EXPECT_TRUE(problem.result.guard_untouched());
}

TEST(PoolKernels, TakeTheLargest) {
  for (const ScalarType type : {ScalarType::f16, ScalarType::bf16, ScalarType::f32, ScalarType::f64}) {
    expect_brute_force(cpu_pool_kernels(), backwards_executor(1), type);
    expect_brute_force(cpu_pool_kernels(), backwards_executor(3), type);
    expect_brute_force(reference_pool_kernels(), serial_executor(), type);
  }
}

TEST(PoolKernels, GiveTheGradientToTheSource) {
  for (const ScalarType type : {ScalarType::f32, ScalarType::f64}) {
    expect_gradient(cpu_pool_kernels(), backwards_executor(1), type);
    expect_gradient(cpu_pool_kernels(), backwards_executor(3), type);
    expect_gradient(reference_pool_kernels(), serial_executor(), type);
  }
}

}  // namespace
}  // namespace lacewing::kernels::test
