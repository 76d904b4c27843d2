#include "conv/gather_gemm_scatter.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zero.h>
#include <c10/core/DeviceGuard.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "common/stream.h"
#include "common/sum_type.h"
#include "kernels/dispatch/rows.h"

namespace lacewing::conv {
namespace {

using kernels::IndexArg;
using kernels::RowsArg;

bool is_half(at::ScalarType type) { return sum_type(type) != type; }

/// A workspace that is handed out from its front.
class Workspace {
 public:
  Workspace(std::int64_t bytes, const at::Tensor& like)
      : memory_(empty_result({bytes}, like.options().dtype(at::kByte))) {}

  at::Tensor take(std::int64_t rows, std::int64_t columns, at::ScalarType type) {
    const std::int64_t bytes = rows * columns * static_cast<std::int64_t>(c10::elementSize(type));
    const at::Tensor part = memory_.narrow(0, next_, bytes).view(type).view({rows, columns});
    next_ += aligned(bytes);
    return part;
  }

  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
  static std::int64_t size(std::int64_t rows, std::int64_t columns, at::ScalarType type) {
    return aligned(rows * columns * static_cast<std::int64_t>(c10::elementSize(type)));
  }

 private:
  at::Tensor memory_;
  std::int64_t next_ = 0;
};

RowsArg rows_of(const at::Tensor& matrix) {
  return {const_cast<void*>(matrix.const_data_ptr()),
          scalar_type("sparse_conv", "features", matrix.scalar_type()),
          matrix.size(0),
          matrix.size(1),
          matrix.stride(0),
          matrix.stride(1)};
}

IndexArg index_of(const std::int32_t* rows, std::int64_t count) { return {rows, IndexType::i32, count, 1}; }

/// The row kernels of a tensor's device.
class Rows {
 public:
  explicit Rows(const at::Tensor& like) : device_(like.device()) {}

  void gather(const at::Tensor& from, const at::Tensor& to, const std::int32_t* rows) const {
    call([&](auto kernels, auto executor) {
      kernels.gather(executor, rows_of(from), rows_of(to), index_of(rows, to.size(0)));
    });
  }
  void scatter_add(const at::Tensor& from, const at::Tensor& to, const std::int32_t* rows) const {
    call([&](auto kernels, auto executor) {
      kernels.scatter_add(executor, rows_of(from), rows_of(to), index_of(rows, from.size(0)));
    });
  }

 private:
  template <typename F>
  void call(F&& f) const {
    if (device_.is_cuda()) {
      f(kernels::cuda_row_kernels(), current_stream(device_));
    } else {
      f(kernels::cpu_row_kernels(), torch_executor());
    }
  }

