// Half, BFloat16 and Complex against c10's.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <gtest/gtest.h>

#include <lacewing/dispatch/scalar.h>

namespace lacewing {
namespace {

template <typename Ours, typename Theirs>
struct Narrow {
  using ours = Ours;
  using theirs = Theirs;

  static float their_float(std::uint16_t bits) { return static_cast<float>(Theirs(bits, Theirs::from_bits())); }
  static std::uint16_t their_bits(float value) { return Theirs(value).x; }
};

template <typename T>
class NarrowScalar : public testing::Test {};
using NarrowTypes = testing::Types<Narrow<Half, c10::Half>, Narrow<BFloat16, c10::BFloat16>>;
TYPED_TEST_SUITE(NarrowScalar, NarrowTypes);

TYPED_TEST(NarrowScalar, EveryPatternWidensAsC10) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);

    const float found = typename TypeParam::ours{bits}.to_float();

    const float expected = TypeParam::their_float(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(found)) << pattern;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected)) << pattern;
    }
  }
}

TYPED_TEST(NarrowScalar, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const typename TypeParam::ours value{static_cast<std::uint16_t>(pattern)};

    const auto back = TypeParam::ours::from_float(value.to_float());

    if (!std::isnan(value.to_float())) {
      ASSERT_EQ(back.bits, pattern);
    } else {
      ASSERT_TRUE(std::isnan(back.to_float())) << pattern;
    }
  }
}

// Around every representable value: itself, its neighbours in float, and the ties halfway to the next one.
TYPED_TEST(NarrowScalar, RoundsToNearestEvenAsC10) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const float value = TypeParam::their_float(static_cast<std::uint16_t>(pattern));
    const float next = TypeParam::their_float(static_cast<std::uint16_t>(pattern + 1));
    if (std::isnan(value)) {
      continue;
    }
    const float tie = value + (next - value) / 2;
    constexpr float up = std::numeric_limits<float>::infinity();
    for (const float probe : {value, std::nextafter(value, up), std::nextafter(value, -up), tie,
                              std::nextafter(tie, up), std::nextafter(tie, -up)}) {
      if (!std::isnan(probe)) {
        ASSERT_EQ(TypeParam::ours::from_float(probe).bits, TypeParam::their_bits(probe)) << pattern << " " << probe;
      }
    }
  }
}

// A stride coprime to 2^32 visits floats of all exponents.
TYPED_TEST(NarrowScalar, FloatsOfAllExponentsRoundAsC10) {
  std::uint32_t word = 0;
  for (int i = 0; i < 2'000'000; ++i, word += 2654435761u) {
    const auto probe = std::bit_cast<float>(word);

    const auto found = TypeParam::ours::from_float(probe);

    if (std::isnan(probe)) {
      ASSERT_TRUE(std::isnan(found.to_float()));
    } else {
      ASSERT_EQ(found.bits, TypeParam::their_bits(probe)) << probe;
    }
  }
}

TEST(Scalar, LimitsOfHalf) {
  EXPECT_EQ(Half::from_float(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half::from_float(65519.996f).bits, 0x7bff);
  EXPECT_EQ(Half::from_float(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half::from_float(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(Half::from_float(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(Half::from_float(-0.0f).bits, 0x8000);
}

TEST(Scalar, ComplexHasTheLayoutOfC10) {
  static_assert(sizeof(Complex<float>) == sizeof(c10::complex<float>));
  static_assert(alignof(Complex<float>) == alignof(c10::complex<float>));
  static_assert(sizeof(Complex<double>) == sizeof(c10::complex<double>));
  static_assert(alignof(Complex<double>) == alignof(c10::complex<double>));
  static_assert(std::is_trivially_copyable_v<Complex<double>> && std::is_aggregate_v<Complex<double>>);

  const auto ours = std::bit_cast<Complex<double>>(c10::complex<double>(2, 3));

  EXPECT_EQ(ours, (Complex<double>{2, 3}));
}

TEST(Scalar, ComplexArithmetic) {
  constexpr Complex<double> a{1, 2};
  constexpr Complex<double> b{3, -4};

  EXPECT_EQ(a + b, (Complex<double>{4, -2}));
  EXPECT_EQ(a - b, (Complex<double>{-2, 6}));
  EXPECT_EQ(-a, (Complex<double>{-1, -2}));
  EXPECT_EQ(a * b, (Complex<double>{11, 2}));
  EXPECT_EQ(2.0 * a, (Complex<double>{2, 4}));
  EXPECT_EQ(a * 2.0, (Complex<double>{2, 4}));
  EXPECT_EQ(conj(a), (Complex<double>{1, -2}));
  EXPECT_EQ(conj(2.5), 2.5);
}

TEST(Scalar, ComplexCompoundAssignment) {
  Complex<float> value{1, 2};

  value += {3, 4};
  value -= {1, 1};
  value *= {0, 1};

  EXPECT_EQ(value, (Complex<float>{-5, 3}));
}

TEST(Scalar, OnlyNarrowTypesAccumulateInAnother) {
  static_assert(std::is_same_v<accumulate_t<Half>, float>);
  static_assert(std::is_same_v<accumulate_t<BFloat16>, float>);
  static_assert(std::is_same_v<accumulate_t<float>, float>);
  static_assert(std::is_same_v<accumulate_t<Complex<float>>, Complex<float>>);
  static_assert(std::is_same_v<accumulate_t<std::int32_t>, std::int32_t>);

  EXPECT_EQ(widen(Half::from_float(1.5f)), 1.5f);
  EXPECT_EQ(narrow<BFloat16>(1.5f).bits, 0x3fc0);
  EXPECT_EQ(narrow<double>(1.1), 1.1);
}

}  // namespace
}  // namespace lacewing
