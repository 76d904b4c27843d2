// Sums of many numbers: one after the other in blocks of so many, counted from the first one, and the sums of blocks in
// groups of as many. What the additions lose then hardly grows with the count. Host and device.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels {

/// Terms of a block, and blocks of a group. A sum of no more terms has the bits of a plain loop.
inline constexpr int kSumBlock = 512;

/// Always inlined, as what ISA levels share must be.
template <typename Acc>
class LongSum {
 public:
  LACEWING_HOST_DEVICE inline __attribute__((always_inline)) LongSum& operator+=(Acc value) {
    block_ += value;
    if (++terms_ == kSumBlock) {
      end_block();
    }
    return *this;
  }
  LACEWING_HOST_DEVICE inline __attribute__((always_inline)) Acc value() const { return total_ + (group_ + block_); }

 private:
  LACEWING_HOST_DEVICE inline __attribute__((always_inline)) void end_block() {
    group_ += block_;
    block_ = Acc{};
    terms_ = 0;
    if (++blocks_ == kSumBlock) {
      total_ += group_;
      group_ = Acc{};
      blocks_ = 0;
    }
  }

  Acc block_{};
  Acc group_{};
  Acc total_{};
  int terms_ = 0;
  int blocks_ = 0;
};

}  // namespace lacewing::kernels
