// Compressed rows against the definition.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "structure/compressed.h"

namespace lacewing::structure {
namespace {

using Longs = std::vector<std::int64_t>;

Longs starts_of(const Longs& rows, std::int64_t count) {
  Longs starts(static_cast<std::size_t>(count) + 1, -1);
  row_starts(rows.data(), static_cast<std::int64_t>(rows.size()), count, starts.data(), serial_executor());
  return starts;
}

TEST(CompressedRows, StartsCountTheEntriesBefore) {
  EXPECT_EQ(starts_of({1, 1, 4}, 6), (Longs{0, 0, 2, 2, 2, 3, 3}));
  EXPECT_EQ(starts_of({0, 5}, 6), (Longs{0, 1, 1, 1, 1, 1, 2}));
  EXPECT_EQ(starts_of({}, 3), (Longs{0, 0, 0, 0}));
  EXPECT_EQ(starts_of({}, 0), (Longs{0}));
}

/// Cuts the range into small parts, whatever the grain.
void run_in_parts(std::int64_t begin, std::int64_t end, std::int64_t, CpuExecutor::Chunk chunk, void* context) {
  for (std::int64_t b = begin; b < end; b += 3) {
    chunk(context, b, std::min(b + 3, end));
  }
}

TEST(CompressedRows, PartsOfTheEntriesGiveTheSame) {
  const CpuExecutor parts{run_in_parts, [] { return 2; }};
  const Longs rows{0, 0, 0, 2, 2, 7, 7, 7, 7, 8};
  Longs starts(11, -1);
  Longs back(rows.size(), -1);

  row_starts(rows.data(), 10, 10, starts.data(), parts);
  rows_of_entries(starts.data(), 10, back.data(), parts);

  EXPECT_EQ(starts, starts_of(rows, 10));
  EXPECT_EQ(back, rows);
}

TEST(CompressedRows, RowsIncreaseByThemselves) {
  const auto increase = [](const Longs& starts, const Longs& minor) {
    return rows_increase(starts.data(), minor.data(), static_cast<std::int64_t>(starts.size()) - 1, serial_executor());
  };

  EXPECT_TRUE(increase({0, 2, 2, 4}, {3, 5, 0, 9}));
  EXPECT_TRUE(increase({0}, {}));
  EXPECT_FALSE(increase({0, 2, 4}, {3, 5, 9, 0}));
  EXPECT_FALSE(increase({0, 2, 4}, {3, 3, 0, 1}));
}

TEST(CompressedRows, TheFirstBadStartIsFound) {
  const auto bad = [](const Longs& starts, std::int64_t count) {
    return first_bad_start(starts.data(), static_cast<std::int64_t>(starts.size()) - 1, count);
  };

  EXPECT_EQ(bad({0, 2, 2, 5}, 5), -1);
  EXPECT_EQ(bad({1, 2, 5}, 5), 0);
  EXPECT_EQ(bad({0, 3, 2, 5}, 5), 2);
  EXPECT_EQ(bad({0, 7, 5}, 5), 1);
  EXPECT_EQ(bad({0, 2, 4}, 5), 2);
  EXPECT_EQ(bad({0}, 0), -1);
}

}  // namespace
}  // namespace lacewing::structure
