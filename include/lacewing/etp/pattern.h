// The fixed places of a sparse matrix W of shape (I, O); its values come from outside and train.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>
#include <lacewing/info.h>

namespace lacewing::etp {

enum class PatternFormat : std::uint8_t { coo, csr, csc };

struct SparseMatrix;

/// Entry p lies at (row(p), col(p)) = (input, output). Values are (nse,) in the order in which the entries were given.
/// Places may repeat: each is an entry of its own. Immutable, cheap to copy, shared freely between threads; moving is
/// copying, so that no pattern is ever empty. Indices are checked, copied and sorted here, once; builders throw
/// c10::Error with one sentence.
class LACEWING_API SparsePattern {
 public:
  SparsePattern(const SparsePattern&) = default;
  SparsePattern& operator=(const SparsePattern&) = default;

  static SparsePattern coo(const at::Tensor& row, const at::Tensor& col, std::int64_t rows, std::int64_t cols);
  /// crow: (rows + 1,), col: (nse,).
  static SparsePattern csr(const at::Tensor& crow, const at::Tensor& col, std::int64_t rows, std::int64_t cols);
  /// ccol: (cols + 1,), row: (nse,).
  static SparsePattern csc(const at::Tensor& ccol, const at::Tensor& row, std::int64_t rows, std::int64_t cols);

  PatternFormat format() const;
  std::int64_t rows() const;
  std::int64_t cols() const;
  std::int64_t nse() const;
  at::Device device() const;
  const at::Tensor& row() const;  ///< (nse,) int64
  const at::Tensor& col() const;  ///< (nse,) int64
  SparsePattern to(at::Device device) const;

  /// The same pattern with values: (nse,), floating.
  SparseMatrix with_data(const at::Tensor& data) const;

  /// x @ W with W = sparse(values): (..., I) -> (..., O). Differentiable to any order for both.
  at::Tensor matmul(const at::Tensor& x, const at::Tensor& values) const;
  /// Throws c10::Error where matmul would refuse x or the values.
  void check_matmul(const at::Tensor& x, const at::Tensor& values) const;
  /// dw[p] = x[row p] * g[col p], summed over the batch where there is one: (I,), (O,) or (B, I), (B, O) -> (nse,).
  at::Tensor sampled_outer(const at::Tensor& x, const at::Tensor& g) const;
  /// out[k] = t[k] * y[row k]: y (I,) or (B, I), with a last dim S where it differs by state; t (nse,), (nse, S) or
  /// with a batch B in front. The result has the shape of t.
  at::Tensor yw_to_w(const at::Tensor& y, const at::Tensor& t) const;
  /// out[k] = t[k] * y[col k]: the same with y of O entries.
  at::Tensor yw_to_w_transposed(const at::Tensor& y, const at::Tensor& t) const;

  /// The plans of matmul and its two gradients, as lacewing::sparse_scavec takes them.
  std::vector<InfoPlan> forward_plans() const;

  /// Entries sorted by column, as the fused trace update takes them.
  struct ByColumn {
    at::Tensor segments;  ///< (O + 1,) int64
    at::Tensor row;       ///< (nse,) int32
    at::Tensor column;    ///< (nse,) int32
    at::Tensor order;     ///< (nse,) int64: the entry as given; undefined where they were sorted already
    at::Tensor inverse;   ///< (nse,) int64: the place of each given entry; undefined likewise
  };
  const ByColumn& by_column() const;

 private:
  struct State;
  SparsePattern(PatternFormat format, at::Tensor row, at::Tensor col, std::int64_t rows, std::int64_t cols);
  std::shared_ptr<const State> state_;
};

/// A pattern with values.
struct SparseMatrix {
  SparsePattern pattern;
  at::Tensor data;

  at::Tensor rmatmul(const at::Tensor& x) const { return pattern.matmul(x, data); }
  LACEWING_API at::Tensor to_dense() const;
};

/// y = x @ sparse(values) (+ bias), by `mv` for a vector x and `mm` otherwise.
LACEWING_API at::Tensor sparse_matmul(const at::Tensor& x, const at::Tensor& values, const SparsePattern& pattern,
                                      const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace lacewing::etp
