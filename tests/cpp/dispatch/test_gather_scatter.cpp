// gather and scatter_add on views, by hand and against plain loops.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>

#include <gtest/gtest.h>

#include <lacewing/dispatch/gather_scatter.h>
#include <lacewing/dispatch/torch.h>

namespace lacewing::dispatch {
namespace {

constexpr Device cpu = Device::cpu;
constexpr ScalarType f32 = ScalarType::f32;
constexpr ScalarType i32 = ScalarType::i32;
constexpr ScalarType i64 = ScalarType::i64;

// By hand: 3x2 sources and four or fewer indices.

TEST(Gather, CopiesTheRowsThatTheIndexNames) {
  const std::vector<float> src{1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> index{2, 0, 2, 1};
  std::vector<float> dst(8, -1);

  gather(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 3, 2},
         matrix_mutable_view<cpu, f32>{dst.data(), 4, 2}, vector_const_view<cpu, i32>{index.data(), 4});

  EXPECT_EQ(dst, (std::vector<float>{5, 6, 1, 2, 5, 6, 3, 4}));
}

TEST(Gather, TakesAPartialTag) {
  const std::vector<float> src{1, 2};
  const std::vector<std::int64_t> index{1, 0};
  std::vector<float> dst(2);

  gather(tag<cpu>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 2, 1},
         matrix_mutable_view<cpu, f32>{dst.data(), 2, 1}, vector_const_view<cpu, i64>{index.data(), 2});

  EXPECT_EQ(dst, (std::vector<float>{2, 1}));
}

TEST(Gather, ReadsOneHalfOfInterleavedPairs) {
  const std::vector<float> src{1, 2, 3};
  const std::vector<std::int32_t> pairs{0, 2, 1, 1, 2, 0};
  std::vector<float> first(3);
  std::vector<float> second(3);

  const matrix_const_view<cpu, f32> from{src.data(), 3, 1};
  gather(tag<cpu, f32>{}, serial_executor(), from, matrix_mutable_view<cpu, f32>{first.data(), 3, 1},
         vector_const_view<cpu, i32>{pairs.data(), 3, 2});
  gather(tag<cpu, f32>{}, serial_executor(), from, matrix_mutable_view<cpu, f32>{second.data(), 3, 1},
         vector_const_view<cpu, i32>{pairs.data() + 1, 3, 2});

  EXPECT_EQ(first, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(second, (std::vector<float>{3, 2, 1}));
}

TEST(Gather, FollowsTheStridesOfBothMatrices) {
  const std::vector<float> transposed{1, 3, 5, 2, 4, 6};  // the 3x2 matrix 1..6, column by column
  const std::vector<std::int32_t> index{2, 0};
  std::vector<float> padded(2 * 4, -1);  // rows of 2, every 4 elements, columns 2 apart

  gather(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{transposed.data(), 3, 2, 1, 3},
         matrix_mutable_view<cpu, f32>{padded.data(), 2, 2, 4, 2}, vector_const_view<cpu, i32>{index.data(), 2});

  EXPECT_EQ(padded, (std::vector<float>{5, -1, 6, -1, 1, -1, 2, -1}));
}

TEST(Gather, AColumnStrideOfZeroBroadcasts) {
  const std::vector<float> column{7, 8};
  const std::vector<std::int32_t> index{1};
  std::vector<float> dst(3);

  gather(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{column.data(), 2, 3, 1, 0},
         matrix_mutable_view<cpu, f32>{dst.data(), 1, 3}, vector_const_view<cpu, i32>{index.data(), 1});

  EXPECT_EQ(dst, (std::vector<float>{8, 8, 8}));
}

TEST(ScatterAdd, AddsToWhatIsThere) {
  const std::vector<float> src{1, 2, 3, 4};
  const std::vector<std::int32_t> index{2, 0};
  std::vector<float> dst{10, 10, 10, 10, 10, 10};

  scatter_add(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 2, 2},
              matrix_mutable_view<cpu, f32>{dst.data(), 3, 2}, vector_const_view<cpu, i32>{index.data(), 2});

  EXPECT_EQ(dst, (std::vector<float>{13, 14, 10, 10, 11, 12}));
}

TEST(ScatterAddSorted, SumsRunsOfEqualIndices) {
  const std::vector<float> src{1, 2, 4, 8};
  const std::vector<std::int32_t> index{0, 2, 2, 2};
  std::vector<float> dst{100, 100, 100};

  scatter_add_sorted(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 4, 1},
                     matrix_mutable_view<cpu, f32>{dst.data(), 3, 1}, vector_const_view<cpu, i32>{index.data(), 4});