  at::Device device_;
};

}  // namespace

std::int64_t GemmConv::workspace(at::ScalarType type) const {
  const at::ScalarType sum = sum_type(type);
  std::int64_t bytes = Workspace::size(longest_tap, groups * in, sum) + Workspace::size(longest_tap, groups * out, sum);
  if (is_half(type)) {
    bytes += Workspace::size(map.source_rows, groups * in, sum) + Workspace::size(map.taps * groups * in, out, sum) +
             Workspace::size(map.target_rows, groups * out, sum) + Workspace::size(1, groups * out, sum);
  }
  return bytes;
}

at::Tensor GemmConv::run(const at::Tensor& features, const at::Tensor& weight, const at::Tensor& bias) const {
  const c10::DeviceGuard guard(features.device());
  const at::ScalarType type = features.scalar_type();
  const at::ScalarType sum = sum_type(type);
  const at::Tensor y = empty_result({map.target_rows, groups * out}, features.options());
  Workspace space(workspace(type), features);
  const at::Tensor rows = space.take(longest_tap, groups * in, sum);
  const at::Tensor products = space.take(longest_tap, groups * out, sum);
  at::Tensor x = features;
  at::Tensor w = weight;
  at::Tensor sums = y;
  if (is_half(type)) {
    x = space.take(map.source_rows, groups * in, sum).copy_(features);
    w = space.take(map.taps * groups * in, out, sum).view(weight.sizes()).copy_(weight);
    sums = space.take(map.target_rows, groups * out, sum);
  }
  if (transposed) {
    w = w.transpose(2, 3);
  }
  /// to[:, group] = from[:, group] @ w[tap, group]
  const auto multiply = [&](std::int64_t tap, const at::Tensor& from, at::Tensor to) {
    if (in == 1 && out == 1) {
      at::mul_out(to, from, w.select(0, tap).view({1, groups}));
      return;
    }
    if (groups == 1) {
      at::mm_out(to, from, w.select(0, tap).select(0, 0));
      return;
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      at::Tensor block = to.narrow(1, g * out, out);
      at::mm_out(block, from.narrow(1, g * in, in), w.select(0, tap).select(0, g));
    }
  };
  if (map.identity_tap >= 0) {
    multiply(map.identity_tap, x, sums);
  } else {
    sums.zero_();
  }
  const Rows kernels(features);
  for (std::int64_t tap = 0; tap < map.taps; ++tap) {
    const std::int64_t begin = map.tap_offsets[tap];
    const std::int64_t count = map.tap_offsets[tap + 1] - begin;
    if (count == 0 || tap == map.identity_tap) {
      continue;
    }
    const at::Tensor gathered = rows.narrow(0, 0, count);
    const at::Tensor product = products.narrow(0, 0, count);
    kernels.gather(x, gathered, map.source + begin);
    multiply(tap, gathered, product);
    kernels.scatter_add(product, sums, map.target + begin);
  }
  if (bias.defined()) {
    // Widened where there is room for it: torch would make a copy of its own.
    sums.add_(is_half(type) ? space.take(1, groups * out, sum).copy_(bias) : bias);
  }
  if (is_half(type)) {
    y.copy_(sums);
  }
  return y;
}

std::int64_t GemmConv::weight_grad_workspace(at::ScalarType type) const {
  const at::ScalarType sum = sum_type(type);
  std::int64_t bytes =
      Workspace::size(product_rows(), groups * in, sum) + Workspace::size(longest_tap, groups * out, sum);
  if (is_half(type)) {
    bytes += Workspace::size(map.source_rows, groups * in, sum) + Workspace::size(map.target_rows, groups * out, sum) +
             Workspace::size(map.taps * groups * in, out, sum);
  }
  return bytes;
}

at::Tensor GemmConv::weight_grad(const at::Tensor& features, const at::Tensor& grad) const {
  const c10::DeviceGuard guard(features.device());
  const at::ScalarType type = features.scalar_type();
  const at::ScalarType sum = sum_type(type);
  const at::Tensor result = empty_result({map.taps, groups, in, out}, features.options());
  Workspace space(weight_grad_workspace(type), features);
  const at::Tensor left = space.take(product_rows(), groups * in, sum);
  const at::Tensor right = space.take(longest_tap, groups * out, sum);
  at::Tensor x = features;
  at::Tensor g = grad;
  at::Tensor sums = result;
  if (is_half(type)) {
    x = space.take(map.source_rows, groups * in, sum).copy_(features);
    g = space.take(map.target_rows, groups * out, sum).copy_(grad);
    sums = space.take(map.taps * groups * in, out, sum).view(result.sizes());
  }
  sums.zero_();
  const Rows kernels(features);
  for (std::int64_t tap = 0; tap < map.taps; ++tap) {
    const std::int64_t begin = map.tap_offsets[tap];
    const std::int64_t count = map.tap_offsets[tap + 1] - begin;
    if (count == 0) {
      continue;
    }
    at::Tensor from = x;
    at::Tensor to = g;
    if (tap != map.identity_tap) {
      from = left.narrow(0, 0, count);
      to = right.narrow(0, 0, count);
      kernels.gather(x, from, map.source + begin);
      kernels.gather(g, to, map.target + begin);
    }
    if (in == 1 && out == 1) {
      at::Tensor row = sums.select(0, tap).view({groups});
      at::Tensor product = left.narrow(0, 0, count);
      at::mul_out(product, from, to);
      at::sum_out(row, product, 0);
      continue;
    }
    for (std::int64_t group = 0; group < groups; ++group) {
      at::Tensor block = sums.select(0, tap).select(0, group);
      at::mm_out(block, from.narrow(1, group * in, in).t(), to.narrow(1, group * out, out));
    }
  }
  if (is_half(type)) {
    result.copy_(sums);
  }
  return result;
}

}  // namespace lacewing::conv
