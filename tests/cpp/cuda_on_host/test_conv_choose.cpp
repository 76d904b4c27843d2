// Which kernel and tile a convolution takes on a device.
#include <gtest/gtest.h>

#include "kernels/cuda/conv_choose.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr std::int64_t kSharedOfHopper = 227 << 10;
constexpr std::int64_t kSharedOfProcessor = 228 << 10;
constexpr std::int64_t kReservedForBlock = 1 << 10;

ConvSizes on_hopper(std::int64_t rows, std::int64_t in, std::int64_t out, std::int64_t taps = 27) {
  return {rows, taps, in, out, 90, 132, kSharedOfHopper};
}

TEST(ChooseConv, TakesTheSmallKernelWhereAllWeightsFitSharedMemory) {
  EXPECT_EQ(choose_conv(on_hopper(1000, 4, 32)), (ConvChoice{ConvKernel::small, 32, ConvTile::one_set, 1}));
  EXPECT_EQ(choose_conv(on_hopper(1000, 32, 4)).columns, 8);
  EXPECT_EQ(choose_conv(on_hopper(1000, 4, 32, 125)).kernel, ConvKernel::small);
  EXPECT_EQ(choose_conv(on_hopper(1000, 32, 32, 125)).kernel, ConvKernel::wgmma);
}

TEST(ChooseConv, TakesColumnsThatHoldTheOutput) {
  EXPECT_EQ(choose_conv(on_hopper(1000, 64, 64)).columns, 64);
  EXPECT_EQ(choose_conv(on_hopper(1000, 64, 96)).columns, 128);
  EXPECT_EQ(choose_conv(on_hopper(1000, 64, 136)).columns, 256);
  EXPECT_EQ(choose_conv(on_hopper(1000, 64, 512)).columns, 256);
}

TEST(ChooseConv, CutsManyTapsInTwoWhereATileMultipliesMuch) {
  EXPECT_EQ(choose_conv(on_hopper(1000, 256, 256)).parts, 2);
  EXPECT_EQ(choose_conv(on_hopper(1000, 256, 256, 8)).parts, 1);
  EXPECT_EQ(choose_conv(on_hopper(1000, 256, 256, 125)).parts, 1);  // a row's taps are more than a word
  EXPECT_EQ(choose_conv(on_hopper(1000, 64, 64)).parts, 1);
}

TEST(ChooseConv, HasNoKernelForRowsThatAreNoVectors) {
  for (const std::int64_t channels : {0, 1, 3, 5, 12, 100}) {
    EXPECT_EQ(choose_conv(on_hopper(1000, channels, 64)).kernel, ConvKernel::none) << channels;
    EXPECT_EQ(choose_conv(on_hopper(1000, 64, channels)).kernel, ConvKernel::none) << channels;
  }
  EXPECT_EQ(choose_conv(on_hopper(1000, 4, 64)).kernel, ConvKernel::none);
}

TEST(ChooseConv, RunsWgmmaOnHopperAloneAndTheSmallKernelsFromAmpereOn) {
  for (const int arch : {75, 80, 86, 89, 90, 100, 120}) {
    ConvSizes sizes = on_hopper(1000, 64, 64);
    sizes.arch = arch;
    EXPECT_EQ(choose_conv(sizes).kernel == ConvKernel::wgmma, arch == 90) << arch;
    EXPECT_EQ(choose_conv_weight_grad(sizes) == ConvKernel::wgmma, arch == 90) << arch;
    sizes.in = sizes.out = 16;
    EXPECT_EQ(choose_conv(sizes).kernel == ConvKernel::small, arch >= 80) << arch;
    EXPECT_EQ(choose_conv_weight_grad(sizes) == ConvKernel::small, arch >= 80) << arch;
  }
}

/// Whether so many blocks of a ring fit a processor.
bool fits(const WgmmaShape& shape, std::int64_t stage_bytes) {
  return shape.blocks * (wgmma_ring_bytes(shape.stages, stage_bytes) + kReservedForBlock) <= kSharedOfProcessor;
}

TEST(WgmmaShapes, FitSharedMemory) {
  for (const int columns : {64, 128, 256}) {
    EXPECT_TRUE(fits(wgmma_shape(2, columns), wgmma_stage_bytes(2, columns))) << columns;
  }
  EXPECT_TRUE(fits(wgmma_shape(3, 128), wgmma_stage_bytes(3, 128)));
  for (const int blocks : {1, 2}) {
    for (const int columns : {64, 128, 256}) {
      EXPECT_TRUE(fits(weight_grad_shape(blocks, columns), (blocks + columns / 64) * 64 * 128)) << columns;
    }
  }
}

TEST(WgmmaShapes, MoveNoMoreRegistersThanABlockBeganWith) {
  EXPECT_TRUE(registers_fit({4, 1, 216, 72}, 2));
  EXPECT_FALSE(registers_fit({4, 1, 208, 96}, 2));  // 65536 in all, but a block of 384 threads begins with 168 each
  EXPECT_FALSE(registers_fit({4, 2, 216, 72}, 2));
}

TEST(WeightGradChunk, IsWholeStepsAndLeavesSumsForFewBlocks) {
  for (const std::int64_t channels : {4, 32, 64, 128, 256}) {
    for (const std::int64_t pairs : {1, 63, 1000, 80000, 640000, 10000000}) {
      const std::int64_t chunk = weight_grad_chunk(pairs, channels, channels);
      EXPECT_EQ(chunk % 64, 0);
      EXPECT_TRUE(pairs < 256 * 64 || chunk < pairs);
    }
  }
  EXPECT_GT(weight_grad_chunk(80000, 256, 256), weight_grad_chunk(80000, 64, 64));
}

}  // namespace
}  // namespace lacewing::kernels::cuda
