// gather and scatter_add of rows, compiled once per ISA level: f32 and f64, the entries of a row side by side.
#include "kernels/cpu/rows_isa.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Rows ahead whose memory is asked for.
constexpr std::int64_t kAhead = 8;
/// Bytes of a row that are asked for; the processor's own prefetcher follows from there.
constexpr std::int64_t kAheadBytes = 512;
/// Entries that are worth a thread of their own.
constexpr std::int64_t kEntriesPerThread = 16384;

template <typename T>
LACEWING_INLINE void ask_for(const T* row, std::int64_t cols) {
  const std::int64_t bytes = std::min<std::int64_t>(cols * static_cast<std::int64_t>(sizeof(T)), kAheadBytes);
  for (std::int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + at);
  }
}

/// to[c] = from[c], added to what is there for `add`.
template <bool add, typename T>
LACEWING_INLINE void move_row(T* to, const T* from, std::int64_t cols) {
  using V = Simd<T>;
  std::int64_t c = 0;
  for (; c + V::lanes <= cols; c += V::lanes) {
    V::store(to + c, add ? V::load(to + c) + V::load(from + c) : V::load(from + c));
  }
  if (const int rest = static_cast<int>(cols - c); rest > 0) {
    const auto moved = V::load_part(from + c, rest);
    V::store_part(to + c, add ? V::load_part(to + c, rest) + moved : moved, rest);
  }
}

/// Calls f(first, last) on stretches of the rows.
template <typename F>
void for_stretches(const CpuExecutor& executor, std::int64_t rows, std::int64_t cols, F&& f) {
  executor.parallel_for(0, rows, std::max<std::int64_t>(1, kEntriesPerThread / std::max<std::int64_t>(cols, 1)), f);
}

/// The rows of `near` in order, those of `far` where the index says: near[k] = far[index[k]], or far[index[k]] +=
/// near[k] for `add`.
template <bool add, typename T, typename Index>
void move_rows(const CpuExecutor& executor, const RowsArg& near, const RowsArg& far, const IndexArg& index) {
  T* const here = static_cast<T*>(near.data);
  T* const there = static_cast<T*>(far.data);
  const Index* const place = static_cast<const Index*>(index.data);
  const auto row_of = [&](std::int64_t k) { return there + static_cast<std::int64_t>(place[k]) * far.row_stride; };
  for_stretches(executor, index.count, near.cols, [&](std::int64_t begin, std::int64_t end) {
    if (!add && near.cols == 1) {  // the processor looks further ahead by itself
      for (std::int64_t k = begin; k < end; ++k) {
        here[k * near.row_stride] = *row_of(k);
      }
      return;
    }
    for (std::int64_t k = begin; k < end; ++k) {
      ask_for(row_of(std::min(k + kAhead, end - 1)), near.cols);
      T* const row = here + k * near.row_stride;
      move_row<add>(add ? row_of(k) : row, add ? row : row_of(k), near.cols);
    }
  });
}

/// Calls f(T{}, Index{}) for the types at hand.
template <typename F>
void visit(const RowsArg& rows, const IndexArg& index, F&& f) {
  const auto by_index = [&](auto number) {
    index.type == IndexType::i32 ? f(number, std::int32_t{}) : f(number, std::int64_t{});
  };
  rows.type == ScalarType::f32 ? by_index(float{}) : by_index(double{});
}

}  // namespace

void gather_rows(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  visit(src, index, [&](auto number, auto place) {
    move_rows<false, decltype(number), decltype(place)>(executor, dst, src, index);
  });
}

void scatter_add_rows(const CpuExecutor& executor, const RowsArg& src, const RowsArg& dst, const IndexArg& index) {
  visit(src, index, [&](auto number, auto place) {
    move_rows<true, decltype(number), decltype(place)>(executor, src, dst, index);
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
