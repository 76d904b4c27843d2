// The indices of an entry as one integer. Torch-free.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "structure/index_set.h"

namespace lacewing::structure {

/// Bits of the numbers below count.
inline int bits_for(std::int64_t count) {
  return count < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
}

/// Keys in the order of the indices in some dims, the first the most significant: their bits side by side where they
/// fit 63, else the row-major number.
class KeyCode {
 public:
  KeyCode(const IndexMatrix& indices, std::span<const std::int64_t> dims, std::span<const std::int64_t> sizes)
      : indices_(indices), dims_(dims.begin(), dims.end()), sizes_(sizes.begin(), sizes.end()) {
    shifts_.assign(dims.size() + 1, 0);
    factors_.assign(dims.size(), 1);
    for (std::size_t k = dims.size(); k-- > 0;) {
      shifts_[k] = shifts_[k + 1] + bits_for(sizes[k]);
    }
    side_by_side_ = shifts_[0] <= 63;
    for (std::size_t k = dims.size(); k-- > 1;) {
      factors_[k - 1] = factors_[k] * static_cast<std::uint64_t>(sizes[k]);
    }
  }

  std::int64_t count() const { return indices_.count; }
  std::size_t dims() const { return dims_.size(); }
  bool side_by_side() const { return side_by_side_; }
  int bits() const { return std::min(shifts_[0], 63); }
  /// Bits of the dims from k on, where they lie side by side.
  int bits_from(std::size_t k) const { return shifts_[k]; }

  std::uint64_t key(std::int64_t entry) const {
    std::uint64_t key = 0;
    encode(entry, entry + 1, &key);
    return key;
  }

  /// keys[i] = the key of entry begin + i.
  void encode(std::int64_t begin, std::int64_t end, std::uint64_t* keys) const {
    const std::int64_t length = end - begin;
    std::fill_n(keys, length, 0);
    const std::int64_t stride = indices_.entry_stride;
    for (std::size_t k = 0; k < dims_.size(); ++k) {
      const std::int64_t* const row = indices_.data + dims_[k] * indices_.dim_stride + begin * stride;
      const int shift = shifts_[k + 1];
      if (side_by_side_ && stride == 1) {
        for (std::int64_t i = 0; i < length; ++i) {
          keys[i] += static_cast<std::uint64_t>(row[i]) << shift;
        }
      } else {
        const std::uint64_t factor = side_by_side_ ? std::uint64_t{1} << shift : factors_[k];
        for (std::int64_t i = 0; i < length; ++i) {
          keys[i] += static_cast<std::uint64_t>(row[i * stride]) * factor;
        }
      }
    }
  }

  /// to[i] = the index of the k-th dim of the i-th of `length` keys.
  template <typename KeyAt>
  void decode_dim(std::size_t k, std::int64_t length, const KeyAt& key_at, std::int64_t* to) const {
    if (side_by_side_) {
      const int shift = shifts_[k + 1];
      const std::uint64_t mask = (std::uint64_t{1} << (shifts_[k] - shift)) - 1;
      for (std::int64_t i = 0; i < length; ++i) {
        to[i] = static_cast<std::int64_t>(key_at(i) >> shift & mask);
      }
      return;
    }
    const std::uint64_t factor = factors_[k];
    const auto size = static_cast<std::uint64_t>(sizes_[k]);
    for (std::int64_t i = 0; i < length; ++i) {
      to[i] = static_cast<std::int64_t>(key_at(i) / factor % size);
    }
  }

  /// out[k * stride] = the index of the k-th dim.
  void decode(std::uint64_t key, std::int64_t* out, std::int64_t stride) const {
    for (std::size_t k = sizes_.size(); k-- > 0;) {
      const int width = shifts_[k] - shifts_[k + 1];
      const auto size = static_cast<std::uint64_t>(sizes_[k]);
      const std::uint64_t index = side_by_side_ ? key & ((std::uint64_t{1} << width) - 1) : key % size;
      out[static_cast<std::int64_t>(k) * stride] = static_cast<std::int64_t>(index);
      key = side_by_side_ ? key >> width : key / size;
    }
  }

 private:
  IndexMatrix indices_;
  std::vector<std::int64_t> dims_;
  std::vector<std::int64_t> sizes_;
  std::vector<int> shifts_;             ///< shifts_[k]: the bits of the dims from k on
  std::vector<std::uint64_t> factors_;  ///< of the row-major number
  bool side_by_side_ = true;
};

/// Calls f(first, keys, length) on the keys of [begin, end), a block that stays in the first-level cache at a time,
/// until f returns false.
template <typename F>
void for_key_blocks(const KeyCode& code, std::int64_t begin, std::int64_t end, const F& f) {
  std::array<std::uint64_t, 1024> keys;
  for (std::int64_t first = begin; first < end; first += static_cast<std::int64_t>(keys.size())) {
    const std::int64_t length = std::min(static_cast<std::int64_t>(keys.size()), end - first);
    code.encode(first, first + length, keys.data());
    if (!f(first, keys.data(), length)) {
      return;
    }
  }
}

/// Whether the keys of a part of the entries do not fall, of which some bits count, and how many groups begin there.
struct OrderCheck {
  std::uint64_t mask;
  std::uint64_t before = 0;
  std::int64_t groups = 0;

  OrderCheck(const KeyCode& code, std::int64_t begin, std::uint64_t bits) : mask(bits) {
    if (begin > 0) {
      before = code.key(begin - 1) & mask;
    } else if (code.count() > 0) {
      before = code.key(0) & mask;
      groups = 1;
    }
  }
  /// The keys that follow, one at least; false where one falls.
  bool add(const std::uint64_t* keys, std::int64_t length) {
    // Keys have 63 bits: a difference below zero shows in the highest, and so does one that is not zero, or its
    // negative. A compare of 64 bits is more than the oldest processors do in vectors.
    std::uint64_t falls = 0;
    std::uint64_t changes = 0;
    const auto look = [&](std::uint64_t difference) {
      falls |= difference;
      changes += (difference | (0 - difference)) >> 63;
    };
    look((keys[0] & mask) - before);
    for (std::int64_t i = 1; i < length; ++i) {
      look((keys[i] & mask) - (keys[i - 1] & mask));
    }
    groups += static_cast<std::int64_t>(changes);
    before = keys[length - 1] & mask;
    return static_cast<std::int64_t>(falls) >= 0;
  }
};

}  // namespace lacewing::structure
