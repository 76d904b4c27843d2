// The fence behind operands: it stands right behind the last element.
#include <gtest/gtest.h>

#include "fenced.h"

#if !defined(__SANITIZE_ADDRESS__)

namespace lacewing::kernels::test {
namespace {

TEST(FencedDeathTest, TheElementBehindTheLastStopsTheTest) {
  for (const std::size_t count : {1u, 7u, 1024u, 5000u}) {
    FencedVector<float> values(count, 1.0f);
    const volatile float* const data = values.data();

    EXPECT_EQ(data[count - 1], 1.0f);
    EXPECT_DEATH({ [[maybe_unused]] const float beyond = data[count]; }, "");
  }
}

TEST(Fenced, MemoryThatWasGivenBackIsFencedAgain) {
  const FencedVector<double> first(3);
  const double* const before = FencedVector<double>(3).data();

  const FencedVector<double> again(3);

  EXPECT_EQ(again.data(), before);
  EXPECT_NE(again.data(), first.data());
}

}  // namespace
}  // namespace lacewing::kernels::test

#endif
