#include "kernels/sparse_matmul.h"

#include <algorithm>
#include <map>

#include "kernels/terms.h"
#include "kernels/wider.h"

namespace lacewing::kernels {
namespace {

/// The columns of row r of the product, and the sum of left * right over the entries (t of a, u of b) that meet there.
template <typename Sum, typename F>
std::map<std::int64_t, Sum> product_row(const RowsView& a, const RowsView& b, std::int64_t r, const F& times) {
  std::map<std::int64_t, Sum> sums;
  for (std::int64_t t = a.segments[r]; t < a.segments[r + 1]; ++t) {
    const std::int64_t row = std::lower_bound(b.keys, b.keys + b.rows, a.columns[t]) - b.keys;
    if (row == b.rows || b.keys[row] != a.columns[t]) {
      continue;
    }
    for (std::int64_t u = b.segments[row]; u < b.segments[row + 1]; ++u) {
      sums[b.columns[u]] += times(t, u);
    }
  }
  return sums;
}

}  // namespace

SparseMatmulReference::SparseMatmulReference(const RowsView& a, const RowsView& b) : a_(a), b_(b) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const auto row = product_row<int>(a, b, r, [](std::int64_t, std::int64_t) { return 0; });
    count_ += static_cast<std::int64_t>(row.size());
  }
}

void SparseMatmulReference::write(ScalarType type, const void* a_values, const void* b_values,
                                  const std::int64_t* column_keys, std::int64_t key_stride, std::int64_t* keys,
                                  void* values) const {
  visit_types(type, false, [&](auto scalar, auto) {
    using T = decltype(scalar);
    const auto* const left = static_cast<const T*>(a_values);
    const auto* const right = static_cast<const T*>(b_values);
    auto* out = static_cast<T*>(values);
    std::int64_t* key = keys;
    for (std::int64_t r = 0; r < a_.rows; ++r) {
      const auto row = product_row<wider_t<T>>(a_, b_, r, [&](std::int64_t t, std::int64_t u) {
        return converted<wider_t<T>>(widen(left[t])) * converted<wider_t<T>>(widen(right[u]));
      });
      for (const auto& [column, sum] : row) {
        *key++ = a_.keys[r] * key_stride + (column_keys == nullptr ? column : column_keys[column]);
        *out++ = rounded<T>(sum);
      }
    }
  });
}

}  // namespace lacewing::kernels
