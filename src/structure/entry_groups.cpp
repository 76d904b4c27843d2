#include "structure/entry_groups.h"

#include <algorithm>
#include <atomic>

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
  virtual std::int64_t count_groups(std::int64_t begin, std::int64_t end) const = 0;
  virtual void write(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups,
                     std::int64_t* indices, std::int32_t* segments, std::int32_t* order) const = 0;
  virtual void write(std::int64_t begin, std::int64_t end, std::int64_t group, std::int64_t groups,
                     std::int64_t* indices, std::int64_t* segments, std::int64_t* order) const = 0;
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
    sorted_ = records_.sorted();
  }

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

  const KeyCode& code_;
  KeyOf key_;
  RadixSort<Record, KeyOf> records_;
  const Record* sorted_ = nullptr;
};

EntryGroups::EntryGroups(const IndexMatrix& indices, std::span<const std::int64_t> dims,
                         std::span<const std::int64_t> sizes, const CpuExecutor& executor)
    : indices_(indices), dims_(dims.begin(), dims.end()), executor_(executor) {
  code_ = std::make_unique<KeyCode>(indices, dims, sizes);
  starts_.assign(static_cast<std::size_t>(parts_for(count())) + 1, 0);
  if (!count_in_order(0)) {
    int settled = 0;
    for (std::size_t k = 1; k < dims.size() && settled == 0; ++k) {
      settled = count_in_order(k) ? code_->bits_from(k) : 0;
    }
    if (code_->bits() + bits_for(count()) <= 64) {
      sorted_ = std::make_unique<SortedRecords<PackedEntry>>(*code_, settled, executor);
    } else {
      sorted_ = std::make_unique<SortedRecords<WideEntry>>(*code_, settled, executor);
    }
    for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      starts_[static_cast<std::size_t>(part) + 1] = sorted_->count_groups(begin, end);
    });
  }
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    starts_[p] += starts_[p - 1];
  }
}

EntryGroups::~EntryGroups() = default;

bool EntryGroups::count_in_order(std::size_t first_dim) {
  if (first_dim > 0 && !code_->side_by_side()) {
    return false;
  }
  const std::uint64_t mask = first_dim == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << code_->bits_from(first_dim)) - 1;
  std::atomic<bool> in_order{true};
  for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::uint64_t before = begin > 0 ? code_->key(begin - 1) & mask : 0;
    std::int64_t groups = begin == 0 && end > 0 && (code_->key(0) & mask) == 0 ? 1 : 0;
    for_key_blocks(*code_, begin, end, [&](std::int64_t, const std::uint64_t* keys, std::int64_t length) {
      bool increases = true;
      for (std::int64_t i = 0; i < length; ++i) {
        const std::uint64_t key = keys[i] & mask;
        increases &= key >= before;
        groups += key != before ? 1 : 0;
        before = key;
      }
      if (!increases) {
        in_order = false;
      }
      return in_order.load(std::memory_order_relaxed);
    });
    starts_[static_cast<std::size_t>(part) + 1] = groups;
  });
  return in_order;
}

template <typename Index>
void EntryGroups::write_as(std::int64_t* indices, Index* segments, Index* order) const {
  for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t group = starts_[static_cast<std::size_t>(part)];
    if (sorted_ != nullptr) {
      sorted_->write(begin, end, group, groups(), indices, segments, order);
      return;
    }
    std::uint64_t before = begin > 0 ? code_->key(begin - 1) : 0;
    for_key_blocks(*code_, begin, end, [&](std::int64_t first, const std::uint64_t* keys, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t e = first + i;
        if (keys[i] != before || e == 0) {
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
  });
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
