// The kernels of SpMM and SDDMM on the host, against the reference, and the order of their sums.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gather_sum.h"
#include "kernels/cuda/row_dots.h"
#include "kernels/gather_sum_dots.h"
#include "kernels/terms.h"

namespace lacewing::kernels {
namespace {

struct Case {
  std::vector<std::int64_t> lengths;  ///< terms of each row
  std::int64_t columns = 0;
  std::int64_t channels = 0;
  std::int64_t batch = 1;
  bool numbers = true;
  bool scale = false;
  bool ordered = false;  ///< numbers and scale in another order than the terms
  std::int64_t padding = 0;
};

template <typename T>
T from_double(double value) {
  if constexpr (is_complex_v<T>) {
    using Part = decltype(T::re);
    return {static_cast<Part>(value), static_cast<Part>(std::sin(value * 7))};
  } else {
    return narrow<T>(static_cast<accumulate_t<T>>(value));
  }
}

template <typename T>
std::vector<T> random_values(std::int64_t count, std::mt19937& random) {
  std::uniform_real_distribution<double> any(-1, 1);
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(from_double<T>(any(random)));
  }
  return values;
}

/// A call and the memory that it points to. Unused memory is NaN: who reads it is seen.
template <typename T, typename Index>
class Call {
 public:
  Call(const Case& c, ScalarType type, Pattern pattern, unsigned seed) : case_(c) {
    std::mt19937 random(seed);
    segments_.push_back(0);
    for (const std::int64_t length : c.lengths) {
      segments_.push_back(segments_.back() + static_cast<Index>(length));
    }
    const auto terms = static_cast<std::int64_t>(segments_.back());
    for (std::int64_t t = 0; t < terms; ++t) {
      columns_.push_back(static_cast<Index>(random() % static_cast<std::uint64_t>(c.columns)));
      order_.push_back(static_cast<Index>(t));
    }
    std::shuffle(order_.begin(), order_.end(), random);
    const std::int64_t stride = c.channels + c.padding;
    x_ = random_values<T>(c.batch * c.columns * stride, random);
    scale_ = random_values<T>(terms, random);
    args.type = type;
    args.pattern = pattern;
    args.batch = c.batch;
    args.extent_a = c.channels;
    args.x = {x_.data(), c.columns * stride, stride, 1, 0, c.columns, is_complex_v<T>};
    args.scale = c.scale ? scale_.data() : nullptr;
    args.conjugate_scale = c.scale && is_complex_v<T>;
    args.terms.index1 = columns_.data();
    args.terms.order = c.ordered ? order_.data() : nullptr;
    args.terms.wide = sizeof(Index) == 8;
    args.terms.terms = args.terms.entries = terms;
    if (pattern == Pattern::inner) {
      const auto rows = static_cast<std::int64_t>(c.lengths.size());
      for (std::int64_t row = 0; row < rows; ++row) {
        rows_.insert(rows_.end(), static_cast<std::size_t>(c.lengths[static_cast<std::size_t>(row)]),
                     static_cast<Index>(row));
      }
      y_ = random_values<T>(c.batch * rows * stride, random);
      args.y = {y_.data(), rows * stride, stride, 1, 0, rows, false};
      args.terms.index2 = rows_.data();
      args.terms.rows = terms;
      args.z = {nullptr, terms, 1, 0, 0, terms, false};
      outputs_ = c.batch * terms;
    } else {
      y_ = random_values<T>(c.batch * terms, random);
      if (c.numbers) {
        args.y = {y_.data(), terms, 1, 0, 0, terms, false};
        args.terms.index2 = c.ordered ? order_.data() : nullptr;
      }
      args.terms.segments = segments_.data();
      args.terms.rows = static_cast<std::int64_t>(c.lengths.size());
      args.z = {nullptr, args.terms.rows * c.channels, c.channels, 1, 0, args.terms.rows, false};
      outputs_ = c.batch * args.terms.rows * c.channels;
    }
  }

