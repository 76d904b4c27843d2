#include <gtest/gtest.h>

#include "structure/strides.h"

namespace lacewing::structure {
namespace {

using Longs = std::vector<std::int64_t>;

std::optional<Longs> order(const Longs& shape, const Longs& strides) { return contiguous_order(shape, strides); }

TEST(Strides, TheOrderIsOutermostFirst) {
  EXPECT_EQ(order({2, 3, 4}, {12, 4, 1}), (Longs{0, 1, 2}));
  EXPECT_EQ(order({2, 3, 4}, {1, 2, 6}), (Longs{2, 1, 0}));
  EXPECT_EQ(order({2, 1, 4}, {1, 77, 2}), (Longs{2, 1, 0}));
  EXPECT_EQ(order({}, {}), (Longs{}));
  EXPECT_EQ(order({3, 0}, {5, 5}), (Longs{0, 1}));
}

TEST(Strides, GapsAndOverlapsHaveNoOrder) {
  EXPECT_EQ(order({2, 3}, {4, 1}), std::nullopt);
  EXPECT_EQ(order({2, 3}, {1, 1}), std::nullopt);
  EXPECT_EQ(order({2, 3}, {3, 2}), std::nullopt);
}

}  // namespace
}  // namespace lacewing::structure
