// Kernel maps against brute force, and the convolution kernels of every ISA level against the reference.
#include <functional>

#include "maps.h"

namespace lacewing::kernels::test {
namespace {

using Pair = std::array<std::int64_t, 3>;

std::vector<Pair> brute_force(const Coordinates& fine, const Coordinates& coarse, const Geometry& geometry) {
  std::vector<Pair> found;
  for (std::int64_t tap = 0; tap < geometry.taps(); ++tap) {
    for (std::int64_t f = 0; f < fine.rows; ++f) {
      for (std::int64_t c = 0; c < coarse.rows; ++c) {
        bool meets = fine.row(f)[0] == coarse.row(c)[0];
        std::int64_t rest = tap;
        for (int a = geometry.axes - 1; a >= 0; --a) {
          const auto axis = static_cast<std::size_t>(a);
          const std::int64_t offset = geometry.offset(a, rest % geometry.kernel[axis]);
          rest /= geometry.kernel[axis];
          meets = meets && fine.row(f)[a + 1] == geometry.stride[axis] * coarse.row(c)[a + 1] + offset;
        }
        if (meets) {
          found.push_back({tap, f, c});
        }
      }
    }
  }
  return found;
}

std::vector<Pair> pairs_of(const ConvMap& map) {
  std::vector<Pair> pairs;
  for (std::int64_t tap = 0; tap < map.taps; ++tap) {
    for (std::int64_t p = map.tap_offsets[tap]; p < map.tap_offsets[tap + 1]; ++p) {
      pairs.push_back({tap, map.source[p], map.target[p]});
    }
  }
  return pairs;
}

/// Every pair lies in the tile of its target, and tiles follow each other.
void expect_tiles(const ConvMap& map) {
  std::vector<std::int64_t> position(static_cast<std::size_t>(map.target_rows));
  for (std::int64_t i = 0; i < map.target_rows; ++i) {
    position[static_cast<std::size_t>(map.target_order == nullptr ? i : map.target_order[i])] = i;
  }
  for (std::int64_t tap = 0; tap < map.taps; ++tap) {
    const std::int32_t* const table = map.target_tiles + tap * (map.tiles() + 1);
    const std::int64_t begin = map.tap_offsets[tap];
    ASSERT_EQ(table[0], 0);
    ASSERT_EQ(table[map.tiles()], map.tap_offsets[tap + 1] - begin);
    for (std::int64_t tile = 0; tile < map.tiles(); ++tile) {
      for (std::int64_t p = begin + table[tile]; p < begin + table[tile + 1]; ++p) {
        ASSERT_EQ(position[static_cast<std::size_t>(map.target[p])] / kConvTileRows, tile);
      }
    }
  }
}

TEST(KernelMap, IsBruteForceInEveryDimension) {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const int axes = 1 + round % 4;
    Geometry geometry;
    geometry.axes = axes;
    const bool same = round % 3 == 0;
    for (int a = 0; a < axes; ++a) {
      const auto axis = static_cast<std::size_t>(a);
      geometry.kernel[axis] = 1 + random.below(4);
      geometry.stride[axis] = same ? 1 : 1 + random.below(3);
      geometry.dilation[axis] = 1 + random.below(2);
    }
    const std::int64_t extent = std::array<std::int64_t, 4>{300, 14, 5, 3}[static_cast<std::size_t>(axes - 1)];
    const auto fine_rows = random_cloud(random, 150, axes, extent);
    const auto coarse_rows = random_cloud(random, 140, axes, extent);
    const Coordinates fine{fine_rows.data(), 150, axes};
    const Coordinates coarse = same ? fine : Coordinates{coarse_rows.data(), 140, axes};

    Plan plan = build(fine, coarse, geometry, same, 1 + round % 3);

    auto found = pairs_of(plan.map());
    std::sort(found.begin(), found.end());
    ASSERT_EQ(found, brute_force(fine, coarse, geometry));
    expect_tiles(plan.map());
    plan.meta = plan.meta.reverse();
    expect_tiles(plan.map());
  }
}

TEST(KernelMap, DoesNotDependOnTheNumberOfThreads) {
  Random random(2);
  const auto rows = random_cloud(random, 9000, 3, 40);
  const Coordinates cloud{rows.data(), 9000, 3};
  Geometry geometry;
  geometry.axes = 3;
  geometry.kernel = {3, 3, 3, 1};

  const Plan one = build(cloud, cloud, geometry, true, 1);
  const Plan three = build(cloud, cloud, geometry, true, 3);

  EXPECT_EQ(one.array, three.array);
  EXPECT_EQ(one.meta.to_vector(), three.meta.to_vector());
  EXPECT_EQ(one.meta.identity_tap, 13);
}

struct Channels {
  std::int64_t groups, in, out;
};
/// With more input channels than a piece of the weight has, with more columns, and with blocks of two widths.
constexpr Channels kChannels[] = {{1, 4, 32}, {1, 16, 16},  {1, 64, 64}, {1, 37, 53}, {3, 5, 9},
                                  {20, 1, 1}, {1, 260, 70}, {1, 5, 332}, {1, 12, 112}};

/// Operands of a convolution in one type, small integers so that every sum is exact.
struct ConvProblem {
  ConvProblem(ScalarType type, Channels c, const ConvMap& map, bool transposed, Random& random)
      : x(type, map.source_rows * c.groups * c.in),
        weight(type, map.taps * c.groups * c.in * c.out),
        bias(type, c.groups * c.out),
        grad(type, map.target_rows * c.groups * c.out),
        scale(type == ScalarType::f64 ? type : ScalarType::f32, c.groups * c.out),
        shift(scale) {
    for (Array* const array : {&x, &weight, &bias, &grad, &scale, &shift}) {
      for (std::int64_t i = 0; i < array->count(); ++i) {
        array->put(i, random.integer());
      }
    }
    conv.type = weight_grad.type = type;
    conv.map = weight_grad.map = map;
    conv.groups = weight_grad.groups = c.groups;
    conv.in = weight_grad.in = c.in;
    conv.out = weight_grad.out = c.out;
    conv.x = weight_grad.x = x.data();
    conv.x_stride = weight_grad.x_stride = c.groups * c.in;
    conv.weight = weight.data();
    conv.transposed = transposed;
    conv.bias = bias.data();
    weight_grad.grad = grad.data();
    weight_grad.grad_stride = c.groups * c.out;
  }

