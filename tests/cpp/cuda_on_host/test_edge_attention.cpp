// The kernels of attention over edges on the host, against the reference, and the order of their sums.
#include "../kernels/edge_attention_case.h"
#include "kernels/cuda/device/launch.h"

namespace lacewing::kernels {
namespace {

using test::attention_cases;
using test::AttentionCall;
using test::AttentionResults;

template <typename T, typename Index>
AttentionResults<T> on_host_device(const AttentionCall<T, Index>& call) {
  // All bytes are those of a NaN: who reads what nobody wrote is seen.
  const auto space = [](std::int64_t bytes) {
    return std::vector<double>(static_cast<std::size_t>(bytes / 8 + 1), NAN);
  };
  return call.run(
      [&](const EdgeAttentionForward& args) {
        std::vector<double> memory = space(cuda::edge_attention_workspace(args.of));
        cuda::edge_attention(args, {}, memory.data());
      },
      [&](const EdgeAttentionBackward& args) {
        std::vector<double> memory = space(cuda::edge_attention_backward_workspace(args));
        cuda::edge_attention_backward(args, {}, memory.data());
      });
}

template <typename T, typename Index>
void expect_the_reference(ScalarType type, double tolerance) {
  unsigned seed = 1;
  for (const test::AttentionCase& c : attention_cases()) {
    SCOPED_TRACE(seed);
    const AttentionCall<T, Index> call(c, type, seed++);

    expect_near(on_host_device(call), call.reference(), tolerance);
  }
}

TEST(EdgeAttentionOnHost, IsTheReference) {
  expect_the_reference<float, std::int32_t>(ScalarType::f32, 1e-5);
  expect_the_reference<double, std::int64_t>(ScalarType::f64, 1e-13);
  expect_the_reference<Half, std::int32_t>(ScalarType::f16, 2e-3);
  expect_the_reference<BFloat16, std::int64_t>(ScalarType::bf16, 2e-2);
}

TEST(EdgeAttentionOnHost, TheBitsOfARowDependOnItAlone) {
  test::AttentionCase c{{40, 1500, 3, 700, 0, 2}, 30, 3, 8, 12, false, true, 0, 0};
  const AttentionCall<float, std::int32_t> crowd(c, ScalarType::f32, 5);
  const AttentionResults<float> all = on_host_device(crowd);
  for (std::int64_t row = 0; row < c.rows(); ++row) {
    cuda::host_facts().max_blocks = row % 2 == 0 ? 1 : 33;

    const AttentionResults<float> few = on_host_device(crowd.alone(row));

    EXPECT_TRUE(std::equal(few.out.begin(), few.out.end(), all.out.begin() + row * 36)) << row;
    EXPECT_TRUE(std::equal(few.lse.begin(), few.lse.end(), all.lse.begin() + row * 3)) << row;
  }
  cuda::host_facts() = {};
}

TEST(EdgeAttentionOnHost, DropoutIsThatOfTheReference) {
  const std::int64_t seed = -7;
  const EdgeDropout args{ScalarType::f32, 300, 5, std::uint64_t{1} << 31, 2, &seed};
  std::vector<float> found(1500, NAN), expected(1500, NAN);

  cuda::edge_dropout(args, found.data(), {});

  reference::edge_dropout(args, expected.data());
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace lacewing::kernels