  EXPECT_EQ(dst, (std::vector<float>{101, 100, 114}));
}

TEST(ScatterAddSorted, TakesTheSourceRowsInAGivenOrder) {
  const std::vector<float> src{1, 2, 4, 8};
  const std::vector<std::int32_t> sorted{0, 1, 1, 2};
  const std::vector<std::int64_t> order{3, 0, 2, 1};
  std::vector<float> dst(3);

  scatter_add_sorted(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 4, 1},
                     matrix_mutable_view<cpu, f32>{dst.data(), 3, 1}, vector_const_view<cpu, i32>{sorted.data(), 4},
                     vector_const_view<cpu, i64>{order.data(), 4});

  EXPECT_EQ(dst, (std::vector<float>{8, 5, 2}));
}

TEST(ScatterAddSorted, ChecksTheLengthOfTheOrder) {
  const std::vector<float> src{1, 2, 4, 8};
  const std::vector<std::int32_t> sorted{0, 1, 1, 2};
  const std::vector<std::int64_t> order{3, 0, 2};
  std::vector<float> dst(3);

  EXPECT_THROW(
      scatter_add_sorted(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 4, 1},
                         matrix_mutable_view<cpu, f32>{dst.data(), 3, 1}, vector_const_view<cpu, i32>{sorted.data(), 4},
                         vector_const_view<cpu, i64>{order.data(), 3}),
      std::invalid_argument);
}

TEST(ScatterAddSorted, RoundsNarrowSumsOnce) {
  const std::vector<BFloat16> src(1000, BFloat16::from_float(1));
  const std::vector<std::int32_t> index(1000, 0);
  std::vector<BFloat16> dst{BFloat16::from_float(0)};

  scatter_add_sorted(tag<cpu>{}, serial_executor(), matrix_const_view<cpu, ScalarType::bf16>{src.data(), 1000, 1},
                     matrix_mutable_view<cpu, ScalarType::bf16>{dst.data(), 1, 1},
                     vector_const_view<cpu, i32>{index.data(), 1000});

  EXPECT_EQ(dst[0].to_float(), 1000);
}

// Every scalar type and device, larger than a vector or a warp, two threads.

template <typename T>
T from_int(int value) {
  if constexpr (is_narrow_v<T>) {
    return T::from_float(static_cast<float>(value));
  } else if constexpr (is_complex_v<T>) {
    return {static_cast<decltype(T::re)>(value), static_cast<decltype(T::re)>(-2 * value)};
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(widen(a[i]) == widen(b[i]))) {
      return false;
    }
  }
  return a.size() == b.size();
}

template <Device Dev, ScalarType S>
struct Point {
  static constexpr Device device = Dev;
  static constexpr ScalarType scalar = S;
};

template <typename P>
class RowPrimitives : public testing::Test {
 protected:
  static constexpr Device dev = P::device;
  static constexpr ScalarType scalar = P::scalar;
  using T = scalar_t<scalar>;
  using Tag = tag<dev, scalar>;

  static constexpr std::int64_t rows = 97;
  static constexpr std::int64_t cols = 67;
  static constexpr std::int64_t count = 1500;

  RowPrimitives() : threads_(at::get_num_threads()) {
    at::set_num_threads(2);
    std::mt19937 random(7);
    // Small integers: sums are exact in every type, so any order gives the same bits.
    for (auto& value : source) {
      value = from_int<T>(static_cast<int>(random() % 3) - 1);
    }
    for (auto& row : index) {
      row = static_cast<std::int64_t>(random() % rows);
    }
  }
  ~RowPrimitives() override { at::set_num_threads(threads_); }

