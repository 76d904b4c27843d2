#include "structure/entry_groups.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "structure/fixed_parts.h"
#include "structure/radix_sort.h"

namespace lacewing::structure {
namespace {

int bits_for(std::int64_t count) {
  return count < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
}

/// Indices as one key: side by side as bits where they fit 63 of them, else the row-major number.
struct KeyCode {
  std::vector<std::int64_t> sizes;
  std::vector<int> widths;             ///< bits of each dim
  std::vector<std::uint64_t> factors;  ///< key = sum of index * factor
  int bits = 0;
  bool side_by_side = true;

  explicit KeyCode(std::span<const std::int64_t> given) : sizes(given.begin(), given.end()), factors(given.size(), 1) {
    for (const std::int64_t size : sizes) {
      widths.push_back(bits_for(size));
      bits += widths.back();
    }
    side_by_side = bits <= 63;
    for (std::size_t k = sizes.size(); k-- > 1;) {
      factors[k - 1] =
          factors[k] * (side_by_side ? std::uint64_t{1} << widths[k] : static_cast<std::uint64_t>(sizes[k]));
    }
    bits = std::min(bits, 63);
  }

  /// out[k * stride] = the index of dim k.
  void decode(std::uint64_t key, std::int64_t* out, std::int64_t stride) const {
    if (side_by_side) {
      for (std::size_t k = sizes.size(); k-- > 0;) {
        const int width = widths[k];
        out[static_cast<std::int64_t>(k) * stride] = static_cast<std::int64_t>(key & ((std::uint64_t{1} << width) - 1));
        key >>= width;
      }
      return;
    }
    for (std::size_t k = sizes.size(); k-- > 0;) {
      const auto size = static_cast<std::uint64_t>(sizes[k]);
      out[static_cast<std::int64_t>(k) * stride] = static_cast<std::int64_t>(key % size);
      key /= size;
    }
  }
};

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
  SortedRecords(const IndexMatrix& indices, const std::vector<std::int64_t>& dims, KeyCode code,
                const CpuExecutor& executor)
      : code_(std::move(code)), key_{bits_for(indices.count)}, records_(indices.count, executor) {
    records_.for_parts([&](std::int64_t, std::int64_t begin, std::int64_t end) {
      Record* const to = records_.data();
      for (std::int64_t e = begin; e < end; ++e) {
        to[e] = key_.record(e);
      }
      for (std::size_t k = 0; k < dims.size(); ++k) {
        const std::uint64_t factor = code_.factors[k];
        for (std::int64_t e = begin; e < end; ++e) {
          key_.add(to[e], static_cast<std::uint64_t>(indices.at(dims[k], e)) * factor);
        }
      }
    });
    records_.sort_by(key_, code_.bits);
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

    std::uint64_t operator()(const PackedEntry& r) const { return r.word >> entry_bits; }
    std::uint64_t operator()(const WideEntry& r) const { return r.key; }
    std::int64_t entry(const PackedEntry& r) const {
      return static_cast<std::int64_t>(r.word & ((std::uint64_t{1} << entry_bits) - 1));
    }
    std::int64_t entry(const WideEntry& r) const { return r.entry; }
    Record record(std::int64_t entry) const {
      if constexpr (sizeof(Record) == sizeof(PackedEntry)) {
        return {static_cast<std::uint64_t>(entry)};
      } else {
        return {0, entry};
      }
    }
    void add(PackedEntry& r, std::uint64_t key) const { r.word += key << entry_bits; }
    void add(WideEntry& r, std::uint64_t key) const { r.key += key; }
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

  KeyCode code_;
  KeyOf key_;
  RadixSort<Record, KeyOf> records_;
  const Record* sorted_ = nullptr;
};

EntryGroups::EntryGroups(const IndexMatrix& indices, std::span<const std::int64_t> dims,
                         std::span<const std::int64_t> sizes, const CpuExecutor& executor)
    : indices_(indices), dims_(dims.begin(), dims.end()), executor_(executor) {
  const Sortedness found = sortedness(indices_, dims_, executor);
  if (found == Sortedness::unsorted) {
    KeyCode code(sizes);
    if (code.bits + bits_for(indices.count) <= 64) {
      sorted_ = std::make_unique<SortedRecords<PackedEntry>>(indices_, dims_, std::move(code), executor);
    } else {
      sorted_ = std::make_unique<SortedRecords<WideEntry>>(indices_, dims_, std::move(code), executor);
    }
  }
  const std::int64_t cut = parts_for(count());
  starts_.assign(static_cast<std::size_t>(cut) + 1, 0);
  if (found == Sortedness::strict) {
    for (std::int64_t part = 0; part <= cut; ++part) {
      starts_[static_cast<std::size_t>(part)] = count() * part / cut;
    }
    return;
  }
  for_fixed_parts(cut, count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t groups = 0;
    if (sorted_ != nullptr) {
      groups = sorted_->count_groups(begin, end);
    } else {
      for (std::int64_t e = begin; e < end; ++e) {
        groups += begins(e) ? 1 : 0;
      }
    }
    starts_[static_cast<std::size_t>(part) + 1] = groups;
  });
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    starts_[p] += starts_[p - 1];
  }
}

EntryGroups::~EntryGroups() = default;

bool EntryGroups::begins(std::int64_t entry) const {
  return entry == 0 || std::any_of(dims_.begin(), dims_.end(),
                                   [&](std::int64_t d) { return indices_.at(d, entry - 1) != indices_.at(d, entry); });
}

template <typename Index>
void EntryGroups::write_as(std::int64_t* indices, Index* segments, Index* order) const {
  for_fixed_parts(parts(), count(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t group = starts_[static_cast<std::size_t>(part)];
    if (sorted_ != nullptr) {
      sorted_->write(begin, end, group, groups(), indices, segments, order);
      return;
    }
    for (std::int64_t e = begin; e < end; ++e) {
      if (begins(e)) {
        if (segments != nullptr) {
          segments[group] = static_cast<Index>(e);
        }
        for (std::size_t k = 0; indices != nullptr && k < dims_.size(); ++k) {
          indices[static_cast<std::int64_t>(k) * groups() + group] = indices_.at(dims_[k], e);
        }
        ++group;
      }
      if (order != nullptr) {
        order[e] = static_cast<Index>(e);
      }
    }
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
