// Reading the rows of an operand as contiguous blocks of the accumulate type.
#pragma once

#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

/// Rows of x beyond so many bytes are asked for kAhead terms before they are read.
inline constexpr std::int64_t kNearBytes = 1 << 20;
inline constexpr std::int64_t kAhead = 8;

/// Asks for the cache lines of so many vectors.
template <int Vectors, typename T>
LACEWING_INLINE void fetch(const T* from) {
  const char* const line = static_cast<const char*>(static_cast<const void*>(from));
  for (int byte = 0; byte < Vectors * kVectorBytes; byte += 64) {
    __builtin_prefetch(line + byte);
  }
}

template <typename T>
class Source {
 public:
  using Acc = accumulate_t<T>;

  /// For a vector, `row_stride` is unused and `column_stride` is its stride; for a matrix they are those of a and b.
  Source(const Operand& operand, const SourcePlan& plan, std::int64_t row_stride, std::int64_t column_stride,
         Acc* scratch)
      : operand_(operand), plan_(plan), row_stride_(row_stride), column_stride_(column_stride), scratch_(scratch) {}

  /// Must be called when n changes, where n is the outer loop.
  void start(std::int64_t n) {
    if (plan_.access == Access::pack_all) {
      for (std::int64_t m = 0; m < operand_.rows; ++m) {
        pack(at(n, m), scratch_ + m * plan_.block());
      }
    }
  }

  /// The block of (n, m); valid until the next call.
  LACEWING_INLINE const Acc* block(std::int64_t n, std::int64_t m) const {
    if constexpr (std::is_same_v<T, Acc>) {
      if (__builtin_expect(plan_.access <= Access::transposed, 1)) {
        return at(n, m);
      }
    }
    if (plan_.access == Access::pack_all) {
      return scratch_ + m * plan_.block();
    }
    pack(at(n, m), scratch_);
    return scratch_;
  }

  /// Where (n, m) lies, in its own type.
  LACEWING_INLINE const T* address(std::int64_t n, std::int64_t m) const { return at(n, m); }

  bool direct() const { return plan_.access == Access::direct; }
  bool transposed() const { return plan_.access == Access::transposed; }

  /// Elements from one row of a block to the next; for a transposed block, from one column to the next.
  std::int64_t leading() const {
    if (plan_.access == Access::transposed) {
      return column_stride_;
    }
    return plan_.access == Access::direct ? row_stride_ : plan_.block_columns;
  }

  /// The single value of a scalar operand; 1 where it is absent.
  LACEWING_INLINE Acc scalar(std::int64_t n, std::int64_t m) const {
    if (operand_.data == nullptr) {
      return one<Acc>();
    }
    const Acc value = widen(*at(n, m));
    return operand_.conjugate ? conj(value) : value;
  }

 private:
  LACEWING_INLINE const T* at(std::int64_t n, std::int64_t m) const {
    return static_cast<const T*>(operand_.data) + n * operand_.stride_n + m * operand_.stride_m;
  }

  void pack(const T* from, Acc* to) const {
    if constexpr (std::is_same_v<T, Acc>) {
      if (row_stride_ == 1 && plan_.block_rows > 1 && !operand_.conjugate) {
        return transpose_block(from, column_stride_, to, plan_.block_rows, plan_.block_columns);
      }
    }
    for (std::int64_t row = 0; row < plan_.block_rows; ++row, to += plan_.block_columns) {
      const T* const line = from + row * row_stride_;
      if (column_stride_ == 1) {
        widen_row(line, to, plan_.block_columns);
      } else {
        for (std::int64_t column = 0; column < plan_.block_columns; ++column) {
          to[column] = widen(line[column * column_stride_]);
        }
      }
      if (operand_.conjugate) {
        for (std::int64_t column = 0; column < plan_.block_columns; ++column) {
          to[column] = conj(to[column]);
        }
      }
    }
  }

  Operand operand_;
  SourcePlan plan_;
  std::int64_t row_stride_;
  std::int64_t column_stride_;
  Acc* scratch_;
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
