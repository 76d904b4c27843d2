// The kernels of extremes and softmax by segments on the host, against their definitions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/segment_rows.h"

namespace lacewing::kernels {
namespace {

/// Random values in segments of these lengths, in another order where asked.
template <typename T, typename Index>
struct Call {
  std::vector<Index> segments{0}, order;
  std::vector<T> values;
  std::int64_t width;
  bool ordered;

  Call(const std::vector<std::int64_t>& lengths, std::int64_t row_width, bool in_another_order, unsigned seed)
      : width(row_width), ordered(in_another_order) {
    for (const std::int64_t length : lengths) {
      segments.push_back(segments.back() + static_cast<Index>(length));
    }
    order.resize(static_cast<std::size_t>(segments.back()));
    std::iota(order.begin(), order.end(), Index{0});
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> any(-4, 4);
    if (ordered) {
      std::shuffle(order.begin(), order.end(), random);
    }
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(order.size()) * width; ++i) {
      values.push_back(narrow<T>(static_cast<accumulate_t<T>>(any(random) * 5)));
    }
  }
  SegmentRows rows(ScalarType type) const {
    return {type,
            values.data(),
            ordered ? order.data() : nullptr,
            segments.data(),
            sizeof(Index) == 8,
            static_cast<std::int64_t>(segments.size()) - 1,
            width};
  }
  /// Calls f(group, column, the column's places in values).
  template <typename F>
  void each_column(F&& f) const {
    for (std::size_t g = 0; g + 1 < segments.size(); ++g) {
      for (std::int64_t c = 0; c < width; ++c) {
        std::vector<std::size_t> places;
        for (Index k = segments[g]; k < segments[g + 1]; ++k) {
          places.push_back(static_cast<std::size_t>(order[static_cast<std::size_t>(k)] * width + c));
        }
        f(static_cast<std::int64_t>(g), c, places);
      }
    }
  }
};

std::vector<std::int64_t> lengths() { return {3, 1, 1023, 8, 9, 1, 1500, 7, 1024, 2, 33}; }

template <typename T, typename Index>
void expect_extremes(ScalarType type) {
  for (const std::int64_t width : {1, 3}) {
    for (const bool ordered : {false, true}) {
      Call<T, Index> call(lengths(), width, ordered, 3);
      if constexpr (!std::is_same_v<T, std::int64_t>) {
        call.values[5] = narrow<T>(std::numeric_limits<float>::quiet_NaN());
        call.values[6] = narrow<T>(-std::numeric_limits<float>::infinity());
      }
      std::vector<T> out(lengths().size() * static_cast<std::size_t>(width));
      for (const bool largest : {false, true}) {
        cuda::segment_extreme(call.rows(type), largest, out.data(), {});

        call.each_column([&](std::int64_t g, std::int64_t c, const std::vector<std::size_t>& places) {
          auto best = widen(call.values[places[0]]);
          for (const std::size_t place : places) {
            const auto value = widen(call.values[place]);
            best = best != best     ? best
                   : value != value ? value
                   : largest        ? std::max(best, value)
                                    : std::min(best, value);
          }
          const auto found = widen(out[static_cast<std::size_t>(g * width + c)]);
          EXPECT_TRUE(found == best || (found != found && best != best)) << g << " " << c;
        });
      }
    }
  }
}

TEST(SegmentRowsOnHost, Extremes) {
  expect_extremes<float, std::int32_t>(ScalarType::f32);
  expect_extremes<Half, std::int64_t>(ScalarType::f16);
  expect_extremes<std::int64_t, std::int32_t>(ScalarType::i64);
}

template <typename T, typename Index>
void expect_softmax(ScalarType type, double tolerance) {
  std::vector<std::int64_t> some = lengths();
  some.insert(some.begin() + 2, 0);
  for (const std::int64_t width : {1, 2}) {
    for (const bool ordered : {false, true}) {
      const Call<T, Index> call(some, width, ordered, 4);
      std::vector<T> out(call.values.size(), narrow<T>(NAN));
      for (const bool logarithm : {false, true}) {
        cuda::segment_softmax(call.rows(type), logarithm, out.data(), {});

        call.each_column([&](std::int64_t g, std::int64_t, const std::vector<std::size_t>& places) {
          double sum = 0;
          for (const std::size_t place : places) {
            sum += std::exp(static_cast<double>(widen(call.values[place])));
          }
          for (const std::size_t place : places) {
            const double value = static_cast<double>(widen(call.values[place]));
            const double expected = logarithm ? value - std::log(sum) : std::exp(value) / sum;
            ASSERT_NEAR(static_cast<double>(widen(out[place])), expected, tolerance * (1 + std::abs(expected))) << g;
          }
        });
      }
    }
  }
}

TEST(SegmentRowsOnHost, Softmax) {
  expect_softmax<float, std::int32_t>(ScalarType::f32, 1e-5);
  expect_softmax<double, std::int64_t>(ScalarType::f64, 1e-13);
  expect_softmax<BFloat16, std::int32_t>(ScalarType::bf16, 1e-2);
}

TEST(SegmentRowsOnHost, TheBitsOfASegmentDependOnItAlone) {
  const Call<float, std::int32_t> crowd({40, 1500, 3, 700}, 1, false, 5);
  Call<float, std::int32_t> alone({40, 1500}, 1, false, 5);
  std::vector<float> all(crowd.values.size()), few(alone.values.size());
  alone.values.assign(crowd.values.begin(), crowd.values.begin() + 1540);

  cuda::segment_softmax(crowd.rows(ScalarType::f32), false, all.data(), {});
  cuda::host_facts().max_blocks = 1;
  cuda::segment_softmax(alone.rows(ScalarType::f32), false, few.data(), {});
  cuda::host_facts() = {};

  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
}

}  // namespace
}  // namespace lacewing::kernels
