// RowKernels over the public primitives; included where a device's kernels are instantiated.
#pragma once

#include <lacewing/dispatch/atomic.h>
#include <lacewing/dispatch/gather_scatter.h>
#include <lacewing/dispatch/table.h>

#include "kernels/dispatch/rows.h"

namespace lacewing::kernels {

namespace rows_detail {

using namespace dispatch;

template <Device Dev>
using row_points = product<axis<Dev>,
                           axis<ScalarType::f16, ScalarType::bf16, ScalarType::f32, ScalarType::f64, ScalarType::c64,
                                ScalarType::c128, ScalarType::i32, ScalarType::i64>,
                           axis<IndexType::i32, IndexType::i64>>;

template <Device Dev>
using index_points = product<axis<Dev>, axis<IndexType::i32, IndexType::i64>>;

/// Run-time arguments as the views that a tag stands for.
template <typename Tag>
struct Views {
  static constexpr Device device = Tag::template get<Device>;

  static auto index(const IndexArg& arg) {
    constexpr ScalarType type = scalar_type(Tag::template get<IndexType>);
    return vector_const_view<device, type>{static_cast<const scalar_t<type>*>(arg.data), arg.count, arg.stride};
  }
  static auto source(const RowsArg& arg) {
    constexpr ScalarType type = Tag::template get<ScalarType>;
    return matrix_const_view<device, type>{static_cast<const scalar_t<type>*>(arg.data), arg.rows, arg.cols,
                                           arg.row_stride, arg.col_stride};
  }
  static auto destination(const RowsArg& arg) {
    constexpr ScalarType type = Tag::template get<ScalarType>;
    return matrix_mutable_view<device, type>{static_cast<scalar_t<type>*>(arg.data), arg.rows, arg.cols, arg.row_stride,
                                             arg.col_stride};
  }
};

struct Gather {
  template <typename Tag, typename Executor>
  void operator()(Tag t, const Executor& executor, const RowsArg& src, const RowsArg& dst,
                  const IndexArg& index) const {
    dispatch::gather(t, executor, Views<Tag>::source(src), Views<Tag>::destination(dst), Views<Tag>::index(index));
  }
};

struct ScatterAdd {
  template <typename Tag, typename Executor>
  void operator()(Tag t, const Executor& executor, const RowsArg& src, const RowsArg& dst,
                  const IndexArg& index) const {
    dispatch::scatter_add(t, executor, Views<Tag>::source(src), Views<Tag>::destination(dst), Views<Tag>::index(index));
  }
};

struct ScatterAddSorted {
  template <typename Tag, typename Executor>
  void operator()(Tag t, const Executor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index,
                  const std::int64_t* order) const {
    const vector_const_view<Views<Tag>::device, ScalarType::i64> order_view{order, index.count};
    dispatch::scatter_add_sorted(t, executor, Views<Tag>::source(src), Views<Tag>::destination(dst),
                                 Views<Tag>::index(index), order_view);
  }
};

struct ScatterAddAtomic {
  template <typename Tag, typename Executor>
  void operator()(Tag t, const Executor& executor, const RowsArg& src, const RowsArg& dst,
                  const IndexArg& index) const {
    dispatch::scatter_add_atomic(t, executor, Views<Tag>::source(src), Views<Tag>::destination(dst),
                                 Views<Tag>::index(index));
  }
};

template <typename Idx>
struct MarkOutOfRange {
  Idx idx;
  std::int64_t rows;
  std::int64_t* first;

  template <typename Tag>
  LACEWING_HOST_DEVICE void operator()(Tag, std::int64_t k) const {
    if (idx[k] < 0 || idx[k] >= rows) {
      atomic_min(first, k);
    }
  }
};

struct FirstOutOfRange {
  template <typename Tag, typename Executor>
  void operator()(Tag t, const Executor& executor, const IndexArg& index, std::int64_t rows,
                  std::int64_t* first) const {
    const auto idx = Views<Tag>::index(index);
    for_each(t, executor, idx.count, MarkOutOfRange<decltype(idx)>{idx, rows, first});
  }
};

template <typename Idx>
struct ClaimRow {
  Idx idx;
  std::int64_t* owner;

