// Register-blocked microkernels on indirectly addressed rows, and how a matrix is cut into their blocks.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd.h"

/// A function of its own: inlined among its siblings, a block's sums and pointers would not keep their registers.
#define LACEWING_BLOCK __attribute__((noinline))

namespace lacewing::kernels::cpu::LACEWING_ISA {

/// The widest block of columns, in vectors: what leaves registers for enough rows to hide the latency of a sum.
template <typename A>
inline constexpr int kMostVectors = kVectorRegisters == 32 && sizeof(A) == 4 ? 4 : 2;

/// Rows of the tallest block of so many vectors: its sums, the vectors of one step and a broadcast fit the vector
/// registers, and its pointers the general ones.
inline constexpr int most_rows(int vectors) {
  const int fit = (kVectorRegisters - vectors - 1) / vectors;
  return fit >= 8 ? 8 : fit >= 6 ? 6 : 4;
}

/// Rows of the tallest block of any width.
inline constexpr int kMostRows = most_rows(1);

/// The sums of a block, in registers: Rows rows of Vectors vectors, or of `part` columns of one vector where Part.
/// `row(i)` is where row i lies.
template <typename A, int Rows, int Vectors, bool Part>
struct BlockSums {
  using S = Simd<A>;

  template <typename RowAt>
  LACEWING_INLINE void load(RowAt&& row, int part) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) {
        values[i][j] = load_vec<!Part>(row(i) + j * S::lanes, part);
      }
    }
  }

  /// Row i gains left(i) times the row at `right`.
  template <typename LeftAt>
  LACEWING_INLINE void add(LeftAt&& left, const A* right, int part) {
    typename S::Vec factors[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) {
      factors[j] = load_vec<!Part>(right + j * S::lanes, part);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const A value = left(i);
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) {
        values[i][j] += value * factors[j];
      }
    }
  }

  template <typename RowAt>
  LACEWING_INLINE void store(RowAt&& row, int part) const {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) {
        store_vec<!Part>(row(i) + j * S::lanes, values[i][j], part);
      }
    }
  }

  typename S::Vec values[Rows][Vectors];
};

/// Asks for columns [column, column + columns) of rows at pointers, ahead of their use; they will be written.
template <typename A>
LACEWING_INLINE void prefetch_rows(const A* const* rows, std::int64_t count, std::int64_t column,
                                   std::int64_t columns) {
  constexpr std::int64_t line = 64 / sizeof(A);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < columns; c += line) {
      __builtin_prefetch(rows[i] + column + c, 1);
    }
  }
}

/// Lines of memory that a block asks for on its way, some at each step, for a later block. They go through the
/// first-level cache: asked for into the second level alone (prefetcht1), they came no sooner on the processor that
/// this was measured on. Free of branches, since a wrong guess would empty the pipeline that the sums keep full.
struct LinesAhead {
  const char* at = nullptr;
  std::int64_t across = 0;  ///< bytes between the lines of a step
  std::int64_t along = 0;   ///< bytes between steps

  template <int Lines>
  LACEWING_INLINE void ask() {
#pragma GCC unroll 8
    for (int i = 0; i < Lines; ++i) {
      __builtin_prefetch(at + i * across);
    }
    at += along;
  }
};

/// c[i] = from[i] + a[i] @ b for Rows rows at pointers, where those of `from` and `c` are at `column`: a[i] has
/// `depth` > 0 entries, b is (depth, columns) with stride ldb. As many rows behind them in `a` and `c` are asked for
/// line by line on the way: all at once they would hold up the loads of b; the widest blocks ask for `lines` too. (A
/// loop that might not run would make the compiler keep a second copy of the sums, on the stack.)
template <typename A, int Rows, int Vectors, bool Part>
LACEWING_BLOCK void row_block(const A* const* a, const A* const* from, A* const* c, std::int64_t column, const A* b,
                              std::int64_t ldb, std::int64_t depth, LinesAhead lines, int part) {
  constexpr std::int64_t line = 64 / sizeof(A);
  BlockSums<A, Rows, Vectors, Part> sums;
  sums.load([&](int i) LACEWING_INLINE_LAMBDA { return from[i] + column; }, part);
  std::int64_t k = 0;
  do {
    if constexpr (Vectors == kMostVectors<A>) {
      lines.ask<Vectors>();
    }
    if (k < Vectors * line) {
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        __builtin_prefetch(c[Rows + i] + column + k, 1);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      __builtin_prefetch(a[Rows + i] + k);
    }
    const std::int64_t end = std::min(k + line, depth);
    do {
      sums.add([&](int i) LACEWING_INLINE_LAMBDA { return a[i][k]; }, b + k * ldb, part);
    } while (++k < end);
  } while (k < depth);
  sums.store([&](int i) LACEWING_INLINE_LAMBDA { return c[i] + column; }, part);
}

