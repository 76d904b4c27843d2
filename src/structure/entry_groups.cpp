#include "structure/entry_groups.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>

#include "structure/fixed_parts.h"
#include "structure/key_code.h"
#include "structure/radix_sort.h"

namespace lacewing::structure {
namespace {

/// Key and entry in one word, the entry below.
struct PackedEntry {
  std::uint64_t word;
};
/// Where they need two.
struct WideEntry {
  std::uint64_t key;
  std::int64_t entry;
};

}  // namespace

/// The entries in order of their keys.
class EntryGroups::Sorted {
 public:
  virtual ~Sorted() = default;
  /// Puts the records of all buckets in order, for the functions on parts.
  virtual void settle() = 0;
  virtual bool settled() const = 0;
  virtual std::int64_t count_groups(std::int64_t begin, std::int64_t end) const = 0;
  virtual void write(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups,
                     std::int64_t* indices, std::int32_t* segments, std::int32_t* order) const = 0;
  virtual void write(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups,
                     std::int64_t* indices, std::int64_t* segments, std::int64_t* order) const = 0;
  /// All, unsettled, where every entry is a group of its own.
  virtual void write_distinct(std::int64_t* indices, std::int32_t* order) const = 0;
  virtual void write_distinct(std::int64_t* indices, std::int64_t* order) const = 0;
};

template <typename Record>
class EntryGroups::SortedRecords final : public EntryGroups::Sorted {
 public:
  /// The lowest `settled` bits of the keys are in order already.
  SortedRecords(const KeyCode& code, int settled, const CpuExecutor& executor)
      : code_(code), key_{bits_for(code.count())}, records_(code.count(), executor) {
    records_.for_parts([&](std::int64_t, std::int64_t begin, std::int64_t end) {
      Record* const to = records_.data();
      for_key_blocks(code_, begin, end, [&](std::int64_t first, const std::uint64_t* keys, std::int64_t length) {
        for (std::int64_t i = 0; i < length; ++i) {
          to[first + i] = key_.record(keys[i], first + i);
        }
        return true;
      });
    });
    KeyOf sorted_by = key_;
    sorted_by.settled_bits = settled;
    records_.sort_by(sorted_by, code_.bits() - settled);
  }

  void settle() override { sorted_ = records_.sorted(); }
  bool settled() const override { return sorted_ != nullptr; }
  std::int64_t count_groups(std::int64_t begin, std::int64_t end) const override {
    std::int64_t count = 0;
    for (std::int64_t e = begin; e < end; ++e) {
      count += begins(e) ? 1 : 0;
    }
    return count;
  }
  void write(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups, std::int64_t* indices,
             std::int32_t* segments, std::int32_t* order) const override {
    write_as(begin, end, group, groups, indices, segments, order);
  }
  void write(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups, std::int64_t* indices,
             std::int64_t* segments, std::int64_t* order) const override {
    write_as(begin, end, group, groups, indices, segments, order);
  }
  void write_distinct(std::int64_t* indices, std::int32_t* order) const override { write_distinct_as(indices, order); }
  void write_distinct(std::int64_t* indices, std::int64_t* order) const override { write_distinct_as(indices, order); }

 private:
  /// The parts of a record.
  struct KeyOf {
    int entry_bits = 0;
    int settled_bits = 0;

    std::uint64_t operator()(const PackedEntry& r) const { return r.word >> (entry_bits + settled_bits); }
    std::uint64_t operator()(const WideEntry& r) const { return r.key >> settled_bits; }
    std::int64_t entry(const PackedEntry& r) const {
      return static_cast<std::int64_t>(r.word & ((std::uint64_t{1} << entry_bits) - 1));
    }
    std::int64_t entry(const WideEntry& r) const { return r.entry; }
    Record record(std::uint64_t key, std::int64_t entry) const {
      if constexpr (sizeof(Record) == sizeof(PackedEntry)) {
        return {key << entry_bits | static_cast<std::uint64_t>(entry)};
      } else {
        return {key, entry};
      }
    }
  };

  bool begins(std::int64_t e) const { return e == 0 || key_(sorted_[e]) != key_(sorted_[e - 1]); }

  template <typename Index>
  void write_as(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups, std::int64_t* indices,
                Index* segments, Index* order) const {
    for (std::int64_t e = begin; e < end; ++e) {
      if (begins(e)) {
        if (segments != nullptr) {
          segments[group] = static_cast<Index>(e);
        }
        if (indices != nullptr) {
          code_.decode(key_(sorted_[e]), indices + group, groups);
        }
        ++group;
      }
      if (order != nullptr) {
        order[e] = static_cast<Index>(key_.entry(sorted_[e]));
      }
    }
  }

  /// A bucket at a time, straight from where it is put in order.
  template <typename Index>
  void write_distinct_as(std::int64_t* indices, Index* order) const {
    records_.for_runs([&](std::int64_t, std::int64_t begin, const Record* run, std::int64_t length) {
      for (std::size_t k = 0; indices != nullptr && k < code_.dims(); ++k) {
        code_.decode_dim(
            k, length, [&](std::int64_t i) { return key_(run[i]); },
            indices + static_cast<std::int64_t>(k) * code_.count() + begin);
      }
      for (std::int64_t i = 0; order != nullptr && i < length; ++i) {
        order[begin + i] = static_cast<Index>(key_.entry(run[i]));
      }
      return true;
    });
  }

