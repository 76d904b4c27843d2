// The whole formula through the C++ API: by hand, against einsum, and with gradients.
#include <lacewing/formula.h>

#include "support.h"

namespace lacewing::test {
namespace {

TEST(Formula, ByHand) {
  // z[0] = x[0] y[1] + x[1] y[0], z[1] = 5 x[1] y[1], channel by channel.
  const ProductPlan plan = product_plan("u,u->u", {.index = {index_of({0, 1, 1}), index_of({1, 0, 1})},
                                                   .out = index_of({0, 0, 1}),
                                                   .scale = numbers({1, 1, 5}, {3})});

  const at::Tensor z = product(plan, {numbers({1, 2, 3, 4}, {1, 2, 2}), numbers({5, 6, 7, 8}, {1, 2, 2})});

  EXPECT_TRUE(z.equal(numbers({7 + 15, 16 + 24, 105, 160}, {1, 2, 2}))) << z;
}

TEST(Formula, NobodyForesaw) {
  at::manual_seed(1);
  const at::Tensor a = at::randn({4, 2, 3}, at::kDouble).requires_grad_();
  const at::Tensor b = at::randn({5, 3, 6}, at::kDouble).requires_grad_();
  const at::Tensor c = at::randn({6}, at::kDouble).requires_grad_();
  const at::Tensor list = index_of({4, 0, 0, 2});
  const ProductPlan plan = product_plan("ab,bc,c->a");
  const Edges edges({{}, list, EdgeMap::Kind::shared}, {}, {.batch = {std::nullopt, 5, std::nullopt}});

  const at::Tensor z = product(plan, {a, b, c}, edges);

  const at::Tensor expected = at::einsum("eab,ebc,c->ea", {a, b.index_select(0, list), c});
  EXPECT_TRUE(z.allclose(expected));
  const at::Tensor weight = at::randn_like(z);
  const auto ours = torch::autograd::grad({(z * weight).sum()}, {a, b, c}, {}, true, true);
  const auto theirs = torch::autograd::grad({(expected * weight).sum()}, {a, b, c}, {}, true, true);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(ours[i].allclose(theirs[i])) << i;
  }
  const auto second = torch::autograd::grad({ours[0].pow(2).sum()}, {b, c});
  const auto expected_second = torch::autograd::grad({theirs[0].pow(2).sum()}, {b, c});
  EXPECT_TRUE(second[0].allclose(expected_second[0]) && second[1].allclose(expected_second[1]));
}

TEST(Formula, ATensorThatStandsTwice) {
  const ProductPlan plan = product_plan("u,u->u", {.slots = {0, 0}});
  const at::Tensor x = numbers({1, 2, 3}, {3}).requires_grad_();

  const at::Tensor z = product(plan, {x});
  z.sum().backward();

  EXPECT_TRUE(z.equal(numbers({1, 4, 9}, {3})));
  EXPECT_TRUE(x.grad().equal(numbers({2, 4, 6}, {3})));
}

TEST(Formula, RowsOfUnequalExtents) {
  // Rows of 2 and 1 channels in a tensor of 3 elements, multiplied with themselves.
  const RowLayout rows{.offset = {}, .extent = at::tensor({2, 1}, at::kLong).view({2, 1}), .stride = {}};
  const ProductPlan plan = product_plan(
      "u,u->u", {.index = {index_of({0, 1}), index_of({0, 1})}, .out = index_of({0, 1}), .layout = {rows, rows, rows}});

  const at::Tensor z = product(plan, {numbers({1, 2, 3}, {1, 3}), numbers({4, 5, 6}, {1, 3})});

  EXPECT_TRUE(z.equal(numbers({4, 10, 18}, {1, 3}))) << z;
}

TEST(Formula, ExplainTellsWhatIsFolded) {
  const ProductPlan plan =
      product_plan("u,->u", {.index = {index_of({0, 0, 0, 1}), index_of({0, 1, 2, 0})}, .out = index_of({0, 0, 0, 0})});

  const std::string text = product_explain(plan, {at::empty({7, 2, 8}), at::empty({7, 3})});

  EXPECT_NE(text.find("folding: 4 terms summed to 2"), std::string::npos) << text;
  EXPECT_NE(text.find("multiply-adds: " + std::to_string(7 * 2 * 8)), std::string::npos) << text;
}

TEST(Formula, BadInputGetsASentence) {
  const auto sentence = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };

  EXPECT_EQ(
      sentence([] { product_plan("uu->u"); }),
      "[lacewing.product_plan] letter u stands twice in \"uu\" of \"uu->u\": a letter stands at most once in a role");
  EXPECT_EQ(sentence([] { product(ProductPlan{}, {at::ones({2})}); }),
            "[lacewing.product] the plan is empty: make it with product_plan");
  EXPECT_EQ(sentence([] { Edges({index_of({0, 3})}, {}, {.batch = {2}}); }),
            "[lacewing.Edges] maps[0][1] = 3 is out of range: batch[0] is 2");
  EXPECT_EQ(sentence([] { product(product_plan("u,u->u"), {at::ones({2})}); }),
            "[lacewing.product] the plan's slots name operands[1], of 1 operands");
}

}  // namespace
}  // namespace lacewing::test
