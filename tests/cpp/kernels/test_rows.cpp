// gather and scatter_add of rows at every ISA level, against plain loops.
#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/dispatch/rows.h"
#include "support.h"

namespace lacewing::kernels::test {
namespace {

constexpr std::int64_t kRows = 40;
constexpr std::int64_t kCount = 23;
constexpr std::int64_t kColumns[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 200};

template <typename T>
std::vector<T> numbers(std::int64_t count, std::mt19937& random) {
  std::vector<T> out(static_cast<std::size_t>(count));
  for (T& each : out) {
    each = static_cast<T>(static_cast<std::int64_t>(random() % 2001) - 1000) / 16;
  }
  return out;
}

template <typename T>
RowsArg matrix(std::vector<T>& data, std::int64_t rows, std::int64_t cols, std::int64_t row_stride) {
  return {data.data(), sizeof(T) == 4 ? ScalarType::f32 : ScalarType::f64, rows, cols, row_stride, 1};
}

template <typename T, typename Index>
void check_all() {
  std::mt19937 random(5);
  std::vector<Index> place(kRows);
  std::iota(place.begin(), place.end(), Index{0});
  std::shuffle(place.begin(), place.end(), random);
  const IndexArg index{place.data(), sizeof(Index) == 4 ? IndexType::i32 : IndexType::i64, kCount, 1};
  for (const std::int64_t cols : kColumns) {
    const std::int64_t stride = cols + 3;  // what lies between the rows stays as it is
    std::vector<T> few = numbers<T>(kCount * stride, random);
    std::vector<T> many = numbers<T>(kRows * stride, random);
    std::vector<T> gathered = few;
    std::vector<T> added = many;
    for (std::int64_t k = 0; k < kCount; ++k) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto at = static_cast<std::size_t>(k * stride + c);
        const auto there = static_cast<std::size_t>(place[static_cast<std::size_t>(k)] * stride + c);
        gathered[at] = many[there];
        added[there] += few[at];
      }
    }
    for (const Level level : levels()) {
      if (level == Level::reference) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << cols << " columns, level " << static_cast<int>(level));
      chosen_isa = static_cast<cpu::Isa>(level);
      for (const int threads : {1, 3}) {
        std::vector<T> to = few;
        cpu_row_kernels().gather(backwards_executor(threads), matrix(many, kRows, cols, stride),
                                 matrix(to, kCount, cols, stride), index);
        EXPECT_EQ(to, gathered);
        to = many;
        cpu_row_kernels().scatter_add(backwards_executor(threads), matrix(few, kCount, cols, stride),
                                      matrix(to, kRows, cols, stride), index);
        EXPECT_EQ(to, added);
      }
    }
  }
}

TEST(Rows, EveryLevelMovesAndAddsTheRowsThatTheIndexNames) {
  check_all<float, std::int32_t>();
  check_all<float, std::int64_t>();
  check_all<double, std::int32_t>();
  check_all<double, std::int64_t>();
}

}  // namespace
}  // namespace lacewing::kernels::test
