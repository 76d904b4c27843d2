// A stable radix sort of records, on all threads. Torch-free.
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

/// A buffer of records whose memory is not initialised, and its sort by any key that a record gives.
template <typename RecordType>
class RadixSort {
 public:
  using Record = RecordType;

  RadixSort(std::int64_t count, const CpuExecutor& executor)
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

  /// Stable, by key_of(record), whose values lie in [0, limit).
  template <typename KeyOf>
  void sort_by(const KeyOf& key_of, std::int64_t limit) {
    if (count_ < 2 || limit < 2 || is_sorted(key_of)) {
      return;
    }
    const int bits = std::bit_width(static_cast<std::uint64_t>(limit - 1));
    const int passes = (bits + kDigitBits - 1) / kDigitBits;
    const int digit = (bits + passes - 1) / passes;
    if (spare_ == nullptr) {
      spare_ = allocate(count_);
    }
    for (int pass = 0; pass < passes; ++pass) {
      scatter(key_of, pass * digit, digit);
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

  template <typename KeyOf>
  bool is_sorted(const KeyOf& key_of) const {
    std::vector<char> sorted(static_cast<std::size_t>(parts_), 1);
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      const Record* const r = data();
      for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < end; ++i) {
        if (key_of(r[i - 1]) > key_of(r[i])) {
          sorted[static_cast<std::size_t>(part)] = 0;
          return;
        }
      }
    });
    return std::all_of(sorted.begin(), sorted.end(), [](char s) { return s != 0; });
  }

  template <typename KeyOf>
  void scatter(const KeyOf& key_of, int shift, int digit) {
    const std::size_t buckets = std::size_t{1} << digit;
    const auto mask = static_cast<std::uint64_t>(buckets - 1);
    std::vector<std::int64_t> offsets(buckets * static_cast<std::size_t>(parts_), 0);
    const Record* const from = records_.get();
    Record* const to = spare_.get();
    const auto bucket = [&](const Record& r) {
      return static_cast<std::size_t>((static_cast<std::uint64_t>(key_of(r)) >> shift) & mask);
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
