// Sparse tensors that are at::Tensors: every torch op takes them, in C++ and in Python.
//
// A sparse tensor has entries at some indices of its leading (sparse) dims, each a dense block over its trailing dims,
// and a fill elsewhere. Ops keep the format where they can, and return a strided tensor where they cannot, under the
// densify policy. Gradients flow to the values and to the fill, to any order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <lacewing/export.h>

namespace lacewing {

/// What an element without an entry is: one number, nothing (a graph without an edge), or a block of the dense dims.
enum class FillKind : int { scalar, undefined, array };

/// A fill. The default is the number 0.
struct LACEWING_API Fill {
  FillKind kind = FillKind::scalar;
  at::Tensor value;  ///< scalar: 0-d (undefined tensor: 0); array: the dense shape

  static Fill undefined() { return {FillKind::undefined, {}}; }
  /// `value` 0-d: a scalar. Otherwise an array.
  static Fill of(at::Tensor value);
  static Fill of(const at::Scalar& value);
};

/// A fill whose dtype or device is not that of the values. Python sees a TypeError.
using FillError = c10::TypeError;

/// The sparse tensor with these entries.
///
/// indices (sparse dims, nse), integers; values (nse, *dense shape). Duplicates add. `size` is the whole shape; without
/// it, the sparse sizes are one more than the largest index. Differentiable in values and fill. Keeps `values` as they
/// are, and `indices` where they are int64. Throws c10::Error with one sentence.
LACEWING_API at::Tensor sparse_coo_tensor(const at::Tensor& indices, const at::Tensor& values,
                                          at::OptionalIntArrayRef size = {}, const Fill& fill = {});

/// The entries of a strided tensor that differ from the fill; with an array fill or an undefined one, those of blocks
/// with a nonzero difference (undefined: a nonzero value). The leading `sparse_dims` dims are sparse, all by default.
LACEWING_API at::Tensor to_sparse(const at::Tensor& dense, std::optional<std::int64_t> sparse_dims = {},
                                  const Fill& fill = {});

/// The strided tensor. An undefined fill needs `fill`, which stands for it.
LACEWING_API at::Tensor to_dense(const at::Tensor& sparse, const std::optional<at::Tensor>& fill = {});

/// Whether it is a tensor of this library.
LACEWING_API bool is_sparse_tensor(const at::Tensor& tensor);

LACEWING_API const at::Tensor& indices(const at::Tensor& sparse);
LACEWING_API const at::Tensor& values(const at::Tensor& sparse);
LACEWING_API const Fill& fill_value(const at::Tensor& sparse);
LACEWING_API std::int64_t nse(const at::Tensor& sparse);
LACEWING_API std::int64_t sparse_dim(const at::Tensor& sparse);
LACEWING_API std::int64_t dense_dim(const at::Tensor& sparse);

/// Entries sorted by index, duplicates added.
LACEWING_API at::Tensor coalesce(const at::Tensor& sparse);
LACEWING_API bool is_coalesced(const at::Tensor& sparse);
/// Without the entries that equal the fill (an undefined fill has none).
LACEWING_API at::Tensor prune(const at::Tensor& sparse);
/// The same entries with another fill.
LACEWING_API at::Tensor with_fill(const at::Tensor& sparse, const Fill& fill);
/// A = additive + COO(fill 0): the fill, and the sparse part whose values have it subtracted.
LACEWING_API std::pair<at::Tensor, at::Tensor> to_additive(const at::Tensor& sparse);
LACEWING_API at::Tensor from_additive(const at::Tensor& additive, const at::Tensor& sparse);

/// When an op may turn a sparse tensor into a strided one by itself: it warns above one number of bytes and raises
/// above another. The environment variable LACEWING_DENSIFY (allow, warn:64MiB, raise:16MiB) gives the first one.
struct LACEWING_API DensifyPolicy {
  std::int64_t warn_above = std::int64_t{64} << 20;
  std::int64_t raise_above = std::int64_t{4} << 30;

  static DensifyPolicy allow();
  static DensifyPolicy warn(std::int64_t bytes);
  static DensifyPolicy raise(std::int64_t bytes);
};
LACEWING_API DensifyPolicy densify_policy();
/// For the process.
LACEWING_API void set_densify_policy(const DensifyPolicy& policy);

/// For this thread, while it lives.
class LACEWING_API DensifyScope {
 public:
  explicit DensifyScope(const DensifyPolicy& policy);
  ~DensifyScope();
  DensifyScope(const DensifyScope&) = delete;
  DensifyScope& operator=(const DensifyScope&) = delete;

 private:
  std::optional<DensifyPolicy> previous_;
};

}  // namespace lacewing
