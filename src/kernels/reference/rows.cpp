// The oracle: serial, one entry at a time, straight from the formulas in rows.h.
#include "kernels/dispatch/rows.h"

#include <vector>

#include <lacewing/dispatch/table.h>

namespace lacewing::kernels {
namespace {

using dispatch::axis;
using dispatch::product;

using MatrixPoints =
    product<axis<Device::reference>, axis<ScalarType::f16, ScalarType::bf16, ScalarType::f32, ScalarType::f64,
                                          ScalarType::c64, ScalarType::c128, ScalarType::i32, ScalarType::i64>>;

std::int64_t index_at(const IndexArg& index, std::int64_t k) {
  return index.type == IndexType::i32 ? static_cast<const std::int32_t*>(index.data)[k * index.stride]
                                      : static_cast<const std::int64_t*>(index.data)[k * index.stride];
}

template <typename T>
T& entry(const RowsArg& matrix, std::int64_t row, std::int64_t col) {
  return static_cast<T*>(matrix.data)[row * matrix.row_stride + col * matrix.col_stride];
}

struct Gather {
  template <typename Tag>
  void operator()(Tag, const RowsArg& src, const RowsArg& dst, const IndexArg& index) const {
    using T = scalar_t<Tag::template get<ScalarType>>;
    for (std::int64_t k = 0; k < index.count; ++k) {
      for (std::int64_t c = 0; c < src.cols; ++c) {
        entry<T>(dst, k, c) = entry<T>(src, index_at(index, k), c);
      }
    }
  }
};

/// All terms that meet in an entry of dst, in the order of k, rounded once; a null order is the identity.
struct ScatterAdd {
  template <typename Tag>
  void operator()(Tag, const RowsArg& src, const RowsArg& dst, const IndexArg& index, const std::int64_t* order) const {
    using T = scalar_t<Tag::template get<ScalarType>>;
    for (std::int64_t c = 0; c < dst.cols; ++c) {
      std::vector<accumulate_t<T>> sums(static_cast<std::size_t>(dst.rows));
      for (std::int64_t row = 0; row < dst.rows; ++row) {
        sums[static_cast<std::size_t>(row)] = widen(entry<T>(dst, row, c));
      }
      for (std::int64_t k = 0; k < index.count; ++k) {
        const std::int64_t source = order == nullptr ? k : order[k];
        sums[static_cast<std::size_t>(index_at(index, k))] += widen(entry<T>(src, source, c));
      }
      for (std::int64_t row = 0; row < dst.rows; ++row) {
        entry<T>(dst, row, c) = narrow<T>(sums[static_cast<std::size_t>(row)]);
      }
    }
  }
};

void gather(const CpuExecutor&, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  using Signature = void(const RowsArg&, const RowsArg&, const IndexArg&);
  static constexpr dispatch::dispatch_table<Signature, MatrixPoints> table("gather_rows", Gather{});
  table.select(Device::reference, src.type)(src, dst, index);
}

void scatter_add_sorted(const CpuExecutor&, const RowsArg& src, const RowsArg& dst, const IndexArg& index,
                        const std::int64_t* order) {
  using Signature = void(const RowsArg&, const RowsArg&, const IndexArg&, const std::int64_t*);
  static constexpr dispatch::dispatch_table<Signature, MatrixPoints> table("scatter_add_rows", ScatterAdd{});
  table.select(Device::reference, src.type)(src, dst, index, order);
}

void scatter_add(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  scatter_add_sorted(executor, src, dst, index, nullptr);
}

void first_out_of_range(const CpuExecutor&, const IndexArg& index, std::int64_t rows, std::int64_t* first) {
  for (std::int64_t k = index.count - 1; k >= 0; --k) {
    if (index_at(index, k) < 0 || index_at(index, k) >= rows) {
      *first = k;
    }
  }
}

void first_repeat(const CpuExecutor&, const IndexArg& index, std::int64_t* owner, std::int64_t* first) {
  for (std::int64_t k = 0; k < index.count; ++k) {
    std::int64_t& row_owner = owner[index_at(index, k)];
    if (row_owner == none_found) {
      row_owner = k;
    } else if (*first == none_found) {
      *first = k;
    }
  }
}

}  // namespace

RowKernels<Device::reference> reference_row_kernels() {
  return {gather, scatter_add, scatter_add_sorted, scatter_add, first_out_of_range, first_repeat};
}

}  // namespace lacewing::kernels
