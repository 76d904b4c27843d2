// Convolution on tensor cores: which kernel a call takes.
#include <limits>

#include "kernels/conv_device.h"
#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/conv_small.h"
#include "kernels/cuda/conv_weight_small.h"
#include "kernels/cuda/conv_weight_wgmma.h"
#include "kernels/cuda/conv_wgmma.h"
#include "kernels/cuda/device/launch.h"

namespace lacewing::kernels::cuda {
namespace {

bool is_half(ScalarType type) { return type == ScalarType::f16 || type == ScalarType::bf16; }

template <typename Args>
ConvSizes sizes_of(const Args& args) {
  const DeviceFacts& facts = device_facts();
  return {args.map.target_rows, args.map.taps, args.in, args.out, facts.arch, facts.processors, facts.shared_per_block};
}

bool is_aligned(const void* data, std::uintptr_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

/// Whether rows of a group's channels can be read in vectors (of 16 bytes, or of 8 where there are four) and their
/// bytes be counted by 32 bits.
bool rows_fit(const void* data, std::int64_t stride, std::int64_t channels) {
  const std::int64_t vector = channels % kConvVectorChannels == 0 ? kConvVectorChannels : 4;
  return is_aligned(data, static_cast<std::uintptr_t>(vector * 2)) && stride % vector == 0 &&
         stride <= std::numeric_limits<std::uint32_t>::max() / 2;
}

/// Whether two columns of what follows the sums can be read at once.
bool finish_fits(const ConvArgs& args) {
  const ConvFinish& finish = args.finish;
  return is_aligned(args.bias, 4) && is_aligned(finish.scale, 8) && is_aligned(finish.shift, 8) &&
         is_aligned(finish.residual, 4) && finish.residual_stride % 2 == 0;
}

}  // namespace

bool is_capturing(const CudaExecutor& executor) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(executor.stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

bool has_conv(const ConvArgs& args) {
  return is_half(args.type) && choose_conv(sizes_of(args)).kernel != ConvKernel::none &&
         rows_fit(args.x, args.x_stride, args.in) && is_aligned(args.weight, 16) && finish_fits(args);
}

ConvTableSizes conv_table_sizes(const ConvArgs& args) {
  return {args.map.target_rows, args.map.taps, choose_conv(sizes_of(args)).parts};
}

std::int64_t conv_workspace(const ConvArgs& args) {
  const ConvChoice choice = choose_conv(sizes_of(args));
  return choice.kernel == ConvKernel::wgmma ? conv_wgmma_workspace(args, choice) : 0;
}

void conv(const ConvArgs& args, const ConvTableMemory& tables, const CudaExecutor& executor, void* workspace) {
  const ConvChoice choice = choose_conv(sizes_of(args));
  const ConvTables layout(conv_table_sizes(args));
  const ConvTablesAt at{layout, tables.memory, tables.mirrored};
  if (choice.kernel == ConvKernel::wgmma) {
    conv_wgmma(args, choice, at, executor, workspace);
  } else {
    conv_small(args, choice, at, executor);
  }
}

bool has_conv_weight_grad(const ConvWeightGradArgs& args) {
  return is_half(args.type) && choose_conv_weight_grad(sizes_of(args)) != ConvKernel::none &&
         rows_fit(args.x, args.x_stride, args.in) && rows_fit(args.grad, args.grad_stride, args.out);
}

std::int64_t conv_weight_grad_workspace(const ConvWeightGradArgs& args) {
  return choose_conv_weight_grad(sizes_of(args)) == ConvKernel::wgmma ? conv_weight_wgmma_workspace(args)
                                                                      : conv_weight_small_workspace(args);
}

void conv_weight_grad(const ConvWeightGradArgs& args, const CudaExecutor& executor, void* workspace) {
  if (choose_conv_weight_grad(sizes_of(args)) == ConvKernel::wgmma) {
    conv_weight_wgmma(args, executor, workspace);
  } else {
    conv_weight_small(args, executor, workspace);
  }
}

}  // namespace lacewing::kernels::cuda
