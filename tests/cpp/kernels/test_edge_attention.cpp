// Attention over edges at every ISA level, against the reference, which is checked by hand here and by torch in Python.
#include "edge_attention_case.h"
#include "support.h"

namespace lacewing::kernels::test {
namespace {

TEST(EdgeAttention, IsWhatTheFormulaSays) {
  // One row, edges from columns 0 and 1, logits log 3 and 0: weights 3/4 and 1/4.
  const std::int32_t rows[] = {0, 0}, columns[] = {0, 1}, row_segments[] = {0, 2}, column_segments[] = {0, 1, 2};
  const double q[] = {0}, k[] = {std::log(3.0), 0}, v[] = {1, 2, 5, 6};
  EdgeAttentionArgs args;
  args.type = ScalarType::f64;
  args.edges = 2;
  args.heads = 1;
  args.channels = 2;
  args.row = {rows, row_segments, nullptr, 1};
  args.column = {columns, column_segments, nullptr, 2};
  args.q = {q, 1};
  args.k = {k, 1};
  args.v = {v, 2};
  double out[2], lse[1];

  reference::edge_attention({args, out, lse});

  EXPECT_NEAR(out[0], 2, 1e-15);
  EXPECT_NEAR(out[1], 3, 1e-15);
  EXPECT_NEAR(lse[0], std::log(4.0), 1e-15);
}

template <typename T, typename Index>
AttentionResults<T> at_level(const AttentionCall<T, Index>& call, Level level, int threads) {
  chosen_isa = static_cast<cpu::Isa>(level);
  const CpuExecutor executor = backwards_executor(threads);
  return call.run([&](const EdgeAttentionForward& args) { cpu::edge_attention(args, executor); },
                  [&](const EdgeAttentionBackward& args) { cpu::edge_attention_backward(args, executor); });
}

template <typename T, typename Index>
void expect_the_reference(ScalarType type, double tolerance) {
  unsigned seed = 1;
  for (const AttentionCase& c : attention_cases()) {
    const AttentionCall<T, Index> call(c, type, seed++);
    const AttentionResults<T> expected = call.reference();
    for (const Level level : levels()) {
      if (level == Level::reference) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << "case " << seed - 1 << ", level " << static_cast<int>(level));
      const AttentionResults<T> found = at_level(call, level, 1);
      expect_near(found, expected, tolerance);
      const AttentionResults<T> again = at_level(call, level, 3);
      EXPECT_EQ(found.out, again.out);
      EXPECT_EQ(found.of_q, again.of_q);
      EXPECT_EQ(found.of_k, again.of_k);
      EXPECT_EQ(found.of_v, again.of_v);
    }
  }
}

TEST(EdgeAttention, IsTheReferenceAtEveryLevel) {
  expect_the_reference<float, std::int32_t>(ScalarType::f32, 1e-5);
  expect_the_reference<double, std::int64_t>(ScalarType::f64, 1e-13);
}

TEST(EdgeAttention, TheBitsOfARowDependOnItAlone) {
  const AttentionCase c{{40, 1500, 3, 700, 0, 2}, 30, 3, 8, 12, false, true, 0, 0};
  const AttentionCall<float, std::int32_t> crowd(c, ScalarType::f32, 5);
  for (const Level level : levels()) {
    if (level == Level::reference) {
      continue;
    }
    const AttentionResults<float> all = at_level(crowd, level, 3);
    for (std::int64_t row = 0; row < c.rows(); ++row) {
      const AttentionResults<float> few = at_level(crowd.alone(row), level, 1);

      EXPECT_TRUE(std::equal(few.out.begin(), few.out.end(), all.out.begin() + row * 36)) << row;
    }
  }
}

}  // namespace
}  // namespace lacewing::kernels::test