/// c[i, :] += sum over p of a[p][i] * b[p][:] for Rows entries of each a[p]: a block of a sum of outer products. There
/// is at least one pair. The widest blocks ask for the line at ahead[p] + ahead_offset bytes on the way; those of four
/// vectors, which leave room for more loads, for a block of the same size at `next_c` too.
template <typename A, int Rows, int Vectors, bool Part>
LACEWING_BLOCK void outer_block(const A* const* a, std::int64_t a_offset, const A* const* b, std::int64_t b_offset,
                                std::int64_t pairs, const char* const* ahead, std::int64_t ahead_offset, A* c,
                                const A* next_c, std::int64_t ldc, int part) {
  const auto row = [&](int i) LACEWING_INLINE_LAMBDA { return c + i * ldc; };
  BlockSums<A, Rows, Vectors, Part> sums;
  sums.load(row, part);
  std::int64_t p = 0;
  do {
    if constexpr (Vectors == kMostVectors<A>) {
      __builtin_prefetch(ahead[p] + ahead_offset, 0, 2);
    }
    if constexpr (Vectors == 4) {
      const std::int64_t line = p % (Rows * Vectors);
      __builtin_prefetch(next_c + line / Vectors * ldc + line % Vectors * Simd<A>::lanes, 1);
    }
    const A* const left = a[p] + a_offset;
    sums.add([&](int i) LACEWING_INLINE_LAMBDA { return left[i]; }, b[p] + b_offset, part);
  } while (++p < pairs);
  sums.store(row, part);
}

/// f(integral_constant<Rows>) for a number of rows in [1, Most].
template <int Most, typename F>
LACEWING_INLINE void with_rows(std::int64_t rows, F&& f) {
  if constexpr (Most == 1) {
    f(std::integral_constant<int, 1>{});
  } else if (rows == Most) {
    f(std::integral_constant<int, Most>{});
  } else {
    with_rows<Most - 1>(rows, f);
  }
}

/// Covers `rows` by the tallest blocks and one for the rest: f(integral_constant<Rows>, first row).
template <int Vectors, typename F>
LACEWING_INLINE void for_row_blocks(std::int64_t rows, F&& f) {
  constexpr int tallest = most_rows(Vectors);
  std::int64_t at = 0;
  for (; at + tallest <= rows; at += tallest) {
    f(std::integral_constant<int, tallest>{}, at);
  }
  if (at < rows) {
    with_rows<tallest - 1>(rows - at, [&](auto rest) LACEWING_INLINE_LAMBDA { f(rest, at); });
  }
}

/// Covers `columns` by blocks of vectors of nearly equal width, those of one width in runs of up to `most_columns`
/// columns, then by the rest of a vector: f(integral_constant<Vectors>, bool_constant<Part>, first column, blocks,
/// part).
template <typename A, typename F>
LACEWING_INLINE void for_column_runs(std::int64_t columns, std::int64_t most_columns, F&& f) {
  constexpr int lanes = Simd<A>::lanes;
  std::int64_t at = 0;
  for (std::int64_t left = columns / lanes; left > 0;) {
    const std::int64_t blocks = (left + kMostVectors<A> - 1) / kMostVectors<A>;
    const std::int64_t width = (left + blocks - 1) / blocks;
    const std::int64_t alike = left % blocks == 0 ? blocks : left % blocks;
    const std::int64_t run = std::clamp(most_columns / (width * lanes), std::int64_t{1}, alike);
    if constexpr (kMostVectors<A> == 4) {
      if (width == 4) {
        f(std::integral_constant<int, 4>{}, std::false_type{}, at, run, 0);
      } else if (width == 3) {
        f(std::integral_constant<int, 3>{}, std::false_type{}, at, run, 0);
      }
    }
    if (width == 2) {
      f(std::integral_constant<int, 2>{}, std::false_type{}, at, run, 0);
    } else if (width == 1) {
      f(std::integral_constant<int, 1>{}, std::false_type{}, at, run, 0);
    }
    at += run * width * lanes;
    left -= run * width;
  }
  if (at < columns) {
    f(std::integral_constant<int, 1>{}, std::true_type{}, at, std::int64_t{1}, static_cast<int>(columns - at));
  }
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
