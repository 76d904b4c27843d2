// A stable radix sort of records, on all threads. Torch-free.
//
// A sort of many records costs one pass through memory: records go to the bucket of the key's highest digit, and a
// bucket, which stays in a core's own cache, is put in order by the digits below it when it is read next: by the
// following sort, or by the one who writes the records out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <lacewing/executor.h>

#include "common/kept_memory.h"

namespace lacewing::structure {

/// Records in memory that is not initialised until they are written to data(), and their sort by keys that a KeyOf
/// gives: a small functor from a record to an integer that is not negative. Orders do not depend on the threads.
template <typename RecordType, typename KeyOf>
class RadixSort {
 public:
  using Record = RecordType;

  RadixSort(std::int64_t count, const CpuExecutor& executor)
      : count_(count),
        executor_(executor),
        parts_(std::clamp<std::int64_t>(count / 4096, 1, executor.max_threads())),
        records_(allocate(count)) {}

  std::int64_t count() const { return count_; }
  std::int64_t parts() const { return parts_; }
  /// The records before the first sort.
  Record* data() { return records_.get(); }

  /// Calls f(part, begin, end) on the parts that the records are cut into; results must not depend on the cut.
  template <typename F>
  void for_parts(F&& f) const {
    executor_.parallel_for(0, parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        f(part, part_begin(part), part_begin(part + 1));
      }
    });
  }

  /// Calls f(part, begin, run, length) on runs of records in sorted order, the first of which has the place `begin`;
  /// the runs of a part follow each other until f returns false.
  template <typename F>
  void for_runs(F&& f) const {
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      if (open_.empty()) {
        if (begin < end) {
          f(part, begin, static_cast<const Record*>(records_.get() + begin), end - begin);
        }
        return;
      }
      BucketSort bucket_sort(open_digits_, largest_bucket(open_));
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t next = *std::upper_bound(open_.begin(), open_.end(), at);
        if (!f(part, at, bucket_sort(records_.get() + at, next - at), next - at)) {
          return;
        }
        at = next;
      }
    });
  }

  /// All records in sorted order.
  const Record* sorted() {
    if (!open_.empty()) {
      for_runs([&](std::int64_t, std::int64_t begin, const Record* run, std::int64_t length) {
        std::copy(run, run + length, records_.get() + begin);
        return true;
      });
      open_.clear();
    }
    return records_.get();
  }

  /// Stable, by keys below 2^bits.
  void sort_by(const KeyOf& key, int bits) {
    if (count_ < 2 || bits < 1 || is_sorted(key)) {
      return;
    }
    if (spare_ == nullptr) {
      spare_ = allocate(count_);
    }
    if (bits > kDigitBits && count_ >= kFarRecords && bucket_by(key, bits)) {
      return;
    }
    const int passes = (bits + kDigitBits - 1) / kDigitBits;
    const int width = (bits + passes - 1) / passes;
    int pass = 0;
    for (; pass < passes; ++pass) {
      scatter(Digit(key, pass * width, width));
    }
  }

 private:
  using Records = KeptArray<Record>;
  /// Where each part writes its first record of each bucket: [part][bucket].
  using Offsets = std::vector<std::int64_t>;

  /// Digits this wide keep the open cache lines of a pass within the first-level cache.
  static constexpr int kDigitBits = 9;
  /// So many records and their copy stay in a core's own cache.
  static constexpr std::int64_t kNearRecords = (std::int64_t{1} << 19) / static_cast<std::int64_t>(sizeof(Record));
  /// A bucket may be larger where it is no more than this share of all: the other threads have theirs.
  static constexpr std::int64_t kLargestShare = 8;
  /// So many do not.
  static constexpr std::int64_t kFarRecords = std::int64_t{1} << 18;

  /// Some bits of a key.
  struct Digit {
    Digit() = default;
    Digit(const KeyOf& of, int from, int width) : key(of), shift(from), buckets(std::size_t{1} << width) {}
    std::size_t operator()(const Record& r) const {
      return static_cast<std::size_t>(static_cast<std::uint64_t>(key(r)) >> shift) & (buckets - 1);
    }
    KeyOf key{};
    int shift = 0;
    std::size_t buckets = 1;
  };

  // The two inner loops: the digit by value, so that the compiler keeps it in registers.
  static void count_into(std::int64_t* counts, Digit digit, const Record* from, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) {
      ++counts[digit(from[i])];
    }
  }
  static void scatter_from(std::int64_t* next, Digit digit, const Record* from, std::int64_t length, Record* to) {
    for (std::int64_t i = 0; i < length; ++i) {
      to[next[digit(from[i])]++] = from[i];
    }
  }

  /// A stable sort of few records by some digits, the lowest first, into memory of its own.
  struct BucketSort {
    BucketSort(const std::vector<Digit>& by, std::int64_t largest)
        : digits(by),
          next(by.front().buckets),
          sorted(allocate(largest)),
          spare(by.size() > 1 ? allocate(largest) : nullptr) {}

    const Record* operator()(const Record* from, std::int64_t length) {
      if (length < 2) {
        return from;
      }
      for (const Digit& digit : digits) {
        std::fill(next.begin(), next.end(), 0);
        count_into(next.data(), digit, from, length);
        std::int64_t total = 0;
        for (std::int64_t& n : next) {
          total += std::exchange(n, total);
        }
        Record* const to = from == sorted.get() ? spare.get() : sorted.get();
        scatter_from(next.data(), digit, from, length, to);
        from = to;
      }
      return from;
    }

    std::vector<Digit> digits;
    std::vector<std::int64_t> next;
    Records sorted;
    Records spare;
  };

  static Records allocate(std::int64_t count) { return take_array<Record>(static_cast<std::size_t>(count)); }

  static std::int64_t largest_bucket(const std::vector<std::int64_t>& starts) {
    std::int64_t largest = 0;
    for (std::size_t bucket = 0; bucket + 1 < starts.size(); ++bucket) {
      largest = std::max(largest, starts[bucket + 1] - starts[bucket]);
    }
    return largest;
  }

  /// Parts end where buckets do.
  std::int64_t part_begin(std::int64_t part) const {
    const std::int64_t begin = count_ * part / parts_;
    return open_.empty() ? begin : *std::lower_bound(open_.begin(), open_.end(), begin);
  }

  bool is_sorted(const KeyOf& key) const {
    struct Part {
      std::uint64_t least = 0;
      std::uint64_t most = 0;
      bool empty = true;
      bool sorted = true;
    };
    std::vector<Part> parts(static_cast<std::size_t>(parts_));
    for_runs([&](std::int64_t number, std::int64_t, const Record* run, std::int64_t length) {
      Part part = parts[static_cast<std::size_t>(number)];
      if (part.empty) {
        part.least = part.most = static_cast<std::uint64_t>(key(run[0]));
        part.empty = false;
      }
      for (std::int64_t i = 0; i < length && part.sorted; ++i) {
        const auto value = static_cast<std::uint64_t>(key(run[i]));
        part.sorted = value >= part.most;
        part.most = value;
      }
      parts[static_cast<std::size_t>(number)] = part;
      return part.sorted;
    });
    std::uint64_t before = 0;
    for (const Part& part : parts) {
      if (!part.sorted || (!part.empty && part.least < before)) {
        return false;
      }
      before = std::max(before, part.most);
    }
    return true;
  }

  Offsets count(const Digit& digit) const {
    Offsets offsets(digit.buckets * static_cast<std::size_t>(parts_), 0);
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      count_into(offsets.data() + static_cast<std::size_t>(part) * digit.buckets, digit, records_.get() + begin,
                 end - begin);
    });
    std::int64_t total = 0;
    for (std::size_t bucket = 0; bucket < digit.buckets; ++bucket) {
      for (std::size_t at = bucket; at < offsets.size(); at += digit.buckets) {
        total += std::exchange(offsets[at], total);
      }
    }
    return offsets;
  }

  /// One stable pass, from the order of the runs.
  void scatter(const Digit& digit) { scatter(digit, count(digit)); }
  void scatter(const Digit& digit, Offsets offsets) {
    for_runs([&](std::int64_t part, std::int64_t, const Record* run, std::int64_t length) {
      scatter_from(offsets.data() + static_cast<std::size_t>(part) * digit.buckets, digit, run, length, spare_.get());
      return true;
    });
    std::swap(records_, spare_);
    open_.clear();
  }

  /// To the buckets of the key's highest bits, which then wait for the lower ones. Does nothing where a bucket would be
  /// too large.
  bool bucket_by(const KeyOf& key, int bits) {
    const int high_bits = bits < 2 * kDigitBits ? (bits + 1) / 2 : kDigitBits;
    const int low_bits = bits - high_bits;
    const Digit high(key, low_bits, high_bits);
    Offsets offsets = count(high);
    std::vector<std::int64_t> starts(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(high.buckets));
    starts.push_back(count_);
    if (largest_bucket(starts) > std::max(kNearRecords, count_ / kLargestShare)) {
      return false;
    }
    scatter(high, std::move(offsets));
    const int passes = (low_bits + kDigitBits - 1) / kDigitBits;
    const int width = (low_bits + passes - 1) / passes;
    open_digits_.clear();
    for (int pass = 0; pass < passes; ++pass) {
      open_digits_.emplace_back(key, pass * width, std::min(width, low_bits - pass * width));
    }
    open_ = std::move(starts);
    return true;
  }

  std::int64_t count_;
  CpuExecutor executor_;
  std::int64_t parts_;
  Records records_;
  Records spare_;
  /// Buckets that wait to be put in order by open_digits_: where they start, and the end; empty where none waits.
  std::vector<std::int64_t> open_;
  std::vector<Digit> open_digits_;
};

}  // namespace lacewing::structure
