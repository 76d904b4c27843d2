// Sparse tensors that are at::Tensors: every torch op takes them, in C++ and in Python.
//
// A sparse tensor has entries at some indices of its leading (sparse) dims, each a dense block over its trailing dims,
// and a fill elsewhere. Ops keep the format where they can, and return a strided tensor where they cannot, under the
// densify policy. Gradients flow to the values and to the fill, to any order.
//
// Threads may call every function here at once, also on one sparse tensor: what it finds out about its indices is kept
// under a lock. As for every tensor of torch, none may write to it meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/Scalar.h>
#include <c10/util/Exception.h>

#include <lacewing/export.h>
#include <lacewing/formula.h>

namespace lacewing {

/// What an element without an entry is: one number, nothing (a graph without an edge), or a block of the dense dims.
enum class FillKind : int { scalar, undefined, array };

/// A fill. The default is the number 0.
struct LACEWING_API Fill {
  FillKind kind = FillKind::scalar;
  at::Tensor value;                                 ///< scalar: 0-d (undefined tensor: 0); array: the dense shape
  std::optional<at::Scalar> number = std::nullopt;  ///< of a scalar, where the host knows it: nothing waits for a GPU

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
[[nodiscard]] LACEWING_API at::Tensor sparse_coo_tensor(const at::Tensor& indices, const at::Tensor& values,
                                                        at::OptionalIntArrayRef size = {}, const Fill& fill = {});

/// The entries of a strided tensor that differ from the fill; with an array fill or an undefined one, those of blocks
/// with a nonzero difference (undefined: a nonzero value). The leading `sparse_dims` dims are sparse, all by default.
[[nodiscard]] LACEWING_API at::Tensor to_sparse(const at::Tensor& dense, std::optional<std::int64_t> sparse_dims = {},
                                                const Fill& fill = {});

/// The strided tensor. An undefined fill needs `fill`, which stands for it.
[[nodiscard]] LACEWING_API at::Tensor to_dense(const at::Tensor& sparse, const std::optional<at::Tensor>& fill = {});

/// Whether it is a tensor of this library.
[[nodiscard]] LACEWING_API bool is_sparse_tensor(const at::Tensor& tensor);

/// The entries as edges, from columns to rows: of a tensor with two sparse dims, in the order of its entries. Built
/// anew by every call.
[[nodiscard]] LACEWING_API Edges edges_of(const at::Tensor& sparse);

[[nodiscard]] LACEWING_API at::Tensor indices(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API at::Tensor values(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API Fill fill_value(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API std::int64_t nse(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API std::int64_t sparse_dim(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API std::int64_t dense_dim(const at::Tensor& sparse);

/// Entries sorted by index, duplicates added.
[[nodiscard]] LACEWING_API at::Tensor coalesce(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API bool is_coalesced(const at::Tensor& sparse);
/// Without the entries that equal the fill (an undefined fill has none).
[[nodiscard]] LACEWING_API at::Tensor prune(const at::Tensor& sparse);
/// The same entries with another fill.
[[nodiscard]] LACEWING_API at::Tensor with_fill(const at::Tensor& sparse, const Fill& fill);
/// The same places and fill with other values, of any dense shape that the fill takes: `values` (nse, *dense shape).
/// What was derived from the indices is shared, so that a module makes its tensor anew from its parameter in every
/// forward. Differentiable in values and fill.
[[nodiscard]] LACEWING_API at::Tensor with_values(const at::Tensor& sparse, const at::Tensor& values);
/// A = additive + COO(fill 0): the fill, and the sparse part whose values have it subtracted.
[[nodiscard]] LACEWING_API std::pair<at::Tensor, at::Tensor> to_additive(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API at::Tensor from_additive(const at::Tensor& additive, const at::Tensor& sparse);

/// How a sparse tensor holds its indices. COO: one column of indices for each entry. GCRS, GCCS: the sparse dims are
/// split into two ordered groups, which make up the rows and the columns of a matrix (the last dim of a group runs
/// fastest), held as compressed rows or compressed columns. In two dims these are CSR and CSC.
///
/// Every op takes every format; sparse results have that of the first sparse operand, with its split where they have as
/// many sparse dims (rows = dim 0 otherwise), and with fewer than two sparse dims they are COO.
enum class Format : int { coo, gcrs, gccs };

[[nodiscard]] LACEWING_API Format format(const at::Tensor& sparse);
/// The dims that make up the rows and the columns; none for COO.
[[nodiscard]] LACEWING_API std::vector<std::int64_t> row_dims(const at::Tensor& sparse);
[[nodiscard]] LACEWING_API std::vector<std::int64_t> col_dims(const at::Tensor& sparse);
/// Where the entries of each row (GCCS: column) begin: (rows + 1,).
[[nodiscard]] LACEWING_API at::Tensor compressed_indices(const at::Tensor& sparse);
/// The column (GCCS: row) of each entry: (nse,).
[[nodiscard]] LACEWING_API at::Tensor plain_indices(const at::Tensor& sparse);

/// The same tensor in GCRS or, `by_column`, in GCCS: entries sorted, duplicates added, in linear time. `row_dims` is
/// the first dim by default, `col_dims` the other ones in ascending order. Fewer than two sparse dims stay COO.
/// Differentiable in values and fill.
[[nodiscard]] LACEWING_API at::Tensor to_gcs(const at::Tensor& sparse, at::OptionalIntArrayRef row_dims = {},
                                             at::OptionalIntArrayRef col_dims = {}, bool by_column = false);
/// The same entries, in their order, in COO.
[[nodiscard]] LACEWING_API at::Tensor to_coo(const at::Tensor& sparse);

/// The sparse tensor of compressed arrays, which it keeps as they are (int32 or int64): those of CSR or, `by_column`,
/// of CSC in two dims. Entries of a row may come in any order; duplicates add. `size` is the whole shape.
[[nodiscard]] LACEWING_API at::Tensor sparse_gcs_tensor(const at::Tensor& compressed_indices,
                                                        const at::Tensor& plain_indices, const at::Tensor& values,
                                                        at::IntArrayRef size, at::OptionalIntArrayRef row_dims = {},
                                                        at::OptionalIntArrayRef col_dims = {}, bool by_column = false,
                                                        const Fill& fill = {});

/// A sparse tensor of torch's own (COO, CSR, CSC, BSR, BSC), with fill 0. COO, CSR and CSC share their memory with the
/// result; batches of matrices have a batch dim, as rows of GCRS; blocks become entries. Differentiable.
[[nodiscard]] LACEWING_API at::Tensor from_torch(const at::Tensor& sparse);
/// torch's own sparse tensor of a layout; it shares memory with a COO, CSR or CSC tensor of that layout. The fill must
/// be 0. torch::kSparseBsr and torch::kSparseBsc need `blocksize`. Differentiable.
[[nodiscard]] LACEWING_API at::Tensor to_torch(const at::Tensor& sparse, at::Layout layout = at::kSparse,
                                               at::OptionalIntArrayRef blocksize = {});

/// The view of `values` whose element I is their element number sum(strides * I): of values that are contiguous, or a
/// vector. Throws where an element would lie outside of the values. Differentiable.
[[nodiscard]] LACEWING_API at::Tensor strided(at::IntArrayRef strides, const at::Tensor& values, at::IntArrayRef shape);

/// The dims, outermost first, in whose order a strided array is C-contiguous, or none: `a.permute(order)` is
/// contiguous. Dims of size 1 stay at their places, and an array without elements is contiguous as it is.
[[nodiscard]] LACEWING_API std::optional<std::vector<std::int64_t>> contiguous_order(at::IntArrayRef shape,
                                                                                     at::IntArrayRef strides);

/// (dims, nse): distinct random places within the size, sorted. Memory in proportion to nse.
[[nodiscard]] LACEWING_API at::Tensor random_indices(at::IntArrayRef size, std::int64_t nse,
                                                     at::Device device = at::kCPU,
                                                     std::optional<at::Generator> generator = {});

/// The matrix with diagonals: offset 0 is the main one, k > 0 lies above it, k < 0 below; a diagonal of one number is
/// repeated. Without `size` the matrix is square and fits the longest. Differentiable; those of one offset add.
[[nodiscard]] LACEWING_API at::Tensor diags(at::TensorList diagonals, at::IntArrayRef offsets,
                                            at::OptionalIntArrayRef size = {});

/// When an op may turn a sparse tensor into a strided one by itself: it warns above one number of bytes and raises
/// above another. The environment variable LACEWING_DENSIFY (allow, warn:64MiB, raise:16MiB) gives the first one.
struct LACEWING_API DensifyPolicy {
  std::int64_t warn_above = std::int64_t{64} << 20;
  std::int64_t raise_above = std::int64_t{4} << 30;

  static DensifyPolicy allow();
  static DensifyPolicy warn(std::int64_t bytes);
  static DensifyPolicy raise(std::int64_t bytes);
};
[[nodiscard]] LACEWING_API DensifyPolicy densify_policy();
/// For the process.
LACEWING_API void set_densify_policy(const DensifyPolicy& policy);

/// For this thread, while it lives.
class LACEWING_API DensifyScope {
 public:
  [[nodiscard]] explicit DensifyScope(const DensifyPolicy& policy);
  ~DensifyScope();
  DensifyScope(const DensifyScope&) = delete;
  DensifyScope& operator=(const DensifyScope&) = delete;

 private:
  std::optional<DensifyPolicy> previous_;
};

}  // namespace lacewing
