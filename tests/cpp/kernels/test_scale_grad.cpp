// The gradient of scale: every ISA level and the reference against the oracle.
#include "support.h"

namespace lacewing::kernels::test {
namespace {

TEST_P(Kernels, ScaleGradWithAnyArrayAbsent) {
  for (int bits = 0; bits < 32; ++bits) {
    Case c = plain();
    c.segments = (bits & 1) != 0;
    c.index1 = (bits & 2) != 0;
    c.index2 = (bits & 4) != 0;
    c.order = (bits & 8) != 0;
    c.wide = (bits & 16) != 0;
    c.seed = static_cast<std::uint64_t>(bits + 1);

    EXPECT_TRUE(scale_grad_is_right(c)) << "absence " << bits;
  }
}

TEST_P(Kernels, ScaleGradWithRepeatedEntries) {
  for (const bool wide : {false, true}) {
    for (const std::int64_t rows : {3, 40, 90}) {
      Case c = plain();
      c.repeated = true;
      c.rows = rows;
      c.wide = wide;
      c.extent_a = 17;

      EXPECT_TRUE(scale_grad_is_right(c)) << rows;
    }
  }
}

TEST_P(Kernels, ScaleGradInEveryLayout) {
  std::uint64_t seed = 1;
  for (const Layout x : kLayouts) {
    for (const Layout y : kLayouts) {
      for (const Layout z : kLayouts) {
        Case c = plain();
        c.x = x;
        c.y = y;
        c.z = z;
        c.accumulate = seed % 5 == 0;
        c.repeated = seed % 2 == 0;
        c.extent_a = 9;
        c.extent_b = 17;
        c.rows = 4;
        c.terms_per_row = 1;
        c.seed = seed++;

        EXPECT_TRUE(scale_grad_is_right(c)) << static_cast<int>(x) << static_cast<int>(y) << static_cast<int>(z);
      }
    }
  }
}

TEST_P(ComplexKernels, ScaleGradOfConjugatedOperands) {
  for (int bits = 0; bits < 8; ++bits) {
    for (const Layout layout : {Layout::plain, Layout::transposed, Layout::spread}) {
      Case c = plain();
      c.conjugate_x = (bits & 1) != 0;
      c.conjugate_y = (bits & 2) != 0;
      c.conjugate_z = (bits & 4) != 0;
      c.y = c.z = layout;

      EXPECT_TRUE(scale_grad_is_right(c)) << "conjugations " << bits;
    }
  }
}

TEST_P(Kernels, ScaleGradOfEveryExtent) {
  const std::vector<std::int64_t> across =
      channels_y(plain().form).b ? std::vector<std::int64_t>{1, 3, 16, 17, 67} : std::vector<std::int64_t>{1};
  for (const std::int64_t a : {1, 3, 8, 16, 17, 64, 67}) {
    for (const std::int64_t b : across) {
      Case c = plain();
      c.extent_a = a;
      c.extent_b = b;
      c.rows = 3;
      c.seed = static_cast<std::uint64_t>(a * 100 + b);

      EXPECT_TRUE(scale_grad_is_right(c)) << a << " x " << b;
    }
  }
}

TEST_P(Kernels, ScaleGradOfLargeWorkOnSeveralThreads) {
  for (const bool integers : {true, false}) {
    Case c = plain();
    c.batch = 30;
    c.rows = 70;
    c.extent_a = 33;
    c.integers = integers;

    EXPECT_TRUE(scale_grad_is_right(c));
  }
}

}  // namespace
}  // namespace lacewing::kernels::test
