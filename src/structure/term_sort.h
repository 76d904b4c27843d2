// Terms as records, and their stable radix sort. Torch-free.
//
// The three views of a product are reached by rotation: sorting by index2, index1 and row gives the order
// (row, index1, index2); one more stable sort by index2 gives (index2, row, index1), and one more by index1 gives
// (index1, index2, row). So five single-key sorts serve all three views.
//
// A key of two digits costs one pass through memory: terms go to the bucket of the high digit, and a bucket, which
// stays in a core's own cache, is put in order by the low digit when it is read next: by the following sort or by
// the one who writes the terms out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing::structure {

/// One term: an entry of scale, a row of each input, a row of the output. Members are indexed by Key.
template <typename Index>
struct Term {
  Index key[3];
  Index entry;
};

enum Key : int { first = 0, second = 1, row = 2 };

/// Terms in memory that is not initialised until they are written to data().
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
  std::int64_t parts() const { return parts_; }
  /// The terms before the first sort.
  Record* data() { return records_.get(); }

  /// Calls f(part, begin, end) on the parts that the terms are cut into; results must not depend on the cut.
  template <typename F>
  void for_parts(F&& f) const {
    executor_.parallel_for(0, parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        f(part, part_begin(part), part_begin(part + 1));
      }
    });
  }

  /// Calls f(part, begin, run, length) on runs of terms in sorted order, the first of which has the place `begin`; the
  /// runs of a part follow each other until f returns false.
  template <typename F>
  void for_runs(F&& f) const {
    for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      if (open_.starts.empty()) {
        if (begin < end) {
          f(part, begin, static_cast<const Record*>(records_.get() + begin), end - begin);
        }
        return;
      }
      BucketSort bucket_sort(open_.low, largest_bucket(open_.starts));
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t next = *std::upper_bound(open_.starts.begin(), open_.starts.end(), at);
        if (!f(part, at, bucket_sort(records_.get() + at, next - at), next - at)) {
          return;
        }
        at = next;
      }
    });
  }

  /// Stable, by one key whose values lie in [0, limit).
  void sort(Key key, std::int64_t limit) {
    if (count_ < 2 || limit < 2 || is_sorted(key)) {
      return;
    }
    const int bits = std::bit_width(static_cast<std::uint64_t>(limit - 1));
    const int passes = (bits + kDigitBits - 1) / kDigitBits;
    const int width = (bits + passes - 1) / passes;
    if (spare_ == nullptr) {
      spare_ = allocate(count_);
    }
    if (passes == 2 && count_ >= kFarTerms) {
      const int low_bits = bits / 2;
      const Digit high(key, low_bits, bits - low_bits);
      Offsets offsets = count(high);
      std::vector<std::int64_t> starts(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(high.buckets));
      starts.push_back(count_);
      if (largest_bucket(starts) <= kNearTerms) {
        scatter(high, std::move(offsets));
        open_ = {Digit(key, 0, low_bits), std::move(starts)};
        return;
      }
    }
    for (int pass = 0; pass < passes; ++pass) {
      const Digit digit(key, pass * width, width);
      scatter(digit, count(digit));
    }
  }

 private:
  using Records = std::unique_ptr<Record[]>;
  /// Where each part writes its first term of each bucket: [part][bucket].
  using Offsets = std::vector<std::int64_t>;

  /// Digits this wide keep the open cache lines of a pass within the first-level cache.
  static constexpr int kDigitBits = 9;
  /// So many terms and their copy stay in a core's own cache.
  static constexpr std::int64_t kNearTerms = std::int64_t{1} << 15;
  /// So many do not.
  static constexpr std::int64_t kFarTerms = std::int64_t{1} << 18;

  /// Some bits of one key.
  struct Digit {
    Digit() = default;
    Digit(Key which, int from, int width) : key(which), shift(from), buckets(std::size_t{1} << width) {}
    std::size_t operator()(const Record& r) const {
      return static_cast<std::size_t>(static_cast<std::uint64_t>(r.key[key]) >> shift) & (buckets - 1);
    }
    Key key = Key::first;
    int shift = 0;
    std::size_t buckets = 1;
  };

  /// Buckets of terms that wait to be put in order by their low digit; none where `starts` is empty.
  struct OpenBuckets {
    Digit low;
    std::vector<std::int64_t> starts;
  };

  // The two inner loops: all by value, so that the compiler keeps it in registers.
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

  /// A stable sort of few terms by one digit, into memory of its own.
  struct BucketSort {
    BucketSort(const Digit& by, std::int64_t largest) : digit(by), next(by.buckets), sorted(allocate(largest)) {}

    const Record* operator()(const Record* from, std::int64_t length) {
      std::fill(next.begin(), next.end(), 0);
      count_into(next.data(), digit, from, length);
      std::int64_t total = 0;
      for (std::int64_t& n : next) {
        total += std::exchange(n, total);
      }
      scatter_from(next.data(), digit, from, length, sorted.get());
      return sorted.get();
    }

    Digit digit;
    std::vector<std::int64_t> next;
    Records sorted;
  };

  static Records allocate(std::int64_t count) { return Records(new Record[static_cast<std::size_t>(count)]); }

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
    return open_.starts.empty() ? begin : *std::lower_bound(open_.starts.begin(), open_.starts.end(), begin);
  }

  bool is_sorted(Key key) const {
    std::vector<Index> least(static_cast<std::size_t>(parts_));
    std::vector<Index> most(static_cast<std::size_t>(parts_), Index{-1});
    std::vector<char> sorted(static_cast<std::size_t>(parts_), 1);
    for_runs([&](std::int64_t part_number, std::int64_t, const Record* run, std::int64_t length) {
      const auto part = static_cast<std::size_t>(part_number);
      if (most[part] < 0) {
        least[part] = run[0].key[key];
      }
      for (std::int64_t i = 0; i < length; ++i) {
        if (run[i].key[key] < most[part]) {
          sorted[part] = 0;
          return false;
        }
        most[part] = run[i].key[key];
      }
      return true;
    });
    Index before{-1};
    for (std::size_t part = 0; part < sorted.size(); ++part) {
      if (sorted[part] == 0 || (most[part] >= 0 && least[part] < before)) {
        return false;
      }
      before = std::max(before, most[part]);
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
  void scatter(const Digit& digit, Offsets offsets) {
    for_runs([&](std::int64_t part, std::int64_t, const Record* run, std::int64_t length) {
      scatter_from(offsets.data() + static_cast<std::size_t>(part) * digit.buckets, digit, run, length, spare_.get());
      return true;
    });
    std::swap(records_, spare_);
    open_ = {};
  }

  std::int64_t count_;
  CpuExecutor executor_;
  std::int64_t parts_;
  Records records_;
  Records spare_;
  OpenBuckets open_;
};

}  // namespace lacewing::structure