  /// Norm, residual (the array of the upstream gradient) and ReLU after the convolution.
  void finish(bool norm, bool residual, bool relu) {
    conv.finish.scale = norm ? scale.data() : nullptr;
    conv.finish.shift = norm ? shift.data() : nullptr;
    conv.finish.residual = residual ? grad.data() : nullptr;
    conv.finish.residual_stride = weight_grad.grad_stride;
    conv.finish.relu = relu;
  }

  Array run_conv(const std::function<void(const ConvArgs&)>& run) {
    Array y(conv.type, conv.map.target_rows * conv.groups * conv.out, 16);
    conv.y = y.data();
    run(conv);
    EXPECT_TRUE(y.guard_untouched());
    return y;
  }
  Array run_weight_grad(const std::function<void(const ConvWeightGradArgs&)>& run) {
    Array out(conv.type, weight.count(), 16);
    weight_grad.weight_grad = out.data();
    run(weight_grad);
    EXPECT_TRUE(out.guard_untouched());
    return out;
  }

  Array x, weight, bias, grad, scale, shift;
  ConvArgs conv;
  ConvWeightGradArgs weight_grad;
};

/// A submanifold 3 x 3 plan.
Plan flat_plan(Random& random) {
  const auto rows = random_cloud(random, 700, 2, 20);
  const Coordinates cloud{rows.data(), 700, 2};
  Geometry geometry;
  geometry.axes = 2;
  geometry.kernel = {3, 3, 1, 1};
  return build(cloud, cloud, geometry, true, 1);
}

TEST(ConvKernels, EveryLevelIsTheReference) {
  Random random(3);
  const Plan plan = flat_plan(random);
  for (const ScalarType type : {ScalarType::f16, ScalarType::bf16, ScalarType::f32, ScalarType::f64}) {
    for (const Channels channels : kChannels) {
      for (const bool transposed : {false, true}) {
        ConvProblem problem(type, channels, plan.map(), transposed, random);
        const Array expected = problem.run_conv([](const ConvArgs& args) { reference::conv(args); });
        const Array expected_grad =
            problem.run_weight_grad([](const ConvWeightGradArgs& args) { reference::conv_weight_grad(args); });
        for (const Level level : levels()) {
          for (const int threads : {1, 3}) {
            if (level == Level::reference) {
              continue;
            }
            SCOPED_TRACE(std::string(name_of(level)) + " " + name(type) + " " + std::to_string(channels.in) + "->" +
                         std::to_string(channels.out) + (transposed ? " transposed" : ""));
            chosen_isa = static_cast<cpu::Isa>(level);
            const CpuExecutor executor = backwards_executor(threads);
            const Array y = problem.run_conv([&](const ConvArgs& args) {
              Workspace workspace(cpu::conv_workspace(args, threads));
              cpu::conv(args, executor, workspace.data());
              EXPECT_TRUE(workspace.guard_untouched());
            });
            const Array weight_grad = problem.run_weight_grad([&](const ConvWeightGradArgs& args) {
              Workspace workspace(cpu::conv_weight_grad_workspace(args, threads));
              cpu::conv_weight_grad(args, executor, workspace.data());
              EXPECT_TRUE(workspace.guard_untouched());
            });
            EXPECT_EQ(y, expected);
            EXPECT_EQ(weight_grad, expected_grad);
          }
        }
      }
    }
  }
}

TEST(ConvKernels, FinishAsTheReference) {
  Random random(4);
  const Plan plan = flat_plan(random);
  for (const ScalarType type : {ScalarType::f16, ScalarType::bf16, ScalarType::f32, ScalarType::f64}) {
    for (const Channels channels : kChannels) {
      ConvProblem problem(type, channels, plan.map(), false, random);
      for (int what = 1; what < 8; ++what) {
        problem.finish((what & 1) != 0, (what & 2) != 0, (what & 4) != 0);
        const Array expected = problem.run_conv([](const ConvArgs& args) { reference::conv(args); });
        for (const Level level : levels()) {
          if (level == Level::reference) {
            continue;
          }
          SCOPED_TRACE(std::string(name_of(level)) + " " + name(type) + " " + std::to_string(channels.in) + "->" +
                       std::to_string(channels.out) + ", finish " + std::to_string(what));
          chosen_isa = static_cast<cpu::Isa>(level);
          const Array y = problem.run_conv([&](const ConvArgs& args) {
            Workspace workspace(cpu::conv_workspace(args, 3));
            cpu::conv(args, backwards_executor(3), workspace.data());
            EXPECT_TRUE(workspace.guard_untouched());
          });
          EXPECT_EQ(y, expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lacewing::kernels::test