  template <typename Run>
  std::vector<T> run(Run&& run) {
    std::vector<T> z(static_cast<std::size_t>(outputs_), from_double<T>(NAN));
    args.z.data = z.data();
    run(args);
    args.z.data = nullptr;
    return z;
  }
  std::vector<T> on_host_device() {
    return run([&](const ProductArgs& call) {
      if (call.pattern == Pattern::inner) {
        ASSERT_TRUE(cuda::is_entry_dots(call));
        return cuda::entry_dots(call, {});
      }
      ASSERT_TRUE(cuda::is_gather_sum(call));
      std::vector<double> space(static_cast<std::size_t>(cuda::gather_sum_workspace(call) / 8 + 1), NAN);
      cuda::gather_sum(call, {}, space.data());
    });
  }
  std::vector<T> reference() {
    return run([](const ProductArgs& call) { reference::product(call); });
  }

  ProductArgs args;

 private:
  Case case_;
  std::vector<Index> segments_, columns_, order_, rows_;
  std::vector<T> x_, y_, scale_;
  std::int64_t outputs_ = 0;
};

template <typename T>
double distance(T a, T b) {
  if constexpr (is_complex_v<T>) {
    return std::hypot(static_cast<double>(a.re - b.re), static_cast<double>(a.im - b.im));
  } else {
    return std::abs(static_cast<double>(widen(a)) - static_cast<double>(widen(b)));
  }
}

template <typename T>
void expect_close(const std::vector<T>& a, const std::vector<T>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_LE(distance(a[i], b[i]), tolerance * (1 + distance(b[i], T{}))) << "at " << i;
  }
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::vector<std::int64_t> short_rows() { return {3, 0, 1, 7, 4, 0, 0, 12, 5, 2, 31, 8}; }
std::vector<std::int64_t> long_rows() { return {0, 513, 2, 0, 511, 512, 1, 1400, 0, 255, 256, 700, 3, 0}; }

template <typename T, typename Index>
void expect_reference(ScalarType type, double tolerance) {
  unsigned seed = 0;
  for (const Pattern pattern : {Pattern::vecsca, Pattern::inner}) {
    for (const auto& lengths : {short_rows(), long_rows()}) {
      for (const std::int64_t channels : {1, 3, 8, 17, 40}) {
        for (const bool ordered : {false, true}) {
          const Case c{lengths,       9,
                       channels,      1 + static_cast<std::int64_t>(seed % 2),
                       seed % 3 != 0, seed % 4 == 1,
                       ordered,       static_cast<std::int64_t>(seed % 5 == 2)};
          Call<T, Index> call(c, type, pattern, ++seed);
          expect_close(call.on_host_device(), call.reference(), tolerance);
        }
      }
    }
  }
}

TEST(CudaOnHost, SumsOfGatheredRowsAreTheReferences) {
  expect_reference<float, std::int32_t>(ScalarType::f32, 1e-4);
  expect_reference<double, std::int64_t>(ScalarType::f64, 2e-14);
}

TEST(CudaOnHost, SumsOfGatheredRowsOfHalfAndComplexAreTheReferences) {
  expect_reference<Half, std::int32_t>(ScalarType::f16, 2e-3);
  expect_reference<BFloat16, std::int32_t>(ScalarType::bf16, 2e-2);
  expect_reference<Complex<float>, std::int64_t>(ScalarType::c64, 2e-5);  // the reference adds 1,400 terms in float
}

/// Both gradients of a matrix with one number for each term, against the two kernels that make them one by one.
template <typename T, typename Index>
void expect_both_gradients(ScalarType type) {
  unsigned seed = 40;
  for (const auto& lengths : {short_rows(), long_rows()}) {
    for (const std::int64_t channels : {1, 7, 16, 40, 136}) {
      const Case c{lengths, 9, channels, 1, true, false, /*ordered=*/true, static_cast<std::int64_t>(seed % 2) * 8};
      Call<T, Index> sum(c, type, Pattern::vecsca, ++seed);
      const std::int64_t rows = sum.args.terms.rows;
      const std::int64_t terms = sum.args.terms.terms;
      std::mt19937 random(seed);
      const auto own = random_values<T>(rows * channels, random);
      std::vector<T> dots(static_cast<std::size_t>(terms), from_double<T>(NAN));
      std::vector<T> expected(dots);
      std::vector<Index> row_of(static_cast<std::size_t>(terms));
      for (std::int64_t row = 0, t = 0; row < rows; ++row) {
        for (std::int64_t k = 0; k < lengths[static_cast<std::size_t>(row)]; ++k) {
          row_of[static_cast<std::size_t>(t++)] = static_cast<Index>(row);
        }
      }
      ProductArgs dot = sum.args;
      dot.pattern = Pattern::inner;
      dot.y = dot.x;
      dot.x = {own.data(), 0, channels, 1, 0, rows, false};
      dot.terms.index2 = dot.terms.index1;
      dot.terms.index1 = row_of.data();
      dot.terms.segments = dot.terms.order = nullptr;
      dot.terms.rows = terms;
      std::vector<T> by_term(expected);
      dot.z = {by_term.data(), terms, 1, 0, 0, terms, false};
      cuda::entry_dots(dot, {});
      const auto* const order = static_cast<const Index*>(sum.args.terms.index2);
      for (std::size_t t = 0; t < by_term.size(); ++t) {
        expected[static_cast<std::size_t>(order[t])] = by_term[t];
      }
      const std::vector<T> alone = sum.on_host_device();

      if (!cuda::is_gather_sum_dots({sum.args, own.data(), channels, dots.data()})) {
        EXPECT_LE(channels, 16);
        continue;
      }
      const std::vector<T> z = sum.run([&](const ProductArgs& call) {
        const GatherSumDotsArgs both{call, own.data(), channels, dots.data()};
        std::vector<double> space(static_cast<std::size_t>(cuda::gather_sum_dots_workspace(both) / 8 + 1), NAN);
        cuda::gather_sum_dots(both, {}, space.data());
      });

      EXPECT_TRUE(same_bits(dots, expected)) << channels << " channels";
      EXPECT_TRUE(same_bits(z, alone)) << channels << " channels";
    }
  }
}

TEST(CudaOnHost, BothGradientsOfAMatrixAreThoseOfTheKernelsForOne) {
  expect_both_gradients<float, std::int32_t>(ScalarType::f32);
  expect_both_gradients<double, std::int64_t>(ScalarType::f64);
  expect_both_gradients<Half, std::int32_t>(ScalarType::f16);
}

TEST(CudaOnHost, TheBitsOfARowDependOnTheRowAlone) {
  for (const std::int64_t channels : {1, 8}) {
    const Case c{{700, 3, 0, 900, 40}, 9, channels, 1, true, false, false, 0};
    Call<float, std::int32_t> call(c, ScalarType::f32, Pattern::vecsca, 5);
    auto crowd = call.on_host_device();
    crowd.resize(static_cast<std::size_t>(channels));
    call.args.terms.terms = 700;
    call.args.terms.rows = 1;
    for (const std::int64_t blocks : {1, 3}) {
      cuda::host_facts().max_blocks = blocks;

      auto alone = call.on_host_device();

      alone.resize(static_cast<std::size_t>(channels));
      EXPECT_TRUE(same_bits(crowd, alone)) << channels << " channels, " << blocks << " blocks";
    }
    cuda::host_facts() = {};
  }
}

TEST(CudaOnHost, RowsOfFewTermsHaveTheBitsOfTiles) {
  // Where rows have few terms in the mean, a thread takes each: the same rows among empty ones.
  for (const std::int64_t channels : {1, 3}) {
    std::vector<std::int64_t> lengths = long_rows();
    const Case dense{lengths, 9, channels, 1, true, false, true, 0};
    Call<float, std::int32_t> tiles(dense, ScalarType::f32, Pattern::vecsca, 3);
    auto expected = tiles.on_host_device();
    lengths.resize(9000, 0);
    const Case sparse{lengths, 9, channels, 1, true, false, true, 0};
    Call<float, std::int32_t> threads(sparse, ScalarType::f32, Pattern::vecsca, 3);

    auto found = threads.on_host_device();

    found.resize(expected.size());
    EXPECT_TRUE(same_bits(found, expected)) << channels << " channels";
  }
}

TEST(CudaOnHost, TilesOfManyRows) {
  // Rows that begin at a tile's end, tiles of empty rows alone, and long rows over several tiles.
  std::vector<std::int64_t> lengths(6000, 0);
  lengths[0] = 2047;
  lengths[1] = 7000;
  lengths[2] = 511;
  lengths[3] = 512;
  for (std::size_t i = 5100; i < 5900; ++i) {
    lengths[i] = static_cast<std::int64_t>(i % 7);
  }
  lengths.back() = 700;
  const Case c{lengths, 9, 2, 2, true, false, true, 0};
  Call<double, std::int32_t> call(c, ScalarType::f64, Pattern::vecsca, 5);

  expect_close(call.on_host_device(), call.reference(), 1e-13);  // sums of 7,000 terms that cancel
}

TEST(CudaOnHost, IndicesOfBothWidthsGiveTheSameBits) {
  for (const auto& lengths : {short_rows(), long_rows()}) {
    for (const std::int64_t channels : {5, 16, 24, 136}) {
      for (const bool ordered : {false, true}) {
        for (const bool numbers : {false, true}) {
          const Case c{lengths, 9, channels, 2, numbers, !numbers, ordered, 0};
          Call<float, std::int32_t> narrow(c, ScalarType::f32, Pattern::vecsca, 11);
          Call<float, std::int64_t> wide(c, ScalarType::f32, Pattern::vecsca, 11);

          EXPECT_TRUE(same_bits(narrow.on_host_device(), wide.on_host_device())) << channels << " channels";
        }
      }
    }
  }
}

TEST(CudaOnHost, LongSumsKeepTheirDigits) {
  constexpr std::int64_t kTerms = 1 << 20;
  const Case c{{kTerms}, kTerms, 1, 1, false, false, false, 0};
  Call<float, std::int32_t> call(c, ScalarType::f32, Pattern::vecsca, 1);
  std::vector<float> x(kTerms);
  std::mt19937 random(2);
  for (float& value : x) {
    value = std::uniform_real_distribution<float>(0, 1)(random);
  }
  call.args.x.data = x.data();
  call.args.terms.index1 = nullptr;
  double exact = 0;
  for (const float value : x) {
    exact += static_cast<double>(value);
  }

  const auto z = call.on_host_device();

  EXPECT_LE(std::abs(static_cast<double>(z[0]) - exact), 2e-7 * exact);
}

TEST(CudaOnHost, AChoiceFollowsFromSizes) {
  cuda::GatherSumSizes sizes{169'343, 1'170'000, true, 128, 169'343, 4, 2048, 4, 4, 50 << 20};

  const cuda::GatherSumChoice many = cuda::choose_gather_sum(sizes);
  sizes.channels = 1;
  sizes.vector_width = 1;
  const cuda::GatherSumChoice one = cuda::choose_gather_sum(sizes);
  sizes.grouped = false;

  EXPECT_EQ(many.width, 4);
  EXPECT_EQ((1 << many.lane_bits) * many.width * many.channel_blocks, 128);
  EXPECT_EQ(many.tiles, 0);
  EXPECT_EQ(one.tiles, (169'343 + 1'170'000 + 2047) / 2048);
  EXPECT_EQ(one.spans, (1'170'000 + 255) / 256);
  EXPECT_EQ(cuda::choose_gather_sum(sizes).spans, 0);
}

TEST(CudaOnHost, ADotsShapeFollowsFromItsVectors) {
  EXPECT_EQ(cuda::DotShape::of(1), (cuda::DotShape{0, 1, 1}));
  EXPECT_EQ(cuda::DotShape::of(4), (cuda::DotShape{2, 1, 1}));
  EXPECT_EQ(cuda::DotShape::of(5), (cuda::DotShape{2, 2, 1}));
  EXPECT_EQ(cuda::DotShape::of(16), (cuda::DotShape{3, 2, 1}));
  EXPECT_EQ(cuda::DotShape::of(33), (cuda::DotShape{3, 2, 3}));
}

}  // namespace
}  // namespace lacewing::kernels
