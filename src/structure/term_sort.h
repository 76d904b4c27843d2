// Terms as records, and their stable radix sort. Torch-free.
//
// The three views of a product are reached by rotation: sorting by index2, index1 and row gives the order
// (row, index1, index2); one more stable sort by index2 gives (index2, row, index1), and one more by index1 gives
// (index1, index2, row). So five single-key sorts serve all three views.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <lacewing/executor.h>

#include "common/memory.h"

namespace lacewing::structure {

/// One term: an entry of scale, a row of each input, a row of the output. Members are indexed by Key.
template <typename Index>
struct Term {
  Index key[3];
  Index entry;
};

enum Key : int { first = 0, second = 1, row = 2 };

/// A buffer of terms whose memory is not initialised.
template <typename Index>
class TermSort {
 public:
  using Record = Term<Index>;

  TermSort(std::int64_t count, const CpuExecutor& executor)
      : count_(count),
        executor_(executor),
        parts_(std::clamp<std::int64_t>(count / 4096, 1, executor.max_threads())),
        records_(allocate(count)) {}

  std::int64_t count() const { return count_; }
  Record* data() { return records_.get(); }
  const Record* data() const { return records_.get(); }

  /// Calls f(part, begin, end) on the parts that the sort is cut into; results must not depend on the cut.
  template <typename F>
  void for_parts(F&& f) const {
    executor_.parallel_for(0, parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        f(part, count_ * part / parts_, count_ * (part + 1) / parts_);
      }
    });
  }
  std::int64_t parts() const { return parts_; }

  /// Stable, by one key whose values lie in [0, limit).
  void sort(Key key, std::int64_t limit) {
    if (count_ < 2 || limit < 2 || is_sorted(key)) {
      return;
    }
    const int bits = std::bit_width(static_cast<std::uint64_t>(limit - 1));
    const int passes = (bits + kDigitBits - 1) / kDigitBits;
    const int digit = (bits + passes - 1) / passes;
    if (spare_ == nullptr) {
      spare_ = allocate(count_);
    }
    for (int pass = 0; pass < passes; ++pass) {
      scatter(key, pass * digit, digit);
      std::swap(records_, spare_);
    }
  }

 private:
  static std::unique_ptr<Record[]> allocate(std::int64_t count) {
    std::unique_ptr<Record[]> records(new Record[static_cast<std::size_t>(count)]);
    prefer_huge_pages(records.get(), count * static_cast<std::int64_t>(sizeof(Record)));
    return records;
  }

  /// Digits this wide keep the open cache lines of a pass within the first-level cache.
  static constexpr int kDigitBits = 9;

  bool is_sorted(Key key) const {
    std::vector<char> sorted(static_cast<std::size_t>(parts_), 1);
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      const Record* const r = data();
      for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < end; ++i) {
        if (r[i - 1].key[key] > r[i].key[key]) {
          sorted[static_cast<std::size_t>(part)] = 0;
          return;
        }
      }
    });
    return std::all_of(sorted.begin(), sorted.end(), [](char s) { return s != 0; });
  }

  void scatter(Key key, int shift, int digit) {
    const std::size_t buckets = std::size_t{1} << digit;
    const auto mask = static_cast<std::uint64_t>(buckets - 1);
    std::vector<std::int64_t> offsets(buckets * static_cast<std::size_t>(parts_), 0);
    const Record* const from = records_.get();
    Record* const to = spare_.get();
    const auto bucket = [&](const Record& r) {
      return static_cast<std::size_t>((static_cast<std::uint64_t>(r.key[key]) >> shift) & mask);
    };
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      std::int64_t* const count = offsets.data() + static_cast<std::size_t>(part) * buckets;
      for (std::int64_t i = begin; i < end; ++i) {
        ++count[bucket(from[i])];
      }
    });
    std::int64_t total = 0;
    for (std::size_t b = 0; b < buckets; ++b) {
      for (std::size_t part = 0; part < static_cast<std::size_t>(parts_); ++part) {
        total += std::exchange(offsets[part * buckets + b], total);
      }
    }
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      std::int64_t* const next = offsets.data() + static_cast<std::size_t>(part) * buckets;
      for (std::int64_t i = begin; i < end; ++i) {
        to[next[bucket(from[i])]++] = from[i];
      }
    });
  }

  std::int64_t count_;
  CpuExecutor executor_;
  std::int64_t parts_;
  std::unique_ptr<Record[]> records_;
  std::unique_ptr<Record[]> spare_;
};

}  // namespace lacewing::structure
