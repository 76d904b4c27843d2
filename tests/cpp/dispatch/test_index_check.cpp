// Builds with LACEWING_CHECK_INDICES look at the indices of every call.
#if !defined(LACEWING_CHECK_INDICES)
#error "this test needs LACEWING_CHECK_INDICES"
#endif

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <lacewing/dispatch/gather_scatter.h>

namespace lacewing::dispatch {
namespace {

constexpr Device cpu = Device::cpu;
constexpr ScalarType f32 = ScalarType::f32;
constexpr ScalarType i32 = ScalarType::i32;
constexpr ScalarType i64 = ScalarType::i64;

TEST(CheckedIndices, OfGatherAreInRange) {
  const std::vector<float> src{1, 2};
  const std::vector<std::int32_t> index{0, 2};
  std::vector<float> dst(2);

  EXPECT_THROW(gather(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 2, 1},
                      matrix_mutable_view<cpu, f32>{dst.data(), 2, 1}, vector_const_view<cpu, i32>{index.data(), 2}),
               std::invalid_argument);
}

TEST(CheckedIndices, OfScatterAddAreDistinct) {
  std::vector<float> data(4);
  const std::vector<std::int32_t> index{1, 1};

  EXPECT_THROW(
      scatter_add(tag<cpu>{}, serial_executor(), matrix_const_view<cpu, f32>{data.data(), 2, 1},
                  matrix_mutable_view<cpu, f32>{data.data() + 2, 2, 1}, vector_const_view<cpu, i32>{index.data(), 2}),
      std::invalid_argument);
}

TEST(CheckedIndices, OfAnOrderAreInRange) {
  const std::vector<float> src{1, 2, 4, 8};
  const std::vector<std::int32_t> sorted{0, 1, 1, 2};
  const std::vector<std::int64_t> order{3, 0, 2, 4};
  std::vector<float> dst(3);

  EXPECT_THROW(
      scatter_add_sorted(tag<cpu, f32>{}, serial_executor(), matrix_const_view<cpu, f32>{src.data(), 4, 1},
                         matrix_mutable_view<cpu, f32>{dst.data(), 3, 1}, vector_const_view<cpu, i32>{sorted.data(), 4},
                         vector_const_view<cpu, i64>{order.data(), 4}),
      std::invalid_argument);
}

}  // namespace
}  // namespace lacewing::dispatch
