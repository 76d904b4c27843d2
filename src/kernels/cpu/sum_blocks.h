// Long sums of vectors in registers: the blocks and groups of kernels/long_sum.h, block by block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/long_sum.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

// GCC does not see that group_ and total_ are read only where any_ is set. (Nor by another warning for complex numbers,
// of which a few are summed at a time: they are set at once.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

/// Sums is a number, a vector, or an array of them. Costs nothing until a block is full.
template <typename Sums>
class SumBlocks {
 public:
  LACEWING_INLINE SumBlocks() {
    if constexpr (is_complex_v<std::remove_all_extents_t<Sums>>) {
      clear(group_);
      clear(total_);
    }
  }

  /// Calls f(first, last) for the blocks of [begin, end); f adds its terms to `sums`, which are zero before.
  template <typename F>
  LACEWING_INLINE void add(std::int64_t begin, std::int64_t end, Sums& sums, F&& f) {
    while (begin < end) {
      const std::int64_t stop = std::min(end, begin + left_);
      f(begin, stop);
      left_ -= stop - begin;
      begin = stop;
      if (__builtin_expect(left_ == 0, 0)) {
        end_block(sums);
      }
    }
  }

  /// Makes `sums` those of all blocks.
  LACEWING_INLINE void finish(Sums& sums) const {
    if (__builtin_expect(any_, 0)) {
      each(sums, group_, [](auto& sum, const auto& group) LACEWING_INLINE_LAMBDA { sum = group + sum; });
      each(sums, total_, [](auto& sum, const auto& total) LACEWING_INLINE_LAMBDA { sum = total + sum; });
    }
  }

 private:
  template <typename To, typename From, typename F>
  static LACEWING_INLINE void each(To& to, From& from, const F& f) {
    if constexpr (std::is_array_v<To>) {
      for (std::size_t i = 0; i < std::extent_v<To>; ++i) {
        each(to[i], from[i], f);
      }
    } else {
      f(to, from);
    }
  }
  static LACEWING_INLINE void clear(Sums& sums) {
    each(sums, sums, [](auto& sum, auto&) LACEWING_INLINE_LAMBDA { sum = std::remove_reference_t<decltype(sum)>{}; });
  }
  static LACEWING_INLINE void move(Sums& to, Sums& from) {
    each(to, from, [](auto& sum, const auto& part) LACEWING_INLINE_LAMBDA { sum += part; });
    clear(from);
  }

  LACEWING_INLINE void end_block(Sums& sums) {
    if (!any_) {
      clear(group_);
      clear(total_);
      any_ = true;
    }
    left_ = kSumBlock;
    move(group_, sums);
    if (++blocks_ == kSumBlock) {
      move(total_, group_);
      blocks_ = 0;
    }
  }

  Sums group_;  ///< with total_ set at the end of the first block
  Sums total_;
  std::int64_t left_ = kSumBlock;  ///< terms until the block is full
  int blocks_ = 0;                 ///< in the group
  bool any_ = false;
};

#pragma GCC diagnostic pop

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
