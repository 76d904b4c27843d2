// The kernels under sparse convolution. Torch-free.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/tag.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

/// Rows of a tile table: a tile of a kernel is one or more of these.
inline constexpr std::int64_t kConvTileRows = 128;

/// The pairs (source row, target row) of a convolution, tap after tap. Inside a tap both rows strictly increase in the
/// sorted order of their voxels, so each occurs at most once.
struct ConvMap {
  std::int64_t source_rows = 0;
  std::int64_t target_rows = 0;
  std::int64_t taps = 0;
  const std::int64_t* tap_offsets = nullptr;   ///< (taps + 1), in host memory: the pairs of tap k
  const std::int32_t* source = nullptr;        ///< (pairs)
  const std::int32_t* target = nullptr;        ///< (pairs)
  const std::int32_t* target_order = nullptr;  ///< (target_rows): the row of each sorted voxel; null is the identity
  /// (taps, tiles + 1): where, from the tap's first pair on, those begin whose target lies in a tile of kConvTileRows
  /// sorted voxels.
  const std::int32_t* target_tiles = nullptr;
  std::int64_t identity_tap = -1;  ///< the tap whose pairs are (0, 0), (1, 1), ... for all rows, or -1

  std::int64_t pairs() const { return tap_offsets[taps]; }
  /// The order in which a target's products are added: the identity tap first, the others as they are numbered.
  std::int64_t tap_at(std::int64_t step) const {
    return step > identity_tap ? step : step == 0 && identity_tap >= 0 ? identity_tap : step - 1;
  }
  std::int64_t tiles() const { return (target_rows + kConvTileRows - 1) / kConvTileRows; }
};

/// What happens to a row of sums before it is written: relu(scale * sums + shift + residual), each where it is given.
/// Scale and shift come together, (groups * out) of the accumulate type; the rows of the residual are those of y.
struct ConvFinish {
  const void* scale = nullptr;
  const void* shift = nullptr;
  const void* residual = nullptr;
  std::int64_t residual_stride = 0;
  bool relu = false;
};

/// y[target, g, :] = bias[g, :] + sum over pairs of x[source, g, :] @ w[tap, g], or @ w[tap, g]^T where transposed.
/// Rows are contiguous in their channels (groups * in, groups * out).
struct ConvArgs {
  ScalarType type = ScalarType::f32;
  ConvMap map;
  std::int64_t groups = 1;
  std::int64_t in = 0;   ///< channels of x in a group
  std::int64_t out = 0;  ///< channels of y in a group
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const void* weight = nullptr;  ///< (taps, groups, in, out), or (taps, groups, out, in) where transposed
  bool transposed = false;
  const void* bias = nullptr;  ///< (groups * out) or null
  void* y = nullptr;           ///< (target_rows, groups * out), dense
  ConvFinish finish;
};

/// out[tap, g] = sum over the tap's pairs of the outer product of x[source, g] and grad[target, g].
struct ConvWeightGradArgs {
  ScalarType type = ScalarType::f32;
  ConvMap map;
  std::int64_t groups = 1;
  std::int64_t in = 0;
  std::int64_t out = 0;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const void* grad = nullptr;
  std::int64_t grad_stride = 0;
  void* weight_grad = nullptr;  ///< (taps, groups, in, out), dense
};

/// The four types of features.
template <typename F>
void visit_conv_type(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::f16: return f(Half{});
    case ScalarType::bf16: return f(BFloat16{});
    case ScalarType::f64: return f(double{});
    default: return f(float{});
  }
}

namespace reference {
void conv(const ConvArgs& args);
void conv_weight_grad(const ConvWeightGradArgs& args);
}  // namespace reference

namespace cpu {
/// Bytes of workspace that the calls below need with so many threads.
std::int64_t conv_workspace(const ConvArgs& args, int threads);
std::int64_t conv_weight_grad_workspace(const ConvWeightGradArgs& args, int threads);
void conv(const ConvArgs& args, const CpuExecutor& executor, void* workspace);
void conv_weight_grad(const ConvWeightGradArgs& args, const CpuExecutor& executor, void* workspace);
}  // namespace cpu

}  // namespace lacewing::kernels