  matrix_const_view<dev, scalar> source_view(std::int64_t n) const { return {source.data(), n, cols}; }
  static matrix_mutable_view<dev, scalar> view(std::vector<T>& data) {
    return {data.data(), static_cast<std::int64_t>(data.size()) / cols, cols};
  }
  static vector_const_view<dev, i64> index_view(const std::vector<std::int64_t>& data) {
    return {data.data(), static_cast<std::int64_t>(data.size())};
  }

  std::vector<T> expected_sum() const {
    std::vector<accumulate_t<T>> sums(rows * cols, accumulate_t<T>{});
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t c = 0; c < cols; ++c) {
        sums[static_cast<std::size_t>(index[k] * cols + c)] += widen(source[static_cast<std::size_t>(k * cols + c)]);
      }
    }
    std::vector<T> out;
    for (const auto& sum : sums) {
      out.push_back(narrow<T>(sum));
    }
    return out;
  }

  std::vector<T> source = std::vector<T>(count * cols);
  std::vector<std::int64_t> index = std::vector<std::int64_t>(count);
  std::vector<T> zeros = std::vector<T>(rows * cols, from_int<T>(0));

 private:
  int threads_;
};

using Points = testing::Types<
    Point<cpu, ScalarType::f16>, Point<cpu, ScalarType::bf16>, Point<cpu, f32>, Point<cpu, ScalarType::f64>,
    Point<cpu, ScalarType::c64>, Point<cpu, ScalarType::c128>, Point<cpu, i32>, Point<cpu, i64>,
    Point<Device::reference, ScalarType::f16>, Point<Device::reference, ScalarType::bf16>,
    Point<Device::reference, f32>, Point<Device::reference, ScalarType::f64>, Point<Device::reference, ScalarType::c64>,
    Point<Device::reference, ScalarType::c128>, Point<Device::reference, i32>, Point<Device::reference, i64>>;
TYPED_TEST_SUITE(RowPrimitives, Points);

TYPED_TEST(RowPrimitives, GatherEqualsALoop) {
  using T = typename TestFixture::T;
  std::vector<T> out(this->count * this->cols);

  gather(typename TestFixture::Tag{}, torch_executor(), this->source_view(this->rows), this->view(out),
         this->index_view(this->index));

  std::vector<T> expected;
  for (const std::int64_t row : this->index) {
    const auto begin = this->source.begin() + row * this->cols;
    expected.insert(expected.end(), begin, begin + this->cols);
  }
  EXPECT_TRUE(same(out, expected));
}

TYPED_TEST(RowPrimitives, SortedAndAtomicAgreeWithALoop) {
  auto order = this->index;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return this->index[a] < this->index[b]; });
  auto sorted = this->index;
  std::sort(sorted.begin(), sorted.end());
  auto by_runs = this->zeros;
  auto by_atomics = this->zeros;

  scatter_add_sorted(typename TestFixture::Tag{}, torch_executor(), this->source_view(this->count), this->view(by_runs),
                     this->index_view(sorted), this->index_view(order));
  scatter_add_atomic(typename TestFixture::Tag{}, torch_executor(), this->source_view(this->count),
                     this->view(by_atomics), this->index_view(this->index));

  EXPECT_TRUE(same(by_runs, this->expected_sum()));
  EXPECT_TRUE(same(by_atomics, this->expected_sum()));
}

TYPED_TEST(RowPrimitives, ScatterAddUndoesAPermutation) {
  using T = typename TestFixture::T;
  std::vector<std::int64_t> permutation(this->rows);
  std::iota(permutation.begin(), permutation.end(), 0);
  std::shuffle(permutation.begin(), permutation.end(), std::mt19937(3));
  std::vector<T> gathered(this->rows * this->cols);
  auto back = this->zeros;

  gather(typename TestFixture::Tag{}, torch_executor(), this->source_view(this->rows), this->view(gathered),
         this->index_view(permutation));
  scatter_add(typename TestFixture::Tag{}, torch_executor(),
              matrix_const_view<TestFixture::dev, TestFixture::scalar>(this->view(gathered)), this->view(back),
              this->index_view(permutation));

  EXPECT_TRUE(same(back, std::vector<T>(this->source.begin(), this->source.begin() + this->rows * this->cols)));
}

