// The product of two sparse matrices row by row (Gustavson), without a list of the pairs that meet. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

#include "kernels/wider.h"

namespace lacewing::kernels {

/// A matrix by its rows that have entries: keys of those rows, increasing, and where the entries of each begin.
struct RowsView {
  const std::int64_t* keys = nullptr;      ///< (rows)
  const std::int64_t* segments = nullptr;  ///< (rows + 1)
  std::int64_t rows = 0;
  const std::int64_t* columns = nullptr;  ///< (entries), increasing inside a row
  std::int64_t entries = 0;
};

struct ColumnBatch;
template <typename Acc>
struct ProductBatch;

/// a (rows x shared) times b (shared x columns). Sums run in the wider type over the entries of a row of a in order:
/// the same bits for every number of threads. Needs, for each thread, an element of that type, an index and a bit for
/// each column.
class SparseMatmul {
 public:
  /// Finds where the product has entries. `shared` and `columns` (below 2^31) bound the columns of a and of b.
  SparseMatmul(const RowsView& a, const RowsView& b, std::int64_t shared, std::int64_t columns,
               const CpuExecutor& executor);

  std::int64_t count() const { return starts_.back(); }
  /// keys[e] = row key of a * key_stride + column (or column_keys[column]), increasing; values of the type.
  void write(ScalarType type, const void* a_values, const void* b_values, const std::int64_t* column_keys,
             std::int64_t key_stride, std::int64_t* keys, void* values) const;

 private:
  struct Span {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  std::int64_t products_of(std::int64_t r) const {
    return work_[static_cast<std::size_t>(r) + 1] - work_[static_cast<std::size_t>(r)];
  }
  template <typename F>
  void for_parts(const F& f) const;
  template <typename AskFor, typename Copy, typename F>
  void each_batch(std::int64_t r, ColumnBatch& batch, const AskFor& ask_for, const Copy& copy, const F& f) const;
  template <typename F>
  void each_columns(std::int64_t r, ColumnBatch& batch, const F& f) const;
  template <typename T, typename F>
  void each_products(std::int64_t r, const T* a_values, const T* b_values, ProductBatch<wider_t<T>>& batch,
                     const F& f) const;
  template <typename T>
  void write_as(const T* a_values, const T* b_values, const std::int64_t* column_keys, std::int64_t key_stride,
                std::int64_t* keys, T* values) const;

  RowsView a_, b_;
  std::int64_t columns_;
  CpuExecutor executor_;
  std::vector<std::int32_t> b_columns_;
  std::vector<Span> met_;             ///< (entries of a): the entries of b that each meets
  std::vector<std::int64_t> work_;    ///< products of the rows of a before each, and one for the row itself
  std::vector<std::int64_t> cuts_;    ///< parts of the rows of a, of like work
  std::vector<std::int64_t> starts_;  ///< entries of the product before each part, and all of them
};

/// The oracle of SparseMatmul: serial, a map of the columns of each row. The same sums in the same order.
class SparseMatmulReference {
 public:
  SparseMatmulReference(const RowsView& a, const RowsView& b);

  std::int64_t count() const { return count_; }
  void write(ScalarType type, const void* a_values, const void* b_values, const std::int64_t* column_keys,
             std::int64_t key_stride, std::int64_t* keys, void* values) const;

 private:
  RowsView a_, b_;
  std::int64_t count_ = 0;
};

}  // namespace lacewing::kernels
