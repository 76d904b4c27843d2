// Tensors whose storage was freed behind their shape, as FSDP frees parameters after a forward pass: a sentence, never
// a null pointer that a kernel takes for an absent operand.
#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <torch/csrc/autograd/autograd.h>

#include <gtest/gtest.h>

#include <lacewing/conv.h>
#include <lacewing/dispatch/rows.h>
#include <lacewing/dispatch/torch.h>
#include <lacewing/etp.h>
#include <lacewing/product.h>

#include "../conv/sentences.h"

namespace lacewing {
namespace {

/// What untyped_storage().resize_(0) does.
void free_storage(const at::Tensor& tensor) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), 0);
}

std::string freed(const std::string& what, const std::string& bytes) {
  return "[lacewing." + what +
         " has no memory: its storage was freed (FSDP reshards parameters after forward) and holds 0 of its " + bytes +
         " bytes";
}

struct Convolution {
  ConvolutionPlan plan =
      ConvolutionPlan::build(at::stack({at::zeros({10}, at::kInt), at::arange(10, at::kInt)}, 1), {{3}, {}, {}});
  at::Tensor x = at::ones({10, 4}, at::kDouble).requires_grad_();
  at::Tensor weight = at::ones({3, 1, 4, 2}, at::kDouble).requires_grad_();
};

TEST(FreedStorage, BackwardOfAConvolutionSaysSo) {
  const Convolution c;
  const at::Tensor out = sparse_conv(c.x, c.weight, c.plan).sum();
  free_storage(c.weight);

  EXPECT_EQ(sentence_of([&] { out.backward(); }), freed("sparse_conv] weight of shape (3, 1, 4, 2)", "192"));
}

TEST(FreedStorage, GradientOfAWeightSaysSo) {
  const Convolution c;
  const at::Tensor out = sparse_conv(c.x, c.weight, c.plan).sum();
  free_storage(c.x);

  EXPECT_EQ(sentence_of([&] { torch::autograd::grad({out}, {c.weight}); }),
            freed("sparse_conv_weight_grad] features of shape (10, 4)", "320"));
}

TEST(FreedStorage, AConvolutionByProductsOfMatricesSaysSo) {
  const Convolution c;
  const auto plan = c.plan.with_algorithm(ConvolutionAlgorithm::gather_gemm_scatter);
  free_storage(c.weight);

  EXPECT_EQ(sentence_of([&] { return sparse_conv(c.x, c.weight, plan); }),
            freed("sparse_conv] weight of shape (3, 1, 4, 2)", "192"));
}

TEST(FreedStorage, AConvolutionWithAFinishSaysSo) {
  const Convolution c;
  const at::NoGradGuard guard;
  ConvFinish finish;
  finish.residual = at::ones({10, 2}, at::kDouble);
  free_storage(finish.residual);

  EXPECT_EQ(sentence_of([&] { return sparse_conv_unit(c.x, c.weight, c.plan, {}, finish); }),
            freed("sparse_conv_unit] residual of shape (10, 2)", "160"));
}

TEST(FreedStorage, PoolingSaysSo) {
  const Convolution c;
  free_storage(c.x);

  EXPECT_EQ(sentence_of([&] { return max_pool_with_indices(c.x, c.plan); }),
            freed("sparse_max_pool] features of shape (10, 4)", "320"));
}

TEST(FreedStorage, APartOfTheBytesIsNotEnough) {
  const Convolution c;
  at::native::resize_bytes_cpu(c.x.storage().unsafeGetStorageImpl(), 32);

  EXPECT_NE(sentence_of([&] { return sparse_conv(c.x, c.weight, c.plan); }).find("holds 32 of its 320 bytes"),
            std::string::npos);
}

TEST(FreedStorage, RowsSaySo) {
  const at::Tensor rows = at::ones({4, 3});
  const at::Tensor index = at::arange(4);
  free_storage(rows);

  EXPECT_EQ(sentence_of([&] { gather_rows(rows, index); }), freed("gather_rows] src of shape (4, 3)", "48"));
}

TEST(FreedStorage, IndicesSaySo) {
  const at::Tensor rows = at::ones({4, 3});
  const at::Tensor index = at::arange(4);
  free_storage(index);

  EXPECT_EQ(sentence_of([&] { gather_rows(rows, index); }), freed("gather_rows] index of shape (4,)", "32"));
}

TEST(FreedStorage, ViewsSaySo) {
  const at::Tensor matrix = at::ones({4, 3});
  free_storage(matrix);

  EXPECT_EQ(sentence_of([&] { dispatch::const_matrix<Device::cpu, ScalarType::f32>("op", "matrix", matrix); }),
            freed("op] matrix of shape (4, 3)", "48"));
}

TEST(FreedStorage, AProductDoesNotTakeItForAnAbsentOperand) {
  const at::Tensor index = at::arange(3);
  const auto infos = sparse_product_infos(index, index, index);
  const at::Tensor x = at::full({2, 3}, 2.0).requires_grad_();
  const at::Tensor y = at::ones({2, 3, 4}).requires_grad_();
  const at::Tensor z = sparse_scavec(x, y, infos.fwd, infos.bwd1, infos.bwd2).sum();
  free_storage(x);

  const std::string sentence = sentence_of([&] { torch::autograd::grad({z}, {y}); });

  EXPECT_NE(sentence.find("of shape (2, 3) has no memory: its storage was freed"), std::string::npos) << sentence;
}

TEST(FreedStorage, AnExecutorSaysSo) {
  const auto pattern = etp::fixed_degree(4, 6, 2, 9);
  const at::Tensor weight = at::ones({pattern.nse()}, at::kDouble);
  etp::Executor executor(etp::make_cell(etp::CellOptions{}),
                         {etp::sparse_primitive(pattern, false), {{"weight", weight}}});
  const at::NoGradGuard guard;
  executor.step(at::ones({3, 4}, at::kDouble));
  free_storage(weight);

  EXPECT_EQ(sentence_of([&] { executor.step(at::ones({3, 4}, at::kDouble)); }),
            freed("etp.step] input.weight of shape (12,)", "96"));
}

}  // namespace
}  // namespace lacewing
