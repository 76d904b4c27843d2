// Attention over edges through the C++ API: against torch's own softmax, with gradients; bad input.
#include <lacewing/attention.h>
#include <lacewing/tensor.h>

#include "../product/support.h"

namespace lacewing::test {
namespace {

/// Every row has an edge from every column, so that torch's attention is the same.
Edges all_edges(std::int64_t rows, std::int64_t columns) {
  const at::Tensor edge = at::arange(rows * columns);
  return Edges({edge.remainder(columns)}, edge.floor_divide(columns), {.batch = {columns}, .out_batch = rows});
}

TEST(EdgeAttention, OverAllEdgesIsThatOfTorch) {
  at::manual_seed(1);
  const at::Tensor q = at::randn({4, 2, 3}, at::kDouble).requires_grad_();
  const at::Tensor k = at::randn({5, 2, 3}, at::kDouble).requires_grad_();
  const at::Tensor v = at::randn({5, 2, 6}, at::kDouble).requires_grad_();

  const at::Tensor z = edge_attention(all_edges(4, 5), q, k, v);

  const at::Tensor weight = at::softmax(at::einsum("ihd,jhd->ihj", {q, k}) / std::sqrt(3.0), -1);
  const at::Tensor expected = at::einsum("ihj,jhc->ihc", {weight, v});
  EXPECT_TRUE(z.allclose(expected));
  const auto ours = torch::autograd::grad({z.pow(3).sum()}, {q, k, v}, {}, true, true);
  const auto theirs = torch::autograd::grad({expected.pow(3).sum()}, {q, k, v}, {}, true, true);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(ours[i].allclose(theirs[i])) << i;
  }
  const auto second = torch::autograd::grad({ours[0].pow(2).sum()}, {k, v});
  const auto expected_second = torch::autograd::grad({theirs[0].pow(2).sum()}, {k, v});
  EXPECT_TRUE(second[0].allclose(expected_second[0]));
  EXPECT_TRUE(second[1].allclose(expected_second[1]));
}

TEST(EdgeAttention, TakesTheEntriesOfASparseTensor) {
  const at::Tensor sparse = lacewing::sparse_coo_tensor(at::tensor({1, 0, 1, 0, 2, 1}, at::kLong).view({2, 3}),
                                                        at::ones({3}), std::vector<std::int64_t>{2, 3});
  const at::Tensor v = numbers({1, 10, 100}, {3, 1, 1});
  const at::Tensor logits = numbers({0, std::log(3.0), 0}, {3, 1});

  const at::Tensor z = edge_attention(edges_of(sparse), numbers({0, 0}, {2, 1}), logits, v);

  EXPECT_TRUE(z.flatten().allclose(numbers({100, (1 + 3 * 10) / 4.0}, {2}))) << z;
}

TEST(EdgeAttention, BadInputGetsASentence) {
  const auto sentence = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const at::Tensor q = at::zeros({4, 2});
  const at::Tensor v = at::zeros({5, 2, 1});

  EXPECT_EQ(sentence([&] { std::ignore = edge_attention(all_edges(4, 5), q, q, v); }),
            "[lacewing.edge_attention] k of shape (4, 2) has 4 rows, but the edges were built for 5");
  EXPECT_EQ(
      sentence([&] { std::ignore = edges_of(v); }),
      "[lacewing.edges_of] sparse must be a sparse tensor with two sparse dims, rows and columns, not a tensor of "
      "shape (5, 2, 1)");
}

}  // namespace
}  // namespace lacewing::test