  template <typename Tag>
  LACEWING_HOST_DEVICE void operator()(Tag, std::int64_t k) const {
    atomic_min(owner + idx[k], k);
  }
};

template <typename Idx>
struct MarkRepeat {
  Idx idx;
  const std::int64_t* owner;
  std::int64_t* first;

  template <typename Tag>
  LACEWING_HOST_DEVICE void operator()(Tag, std::int64_t k) const {
    if (owner[idx[k]] != k) {
      atomic_min(first, k);
    }
  }
};

struct FirstRepeat {
  template <typename Tag, typename Executor>
  void operator()(Tag t, const Executor& executor, const IndexArg& index, std::int64_t* owner,
                  std::int64_t* first) const {
    const auto idx = Views<Tag>::index(index);
    for_each(t, executor, idx.count, ClaimRow<decltype(idx)>{idx, owner});
    for_each(t, executor, idx.count, MarkRepeat<decltype(idx)>{idx, owner, first});
  }
};

}  // namespace rows_detail

/// The kernels of a device, each behind its own table.
template <Device Dev>
struct TabledRowKernels {
  using Kernels = RowKernels<Dev>;
  using Executor = executor_t<Dev>;
  using RowPoints = rows_detail::row_points<Dev>;
  using IndexPoints = rows_detail::index_points<Dev>;

  static void gather(const Executor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
    static constexpr dispatch::dispatch_table<typename Kernels::Move, RowPoints> table("gather_rows",
                                                                                       rows_detail::Gather{});
    table.select(Dev, src.type, index.type)(executor, src, dst, index);
  }

  static void scatter_add(const Executor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
    static constexpr dispatch::dispatch_table<typename Kernels::Move, RowPoints> table("scatter_add_rows",
                                                                                       rows_detail::ScatterAdd{});
    table.select(Dev, src.type, index.type)(executor, src, dst, index);
  }

  static void scatter_add_sorted(const Executor& executor, const RowsArg& src, const RowsArg& dst,
                                 const IndexArg& index, const std::int64_t* order) {
    static constexpr dispatch::dispatch_table<typename Kernels::MoveInOrder, RowPoints> table(
        "scatter_add_rows", rows_detail::ScatterAddSorted{});
    table.select(Dev, src.type, index.type)(executor, src, dst, index, order);
  }

  static void scatter_add_atomic(const Executor& executor, const RowsArg& src, const RowsArg& dst,
                                 const IndexArg& index) {
    static constexpr dispatch::dispatch_table<typename Kernels::Move, RowPoints> table("scatter_add_rows",
                                                                                       rows_detail::ScatterAddAtomic{});
    table.select(Dev, src.type, index.type)(executor, src, dst, index);
  }

  static void first_out_of_range(const Executor& executor, const IndexArg& index, std::int64_t rows,
                                 std::int64_t* first) {
    static constexpr dispatch::dispatch_table<typename Kernels::FindOutOfRange, IndexPoints> table(
        "first_out_of_range", rows_detail::FirstOutOfRange{});
    table.select(Dev, index.type)(executor, index, rows, first);
  }

  static void first_repeat(const Executor& executor, const IndexArg& index, std::int64_t* owner, std::int64_t* first) {
    static constexpr dispatch::dispatch_table<typename Kernels::FindRepeat, IndexPoints> table(
        "first_repeat", rows_detail::FirstRepeat{});
    table.select(Dev, index.type)(executor, index, owner, first);
  }

  static constexpr Kernels kernels() {
    return {gather, scatter_add, scatter_add_sorted, scatter_add_atomic, first_out_of_range, first_repeat};
  }
};

}  // namespace lacewing::kernels
