// gather and scatter_add over rows of matrices: the tag and the views fix device and scalar type, so
// nothing is dispatched inside. Executing allocates nothing and, on CUDA, never waits for the device.
//
// Indices are trusted to be in range; builds with LACEWING_CHECK_INDICES check them, which on CUDA
// copies them to the host. Float16 and bfloat16 are added in float.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <lacewing/dispatch/atomic.h>
#include <lacewing/dispatch/for_each.h>
#include <lacewing/dispatch/index_check.h>
#include <lacewing/dispatch/views.h>

namespace lacewing::dispatch {

namespace detail {

template <typename Tag, ScalarType S>
constexpr bool scalar_agrees() {
  if constexpr (Tag::template has<ScalarType>) {
    return Tag::template get<ScalarType> == S;
  } else {
    return true;
  }
}

}  // namespace detail

/// The executor and the views belong to the tag's device, the matrices to one scalar type (the tag's,
/// where it has one), and indices are int32 or int64.
template <typename Tag, typename Executor, typename Src, typename Dst, typename Idx>
concept row_operands =
    requires(Src src, Dst dst, Idx idx) {
      src(0, 0);
      dst(0, 0);
      idx[0];
    } && tag_match<Tag, Src::device> && std::is_same_v<Executor, executor_t<Src::device>> &&
    Src::device == Dst::device && Src::device == Idx::device && Src::scalar == Dst::scalar &&
    detail::scalar_agrees<Tag, Src::scalar>() && (Idx::scalar == ScalarType::i32 || Idx::scalar == ScalarType::i64);

/// The order 0, 1, 2, ...: source row k belongs to index k.
struct identity_order {
  LACEWING_HOST_DEVICE std::int64_t operator[](std::int64_t k) const { return k; }
};

namespace detail {

/// Columns that one work item handles: a stretch that vectorises on the CPU, one entry on CUDA.
template <Device Dev>
inline constexpr std::int64_t columns_per_item = Dev == Device::cuda ? 1 : 4096;
/// Entries that are worth a thread of their own on the CPU.
inline constexpr std::int64_t entries_per_thread = 16384;

/// Turns an item (k, block) into f(k, first column, end column).
template <Device Dev, typename F>
struct ColumnBlocks {
  std::int64_t cols;
  F f;

  template <typename Tag>
  LACEWING_HOST_DEVICE void operator()(Tag, const std::array<std::int64_t, 2>& item) const {
    const std::int64_t begin = item.data()[1] * columns_per_item<Dev>;
    const std::int64_t end = begin + columns_per_item<Dev>;
    f(item.data()[0], begin, end < cols ? end : cols);
  }
};

template <Device Dev, typename Tag, typename F>
void for_each_row_block(Tag t, const executor_t<Dev>& executor, std::int64_t rows, std::int64_t cols, F f) {
  constexpr std::int64_t width = columns_per_item<Dev>;
  const std::int64_t blocks = cols <= 0 ? 0 : (cols - 1) / width + 1;
  const std::int64_t entries = std::clamp<std::int64_t>(cols, 1, width);
  const std::int64_t grain = std::max<std::int64_t>(1, entries_per_thread / entries);
  for_each_nd<2>(t, executor, std::array<std::int64_t, 2>{rows, blocks}, ColumnBlocks<Dev, F>{cols, f}, grain);
}

template <typename Src, typename Dst, typename Idx>
struct GatherRow {
  Src src;
  Dst dst;
  Idx idx;

  LACEWING_HOST_DEVICE void operator()(std::int64_t k, std::int64_t begin, std::int64_t end) const {
    const std::int64_t row = idx[k];
#if !defined(__CUDA_ARCH__)
    if (src.col_stride == 1 && dst.col_stride == 1) {
      std::memcpy(dst.data + k * dst.row_stride + begin, src.data + row * src.row_stride + begin,
                  static_cast<std::size_t>(end - begin) * sizeof(typename Dst::value_type));
      return;
    }
#endif
    for (std::int64_t c = begin; c < end; ++c) {
      dst(k, c) = src(row, c);
    }
  }
};

template <typename Src, typename Dst, typename Idx>
struct AddRow {
  Src src;
  Dst dst;
  Idx idx;

  LACEWING_HOST_DEVICE void operator()(std::int64_t k, std::int64_t begin, std::int64_t end) const {
    using T = typename Dst::value_type;
    const std::int64_t row = idx[k];
#if !defined(__CUDA_ARCH__)
    if (src.col_stride == 1 && dst.col_stride == 1) {
      // Unit strides that the compiler can see: it vectorises this loop.
      T* const __restrict__ to = dst.data + row * dst.row_stride;
      const T* const __restrict__ from = src.data + k * src.row_stride;
      for (std::int64_t c = begin; c < end; ++c) {
        to[c] = narrow<T>(widen(to[c]) + widen(from[c]));
      }
      return;
    }
#endif
    for (std::int64_t c = begin; c < end; ++c) {
      dst(row, c) = narrow<T>(widen(dst(row, c)) + widen(src(k, c)));
    }
  }
};

template <typename Src, typename Dst, typename Idx>
struct AddRowAtomic {
  Src src;
  Dst dst;
  Idx idx;