  const KeyCode& code_;
  KeyOf key_;
  RadixSort<Record, KeyOf> records_;
  const Record* sorted_ = nullptr;
};

EntryGroups::EntryGroups(const IndexMatrix& indices, std::span<const std::int64_t> dims,
                         std::span<const std::int64_t> sizes, const CpuExecutor& executor, const KnownEntries& known)
    : indices_(indices), dims_(dims.begin(), dims.end()), executor_(executor) {
  code_ = std::make_unique<KeyCode>(indices, dims, sizes);
  starts_.assign(static_cast<std::size_t>(parts_for(count())) + 1, 0);
  if (!known.groups.empty()) {
    std::copy(known.groups.begin(), known.groups.end(), starts_.begin() + 1);
  } else if (!count_in_order(0)) {
    const int settled = settled_bits(known.rows_in_order);
    if (code_->bits() + bits_for(count()) <= 64) {
      sorted_ = std::make_unique<SortedRecords<PackedEntry>>(*code_, settled, executor);
    } else {
      sorted_ = std::make_unique<SortedRecords<WideEntry>>(*code_, settled, executor);
    }
    if (!known.distinct) {
      sorted_->settle();
    }
    for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      starts_[static_cast<std::size_t>(part) + 1] = known.distinct ? end - begin : sorted_->count_groups(begin, end);
    });
  }
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    starts_[p] += starts_[p - 1];
  }
}

EntryGroups::~EntryGroups() = default;

int EntryGroups::settled_bits(bool rows_in_order) {
  for (std::size_t k = 1; k < dims_.size() && code_->side_by_side(); ++k) {
    // Entries in the order of all rows are in that of the first few.
    bool settled = rows_in_order;
    for (std::size_t j = k; j < dims_.size(); ++j) {
      settled = settled && dims_[j] == static_cast<std::int64_t>(j - k);
    }
    if (settled || count_in_order(k)) {
      return code_->bits_from(k);
    }
  }
  return 0;
}

bool EntryGroups::count_in_order(std::size_t first_dim) {
  const std::uint64_t mask = first_dim == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << code_->bits_from(first_dim)) - 1;
  std::atomic<bool> in_order{true};
  for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    OrderCheck check(*code_, begin, mask);
    for_key_blocks(*code_, begin, end, [&](std::int64_t, const std::uint64_t* keys, std::int64_t length) {
      if (!check.add(keys, length)) {
        in_order = false;
      }
      return in_order.load(std::memory_order_relaxed);
    });
    starts_[static_cast<std::size_t>(part) + 1] = check.groups;
  });
  return in_order;
}

template <typename Index>
void EntryGroups::write_as(std::int64_t* indices, Index* segments, Index* order) const {
  if (sorted_ != nullptr && !sorted_->settled()) {
    sorted_->write_distinct(indices, order);
    if (segments != nullptr) {
      std::iota(segments, segments + count() + 1, Index{0});
    }
    return;
  }
  std::atomic<bool> changed{false};
  for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t group = starts_[static_cast<std::size_t>(part)];
    const std::int64_t group_end = starts_[static_cast<std::size_t>(part) + 1];
    if (sorted_ != nullptr) {
      sorted_->write(begin, end, group, groups(), indices, segments, order);
      return;
    }
    if (group == group_end && order == nullptr) {
      return;
    }
    std::uint64_t before = begin > 0 ? code_->key(begin - 1) : 0;
    for_key_blocks(*code_, begin, end, [&](std::int64_t first, const std::uint64_t* keys, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t e = first + i;
        if (keys[i] != before || e == 0) {
          if (group == group_end) {
            changed = true;
            return false;
          }
          if (segments != nullptr) {
            segments[group] = static_cast<Index>(e);
          }
          for (std::size_t k = 0; indices != nullptr && k < dims_.size(); ++k) {
            indices[static_cast<std::int64_t>(k) * groups() + group] = indices_.at(dims_[k], e);
          }
          ++group;
          before = keys[i];
        }
        if (order != nullptr) {
          order[e] = static_cast<Index>(e);
        }
      }
      return true;
    });
    if (group < group_end) {
      changed = true;
    }
  });
  if (changed) {
    throw std::invalid_argument("[lacewing] the indices of entries changed while the entries were grouped");
  }
  if (segments != nullptr) {
    segments[groups()] = static_cast<Index>(count());
  }
}

void EntryGroups::write(std::int64_t* indices, void* segments, void* order, bool wide) const {
  if (wide) {
    write_as(indices, static_cast<std::int64_t*>(segments), static_cast<std::int64_t*>(order));
  } else {
    write_as(indices, static_cast<std::int32_t*>(segments), static_cast<std::int32_t*>(order));
  }
}

}  // namespace lacewing::structure