TYPED_TEST(RowPrimitives, EmptyIndicesAndColumnsChangeNothing) {
  using T = typename TestFixture::T;
  const std::vector<std::int64_t> nothing;
  std::vector<T> empty;
  auto out = this->zeros;
  const matrix_const_view<TestFixture::dev, TestFixture::scalar> no_columns{empty.data(), this->count, 0};

  gather(typename TestFixture::Tag{}, torch_executor(), this->source_view(this->rows), this->view(empty),
         this->index_view(nothing));
  scatter_add(typename TestFixture::Tag{}, torch_executor(), this->source_view(0), this->view(out),
              this->index_view(nothing));
  scatter_add_atomic(typename TestFixture::Tag{}, torch_executor(), no_columns,
                     matrix_mutable_view<TestFixture::dev, TestFixture::scalar>{empty.data(), this->rows, 0},
                     this->index_view(this->index));

  EXPECT_TRUE(same(out, this->zeros));
}

TEST(ScatterAddSorted, GivesTheSameBitsForEveryThreadCount) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> src(5000 * 33);
  for (auto& value : src) {
    value = normal(random);
  }
  std::vector<std::int32_t> index(5000);
  for (auto& row : index) {
    row = static_cast<std::int32_t>(random() % 50);
  }
  std::sort(index.begin(), index.end());
  const int before = at::get_num_threads();

  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    results.emplace_back(50 * 33, 0.0f);
    scatter_add_sorted(tag<cpu, f32>{}, torch_executor(), matrix_const_view<cpu, f32>{src.data(), 5000, 33},
                       matrix_mutable_view<cpu, f32>{results.back().data(), 50, 33},
                       vector_const_view<cpu, i32>{index.data(), 5000});
  }
  at::set_num_threads(before);

  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// Bad input.

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(RowErrors, SizesThatDiffer) {
  std::vector<float> data(12);
  const std::vector<std::int32_t> index{0, 1};
  const matrix_const_view<cpu, f32> src{data.data(), 3, 2};
  const vector_const_view<cpu, i32> idx{index.data(), 2};

  EXPECT_EQ(message_of([&] {
              gather(tag<cpu>{}, serial_executor(), src, matrix_mutable_view<cpu, f32>{data.data(), 3, 2}, idx);
            }),
            "[lacewing.gather] dst has 3 rows, but there are 2 indices");
  EXPECT_EQ(message_of([&] {
              gather(tag<cpu>{}, serial_executor(), src, matrix_mutable_view<cpu, f32>{data.data(), 2, 4}, idx);
            }),
            "[lacewing.gather] src has 2 columns, but dst has 4");
}

TEST(RowErrors, EachRuleNamesTheFirstIndexThatBreaksIt) {
  EXPECT_EQ(message_of([] { check_indices("gather", {0, 4, 9}, 4, IndexRule::in_range); }),
            "[lacewing.gather] index[1] = 4 is out of range for 4 rows");
  EXPECT_EQ(message_of([] { check_indices("gather", {0, -1}, 4, IndexRule::in_range); }),
            "[lacewing.gather] index[1] = -1 is out of range for 4 rows");
  EXPECT_EQ(message_of([] { check_indices("scatter_add", {3, 1, 0, 1}, 4, IndexRule::distinct); }),
            "[lacewing.scatter_add] index[3] = 1 repeats index[1]: indices must be distinct (scatter_add_sorted and "
            "scatter_add_atomic take duplicates)");
  EXPECT_EQ(message_of([] { check_indices("scatter_add_sorted", {0, 2, 1}, 4, IndexRule::sorted); }),
            "[lacewing.scatter_add_sorted] index[2] = 1 is less than index[1] = 2: indices must not decrease");
  EXPECT_NO_THROW(check_indices("scatter_add_sorted", {0, 0, 3}, 4, IndexRule::sorted));
}

}  // namespace
}  // namespace lacewing::dispatch