  LACEWING_HOST_DEVICE void operator()(std::int64_t k, std::int64_t begin, std::int64_t end) const {
    const std::int64_t row = idx[k];
    for (std::int64_t c = begin; c < end; ++c) {
      atomic_add(&dst(row, c), src(k, c));
    }
  }
};

/// The first position of a run of equal indices owns the run and its output row.
template <typename Src, typename Dst, typename Idx, typename Order>
struct AddRun {
  Src src;
  Dst dst;
  Idx idx;
  Order order;

  LACEWING_HOST_DEVICE void operator()(std::int64_t k, std::int64_t begin, std::int64_t end) const {
    using T = typename Dst::value_type;
    const std::int64_t row = idx[k];
    if (k > 0 && idx[k - 1] == row) {
      return;
    }
    std::int64_t run_end = k + 1;
    while (run_end < idx.count && idx[run_end] == row) {
      ++run_end;
    }
    for (std::int64_t c = begin; c < end; ++c) {
      auto sum = widen(dst(row, c));
      for (std::int64_t j = k; j < run_end; ++j) {
        sum += widen(src(order[j], c));
      }
      dst(row, c) = narrow<T>(sum);
    }
  }
};

inline void check_rows(const char* op, const char* matrix, std::int64_t rows, std::int64_t count) {
  if (rows != count) {
    throw std::invalid_argument("[lacewing." + std::string(op) + "] " + matrix + " has " + std::to_string(rows) +
                                " rows, but there are " + std::to_string(count) + " indices");
  }
}

inline void check_cols(const char* op, std::int64_t src, std::int64_t dst) {
  if (src != dst) {
    throw std::invalid_argument("[lacewing." + std::string(op) + "] src has " + std::to_string(src) +
                                " columns, but dst has " + std::to_string(dst));
  }
}

}  // namespace detail

/// dst(k, c) = src(idx[k], c). dst must not overlap src. Deterministic.
template <typename Tag, typename Executor, typename Src, typename Dst, typename Idx>
  requires row_operands<Tag, Executor, Src, Dst, Idx>
void gather(Tag t, const Executor& executor, Src src, Dst dst, Idx idx) {
  detail::check_rows("gather", "dst", dst.rows, idx.count);
  detail::check_cols("gather", src.cols, dst.cols);
  check_where_asked("gather", executor, idx, src.rows, IndexRule::in_range);
  detail::for_each_row_block<Src::device>(t, executor, idx.count, src.cols,
                                          detail::GatherRow<Src, Dst, Idx>{src, dst, idx});
}

/// dst(idx[k], c) += src(k, c) for distinct idx[k]. Deterministic; no atomics. Duplicates are a data
/// race: builds with LACEWING_CHECK_INDICES throw std::invalid_argument.
template <typename Tag, typename Executor, typename Src, typename Dst, typename Idx>
  requires row_operands<Tag, Executor, Src, Dst, Idx>
void scatter_add(Tag t, const Executor& executor, Src src, Dst dst, Idx idx) {
  detail::check_rows("scatter_add", "src", src.rows, idx.count);
  detail::check_cols("scatter_add", src.cols, dst.cols);
  check_where_asked("scatter_add", executor, idx, dst.rows, IndexRule::distinct);
  detail::for_each_row_block<Src::device>(t, executor, idx.count, src.cols,
                                          detail::AddRow<Src, Dst, Idx>{src, dst, idx});
}

/// dst(idx[k], c) += sum of src(order[j], c) over the run of equal indices that starts at k, for
/// non-decreasing idx. One accumulator per entry, in the order of the run, rounded once: deterministic.
/// `order` is a vector view (idx sorted apart from src) or identity_order (src rows lie sorted too).
template <typename Tag, typename Executor, typename Src, typename Dst, typename Idx, typename Order = identity_order>
  requires row_operands<Tag, Executor, Src, Dst, Idx>
void scatter_add_sorted(Tag t, const Executor& executor, Src src, Dst dst, Idx idx, Order order = {}) {
  detail::check_rows("scatter_add_sorted", "src", src.rows, idx.count);
  detail::check_cols("scatter_add_sorted", src.cols, dst.cols);
  check_where_asked("scatter_add_sorted", executor, idx, dst.rows, IndexRule::sorted);
  if constexpr (!std::is_same_v<Order, identity_order>) {
    detail::check_rows("scatter_add_sorted", "order", order.count, idx.count);
    check_where_asked("scatter_add_sorted", executor, order, src.rows, IndexRule::in_range);
  }
  detail::for_each_row_block<Src::device>(t, executor, idx.count, src.cols,
                                          detail::AddRun<Src, Dst, Idx, Order>{src, dst, idx, order});
}

/// dst(idx[k], c) += src(k, c) by atomic additions, duplicates allowed. Not deterministic for floating
/// point; float16 and bfloat16 round after every term.
template <typename Tag, typename Executor, typename Src, typename Dst, typename Idx>
  requires row_operands<Tag, Executor, Src, Dst, Idx>
void scatter_add_atomic(Tag t, const Executor& executor, Src src, Dst dst, Idx idx) {
  detail::check_rows("scatter_add_atomic", "src", src.rows, idx.count);
  detail::check_cols("scatter_add_atomic", src.cols, dst.cols);
  check_where_asked("scatter_add_atomic", executor, idx, dst.rows, IndexRule::in_range);
  detail::for_each_row_block<Src::device>(t, executor, idx.count, src.cols,
                                          detail::AddRowAtomic<Src, Dst, Idx>{src, dst, idx});
}

}  // namespace lacewing::dispatch
