// Pooling over plans and batch items and the merging of voxels, composed of registered ops: their gradients follow.
#include <cmath>
#include <limits>

#include <ATen/Functions.h>
#include <torch/library.h>

#include <lacewing/conv.h>
#include <lacewing/dispatch/torch.h>
#include <lacewing/product.h>

#include "common/refuse_layouts.h"
#include "common/sum_type.h"
#include "conv/check.h"
#include "conv/voxels.h"

namespace lacewing::conv {
namespace {

/// Sums over the pairs of a plan: a depthwise convolution with ones.
at::Tensor pair_sums(const at::Tensor& features, const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  const at::Tensor ones = at::ones_symint({sizes[2], features.sym_size(1), 1, 1}, features.options());
  return conv_op().call(features, ones, std::nullopt, plan, sizes, false);
}

/// (targets, 1): how many pairs each target has, at least 1.
at::Tensor pair_counts(const at::Tensor& features, const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  const at::Tensor ones = at::ones_symint({features.sym_size(0), 1}, features.options());
  return pair_sums(ones, plan, sizes).clamp_min(1);
}

/// Pools compute in the type of their features, whatever autocast says: torch's do so too.
using WithoutAutocast = c10::impl::ExcludeDispatchKeyGuard;

void check_mode(const char* op, std::string_view mode) {
  TORCH_CHECK_VALUE(mode == "sum" || mode == "avg" || mode == "max", "[lacewing.", op,
                    "] mode must be 'sum', 'avg' or 'max', not '", mode, "'");
}

at::Tensor pool(const at::Tensor& features, const at::Tensor& plan, c10::SymIntArrayRef sizes, std::string_view mode) {
  const WithoutAutocast guard(c10::autocast_dispatch_keyset);
  check_dense("pool", {{"features", features}, {"plan", plan}});
  check_mode("pool", mode);
  check_rows("pool", "features", features, check_plan("pool", plan, sizes).source_rows, "source", plan);
  if (mode == "max") {
    return std::get<0>(max_pool_op().call(features, plan, sizes));
  }
  if (mode == "sum") {
    return pair_sums(features, plan, sizes);
  }
  const at::Tensor x = features.to(sum_type(features.scalar_type()));
  return pair_sums(x, plan, sizes).div(pair_counts(x, plan, sizes)).to(features.scalar_type());
}

/// out[m] = the sum of the rows of features with index m.
at::Tensor sums_by_index(const at::Tensor& features, const at::Tensor& index, std::int64_t size) {
  const at::Tensor rows = at::arange(index.size(0), index.options());
  const SparseScaleInfos infos = sparse_scale_infos(index, rows, std::nullopt, size, index.size(0));
  return sparse_scale(features, infos.fwd, infos.bwd);
}

at::Tensor means_by_index(const at::Tensor& features, const at::Tensor& index, std::int64_t size) {
  const at::ScalarType sum = sum_type(features.scalar_type());
  const at::Tensor counts = at::bincount(index, {}, size).clamp_min(1).to(sum);
  return sums_by_index(features.to(sum), index, size).div(counts.unsqueeze(1)).to(features.scalar_type());
}

at::Tensor global(const at::Tensor& features, const at::Tensor& batch, std::int64_t batch_size, std::string_view mode) {
  const WithoutAutocast guard(c10::autocast_dispatch_keyset);
  check_dense("global_pool", {{"features", features}, {"batch", batch}});
  check_mode("global_pool", mode);
  dispatch::detail::check_rank("global_pool", "features", features, 2);
  TORCH_CHECK_VALUE(batch.dim() == 1 && batch.size(0) == features.size(0), "[lacewing.global_pool] ", features.size(0),
                    " rows of features have batch indices of shape ", shape_text(batch.sizes()));
  TORCH_CHECK_VALUE(batch.scalar_type() == at::kInt || batch.scalar_type() == at::kLong,
                    "[lacewing.global_pool] batch must have dtype int32 or int64, not ",
                    dtype_text(batch.scalar_type()));
  TORCH_CHECK_VALUE(batch_size >= 0, "[lacewing.global_pool] batch_size must not be negative, not ", batch_size);
  const at::Tensor items = batch.to(at::kLong);
  if (items.size(0) > 0) {
    const std::int64_t low = items.min().item<std::int64_t>();
    const std::int64_t high = items.max().item<std::int64_t>();
    TORCH_CHECK_VALUE(low >= 0 && high < batch_size, "[lacewing.global_pool] batch index ", low < 0 ? low : high,
                      " is out of range: there are ", batch_size, " batch items");
  }
  if (mode == "max") {
    const at::Tensor empty = at::zeros({batch_size, features.size(1)}, features.options());
    return empty.scatter_reduce(0, items.unsqueeze(1).expand_as(features), features, "amax", /*include_self=*/false);
  }
  return mode == "sum" ? sums_by_index(features, items, batch_size) : means_by_index(features, items, batch_size);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> reduce(const at::Tensor& features, const at::Tensor& coordinates,
                                                      std::string_view reduction) {
  const WithoutAutocast guard(c10::autocast_dispatch_keyset);
  check_dense("reduce_voxels", {{"features", features}, {"coordinates", coordinates}});
  TORCH_CHECK_VALUE(reduction == "sum" || reduction == "mean" || reduction == "first",
                    "[lacewing.reduce_voxels] reduction must be 'sum', 'mean' or 'first', not '", reduction, "'");
  TORCH_CHECK_VALUE(features.dim() == 2 && coordinates.dim() == 2 && features.size(0) == coordinates.size(0),
                    "[lacewing.reduce_voxels] features of shape ", shape_text(features.sizes()),
                    " do not have one row for each row of coordinates of shape ", shape_text(coordinates.sizes()));
  const auto [unique, first, inverse] = lacewing::unique_voxels(coordinates);
  const at::Tensor merged = reduction == "first" ? features.index_select(0, first)
                            : reduction == "sum" ? sums_by_index(features, inverse, unique.size(0))
                                                 : means_by_index(features, inverse, unique.size(0));
  return {merged, unique, inverse};
}

at::Tensor quantized(const at::Tensor& points, at::ArrayRef<double> voxel_size, const at::Tensor& batch) {
  check_dense("quantize", {{"points", points}, {"batch", batch}});
  TORCH_CHECK_VALUE(points.dim() == 2 && points.is_floating_point(),
                    "[lacewing.quantize] points must be floats of shape (points, axes), not ",
                    dtype_text(points.scalar_type()), " of shape ", shape_text(points.sizes()));
  TORCH_CHECK_VALUE(points.size(1) >= 1 && points.size(1) <= kMaxAxes, "[lacewing.quantize] points have ",
                    points.size(1), " axes, but voxels have 1 to ", kMaxAxes);
  TORCH_CHECK_VALUE(static_cast<std::int64_t>(voxel_size.size()) == points.size(1),
                    "[lacewing.quantize] voxel_size has ", voxel_size.size(), " entries, but the points have ",
                    points.size(1), " axes");
  for (const double size : voxel_size) {
    TORCH_CHECK_VALUE(size > 0 && std::isfinite(size),
                      "[lacewing.quantize] voxel_size must be positive and finite, not ", size);
  }
  const std::int64_t count = points.size(0);
  TORCH_CHECK_VALUE(batch.scalar_type() == at::kInt || batch.scalar_type() == at::kLong,
                    "[lacewing.quantize] batch must have dtype int32 or int64, not ", dtype_text(batch.scalar_type()));
  TORCH_CHECK_VALUE(batch.dim() == 0 || (batch.dim() == 1 && batch.size(0) == count), "[lacewing.quantize] ", count,
                    " points have batch indices of shape ", shape_text(batch.sizes()));
  if (batch.numel() > 0) {
    const std::int64_t low = batch.min().item<std::int64_t>();
    const std::int64_t high = batch.max().item<std::int64_t>();
    TORCH_CHECK_VALUE(low >= 0 && high <= std::numeric_limits<std::int32_t>::max(), "[lacewing.quantize] batch index ",
                      low < 0 ? low : high, " does not lie in [0, 2^31)");
  }
  const at::Tensor sizes = at::tensor(voxel_size, at::kDouble).to(points.device());
  const at::Tensor cells = points.detach().to(at::kDouble).div(sizes).floor();
  const at::Tensor bad = cells.ge(-0x1p31).logical_and(cells.lt(0x1p31)).logical_not().any(1);
  if (bad.any().item<bool>()) {
    const std::int64_t row = bad.nonzero().select(0, 0).item<std::int64_t>();
    std::string text;
    for (std::int64_t a = 0; a < points.size(1); ++a) {
      text += (a == 0 ? "" : ", ") + c10::str(points.select(0, row).select(0, a).item<double>());
    }
    TORCH_CHECK_VALUE(false, "[lacewing.quantize] points[", row, "] = (", text, ") does not fit an int32 voxel");
  }
  const at::Tensor column = batch.to(points.device(), at::kInt).expand({count}).unsqueeze(1);
  return at::cat({column, cells.to(at::kInt)}, 1);
}

void check_unpool_rows(const at::Tensor& rows, const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  check_dense("max_unpool", {{"rows", rows}, {"plan", plan}});
  TORCH_CHECK_VALUE(rows.scalar_type() == at::kLong && rows.dim() == 2,
                    "[lacewing.max_unpool] rows must be int64 of two dimensions, not ", dtype_text(rows.scalar_type()),
                    " of shape ", shape_text(rows.sizes()));
  check_plan("max_unpool", plan, sizes);
  const PlanMeta description = known_plan(sizes);
  const std::int64_t source_rows = description.source_rows();
  if (rows.numel() == 0 || rows.size(0) != description.target_rows()) {
    return;  // which shape there should be, the op itself says
  }
  const std::int64_t low = rows.min().item<std::int64_t>();
  const std::int64_t high = rows.max().item<std::int64_t>();
  TORCH_CHECK_VALUE(low >= -1 && high < source_rows, "[lacewing.max_unpool] row ", low < -1 ? low : high,
                    " is out of range: the plan's source has ", source_rows, " voxels");
  const at::NoGradGuard guard;
  const at::Tensor ones = at::ones(rows.sizes(), rows.options().dtype(at::kDouble));
  const at::Tensor placed = max_pool_grad_op().call(ones, rows, plan, sizes).sum();
  TORCH_CHECK_VALUE(placed.item<double>() == rows.ge(0).sum().item<double>(),
                    "[lacewing.max_unpool] a row is not one of the source voxels of its target");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("sparse_pool(Tensor features, Tensor plan, SymInt[] sizes, str mode) -> Tensor", pool);
  m.def("global_pool(Tensor features, Tensor batch, int batch_size, str mode) -> Tensor", global);
  m.def("reduce_voxels(Tensor features, Tensor coordinates, str reduction) -> (Tensor, Tensor, Tensor)", reduce);
  m.def("check_unpool_rows(Tensor rows, Tensor plan, SymInt[] sizes) -> ()", check_unpool_rows);
  m.def("quantize(Tensor points, float[] voxel_size, Tensor batch) -> Tensor", quantized);
}

// vmap takes the composition apart too, instead of its fallback; the ops within have rules of their own.
TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatchedDecomposition, m) {
  m.impl("sparse_pool", pool);
  m.impl("global_pool", global);
  m.impl("reduce_voxels", reduce);
}

}  // namespace lacewing::conv
