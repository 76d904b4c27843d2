#include "kernels/sparse_matmul.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/isa.h"
#include "kernels/terms.h"

namespace lacewing::kernels {
namespace {

constexpr std::int64_t kMostParts = 64;
constexpr std::int64_t kPartWork = 1 << 13;

// Places in a set of bits, counted by the processor's own instruction where it has one: the same loops twice.

/// before[w] = the bits in the words before word w; returns all of them.
inline __attribute__((always_inline)) std::int64_t count_before(const std::uint64_t* words, std::int64_t count,
                                                                std::int32_t* before) {
  std::int32_t total = 0;
  for (std::int64_t w = 0; w < count; ++w) {
    before[w] = total;
    total += static_cast<std::int32_t>(__builtin_popcountll(words[w]));
  }
  return total;
}

/// A row of b.
template <typename T>
struct RowOfB {
  const std::int32_t* columns;
  const T* values;
  std::int64_t count;
};

/// Where the sums of a row of the product gather: at the places of their columns, and the columns beside them.
template <typename Acc>
struct PlacedSums {
  const std::uint64_t* words;
  const std::int32_t* before;
  Acc* sums;
  std::int32_t* columns;
};

/// Adds a row of b times one value.
template <typename T>
inline __attribute__((always_inline)) void add_row(const RowOfB<T>& row, accumulate_t<T> left,
                                                   const PlacedSums<accumulate_t<T>>& to) {
  for (std::int64_t u = 0; u < row.count; ++u) {
    const std::int32_t column = row.columns[u];
    const std::uint64_t below = to.words[column >> 6] & ((std::uint64_t{1} << (column & 63)) - 1);
    const std::int32_t place = to.before[column >> 6] + static_cast<std::int32_t>(__builtin_popcountll(below));
    to.columns[place] = column;
    to.sums[place] += left * widen(row.values[u]);
  }
}

struct PlainPlaces {
  static std::int64_t count(const std::uint64_t* words, std::int64_t n, std::int32_t* before) {
    return count_before(words, n, before);
  }
  template <typename T>
  static void add(const RowOfB<T>& row, accumulate_t<T> left, const PlacedSums<accumulate_t<T>>& to) {
    add_row(row, left, to);
  }
};

#if LACEWING_HAVE_X86_ISA
struct FastPlaces {
  __attribute__((target("popcnt"))) static std::int64_t count(const std::uint64_t* words, std::int64_t n,
                                                              std::int32_t* before) {
    return count_before(words, n, before);
  }
  template <typename T>
  __attribute__((target("popcnt"))) static void add(const RowOfB<T>& row, accumulate_t<T> left,
                                                    const PlacedSums<accumulate_t<T>>& to) {
    add_row(row, left, to);
  }
};
#else
using FastPlaces = PlainPlaces;
#endif

/// Calls f with the places that this processor has.
template <typename F>
void with_places(const F& f) {
  if (cpu::isa() == cpu::Isa::baseline) {
    f(PlainPlaces{});
  } else {
    f(FastPlaces{});
  }
}

/// A set of columns that gives them back in order: a bit for each. For few columns, also a bit for each word of them;
/// for many, the words are looked through.
class ColumnSet {
 public:
  explicit ColumnSet(std::int64_t columns)
      : words_(static_cast<std::size_t>(columns / 64 + 1), 0),
        summary_(words_.size() / 64 + 1, 0),
        used_(words_.size() + 1),
        before_(words_.size()) {}

  bool is_few(std::int64_t columns) const { return columns < static_cast<std::int64_t>(words_.size()) / 8; }
  /// Fewer than the words: to count the new ones among them is less than to look through all words.
  bool is_counted_singly(std::int64_t columns) const { return columns < static_cast<std::int64_t>(words_.size()); }

  void add_of_few(std::int32_t column) {
    const auto word = static_cast<std::size_t>(column >> 6);
    if (words_[word] == 0) {
      summary_[word >> 6] |= std::uint64_t{1} << (word & 63);
    }
    words_[word] |= std::uint64_t{1} << (column & 63);
  }
  /// 1 where the column is new, else 0.
  std::int64_t count_new(std::int32_t column) {
    std::uint64_t& word = words_[static_cast<std::size_t>(column >> 6)];
    const std::uint64_t before = word >> (column & 63);
    word |= std::uint64_t{1} << (column & 63);
    return static_cast<std::int64_t>(~before & 1);
  }
  void remove_word_of(std::int32_t column) { words_[static_cast<std::size_t>(column >> 6)] = 0; }
  void add_of_many(std::int32_t column) {
    words_[static_cast<std::size_t>(column >> 6)] |= std::uint64_t{1} << (column & 63);
  }

  /// Call f(column) in order, and empty the set.
  template <typename F>
  void take_few(const F& f) {
    for (std::size_t s = 0; s < summary_.size(); ++s) {
      for (std::uint64_t left = summary_[s]; left != 0; left &= left - 1) {
        take_word(s * 64 + static_cast<std::size_t>(std::countr_zero(left)), f);
      }
      summary_[s] = 0;
    }
  }
  /// Settles the places of the columns of the set, in order; how many they are.
  template <typename Places>
  std::int64_t place() {
    return Places::count(words_.data(), static_cast<std::int64_t>(words_.size()), before_.data());
  }
  template <typename Acc>
  PlacedSums<Acc> places(Acc* sums, std::int32_t* columns) const {
    return {words_.data(), before_.data(), sums, columns};
  }
  void clear() { std::fill(words_.begin(), words_.end(), 0); }

  template <typename F>
  void take_many(const F& f) {
    std::size_t used = 0;
    for (std::size_t word = 0; word < words_.size(); ++word) {
      used_[used] = static_cast<std::uint32_t>(word);
      used += words_[word] != 0 ? 1 : 0;
    }
    for (std::size_t k = 0; k < used; ++k) {
      take_word(used_[k], f);
    }
  }

 private:
  template <typename F>
  void take_word(std::size_t word, const F& f) {
    std::uint64_t bits = words_[word];
    words_[word] = 0;
    const auto base = static_cast<std::int64_t>(word * 64);
    do {
      f(base + std::countr_zero(bits));
      bits &= bits - 1;
    } while (bits != 0);
  }

  std::vector<std::uint64_t> words_, summary_;
  std::vector<std::uint32_t> used_;   ///< words with a bit; only its begin is touched
  std::vector<std::int32_t> before_;  ///< columns of the set before each word, where they have places
};

}  // namespace

/// Calls f(part, begin, end) on the rows of each part.
template <typename F>
void SparseMatmul::for_parts(const F& f) const {
  executor_.parallel_for(0, static_cast<std::int64_t>(cuts_.size()) - 1, 1,
                         [&](std::int64_t first, std::int64_t last) { f(first, last); });
}

/// Calls f(t, begin, end) on the entries t of row r of a, with the entries of b that each meets.
template <typename F>
void SparseMatmul::each_entry(std::int64_t r, const F& f) const {
  constexpr std::int64_t kEntriesAhead = 6;
  const std::int64_t end = a_.segments[r + 1];
  for (std::int64_t t = a_.segments[r]; t < end; ++t) {
    if (t + kEntriesAhead < a_.entries) {
      __builtin_prefetch(b_columns_.data() + met_[static_cast<std::size_t>(t + kEntriesAhead)].begin);
    }
    const Span met = met_[static_cast<std::size_t>(t)];
    f(t, met.begin, met.end);
  }
}

/// Calls of_entry(t)(u) on the pairs (entry t of a, entry u of b) that meet in row r.
template <typename F>
void SparseMatmul::each_product(std::int64_t r, const F& of_entry) const {
  each_entry(r, [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
    const auto visit = of_entry(t);
    for (std::int64_t u = begin; u < end; ++u) {
      visit(u);
    }
  });
}

/// Calls f(column) on the columns of b that meet in row r, as often as they do.
template <typename F>
void SparseMatmul::each_column(std::int64_t r, const F& f) const {
  each_product(r, [&](std::int64_t) { return [&](std::int64_t u) { f(b_columns_[static_cast<std::size_t>(u)]); }; });
}

SparseMatmul::SparseMatmul(const RowsView& a, const RowsView& b, std::int64_t shared, std::int64_t columns,
                           const CpuExecutor& executor)
    : a_(a),
      b_(b),
      columns_(columns),
      executor_(executor),
      b_columns_(static_cast<std::size_t>(b.entries)),
      met_(static_cast<std::size_t>(a.entries)) {
  executor.parallel_for(0, b.entries, 1 << 14, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t u = first; u < last; ++u) {
      b_columns_[static_cast<std::size_t>(u)] = static_cast<std::int32_t>(b.columns[u]);
    }
  });
  // The row of b of each entry of a: by a table where one is no larger than the matrices, else by search.
  std::vector<std::int32_t> table;
  if (shared <= 8 * (a.entries + b.entries) && b.rows < (std::int64_t{1} << 31)) {
    table.assign(static_cast<std::size_t>(shared), -1);
    for (std::int64_t r = 0; r < b.rows; ++r) {
      table[static_cast<std::size_t>(b.keys[r])] = static_cast<std::int32_t>(r);
    }
  }
  const auto row_of = [&](std::int64_t key) -> std::int64_t {
    if (!table.empty()) {
      return table[static_cast<std::size_t>(key)];
    }
    const std::int64_t* const found = std::lower_bound(b.keys, b.keys + b.rows, key);
    return found != b.keys + b.rows && *found == key ? found - b.keys : -1;
  };
  work_.assign(static_cast<std::size_t>(a.rows) + 1, 0);
  executor.parallel_for(0, a.rows, 1024, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      std::int64_t products = 1;
      for (std::int64_t t = a.segments[r]; t < a.segments[r + 1]; ++t) {
        const std::int64_t row = row_of(a.columns[t]);
        const Span met = row < 0 ? Span{} : Span{b.segments[row], b.segments[row + 1]};
        met_[static_cast<std::size_t>(t)] = met;
        products += met.end - met.begin;
      }
      work_[static_cast<std::size_t>(r) + 1] = products;
    }
  });
  for (std::size_t r = 1; r < work_.size(); ++r) {
    work_[r] += work_[r - 1];
  }
  const std::int64_t parts = std::clamp<std::int64_t>(work_.back() / kPartWork, 1, kMostParts);
  for (std::int64_t p = 0; p <= parts; ++p) {
    cuts_.push_back(
        p == parts ? a.rows : std::lower_bound(work_.begin(), work_.end(), work_.back() * p / parts) - work_.begin());
  }
  starts_.assign(cuts_.size(), 0);
  for_parts([&](std::int64_t first, std::int64_t last) {
    ColumnSet set(columns_);
    for (std::int64_t part = first; part < last; ++part) {
      std::int64_t count = 0;
      with_places([&](auto places) {
        for (std::int64_t r = cuts_[static_cast<std::size_t>(part)]; r < cuts_[static_cast<std::size_t>(part) + 1];
             ++r) {
          if (set.is_counted_singly(products_of(r))) {
            each_column(r, [&](std::int32_t column) { count += set.count_new(column); });
            each_column(r, [&](std::int32_t column) { set.remove_word_of(column); });
          } else {
            each_column(r, [&](std::int32_t column) { set.add_of_many(column); });
            count += set.place<decltype(places)>();
            set.clear();
          }
        }
      });
      starts_[static_cast<std::size_t>(part) + 1] = count;
    }
  });
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    starts_[p] += starts_[p - 1];
  }
}

template <typename T>
void SparseMatmul::write_as(const T* a_values, const T* b_values, const std::int64_t* column_keys,
                            std::int64_t key_stride, std::int64_t* keys, T* values) const {
  using Acc = accumulate_t<T>;
  for_parts([&](std::int64_t first, std::int64_t last) {
    ColumnSet set(columns_);
    const auto width = static_cast<std::size_t>(std::max<std::int64_t>(columns_, 0));
    std::vector<Acc> sums(width, Acc{});
    std::vector<std::int32_t> columns(width);
    for (std::int64_t part = first; part < last; ++part) {
      std::int64_t next = starts_[static_cast<std::size_t>(part)];
      for (std::int64_t r = cuts_[static_cast<std::size_t>(part)]; r < cuts_[static_cast<std::size_t>(part) + 1]; ++r) {
        const auto add_products = [&](const auto& mark) {
          each_product(r, [&](std::int64_t t) {
            return [&, left = widen(a_values[t])](std::int64_t u) {
              const std::int32_t column = b_columns_[static_cast<std::size_t>(u)];
              sums[static_cast<std::size_t>(column)] += left * widen(b_values[u]);
              mark(column);
            };
          });
        };
        const auto write_sum = [&, base = a_.keys[r] * key_stride](std::int64_t column) {
          Acc& sum = sums[static_cast<std::size_t>(column)];
          keys[next] = base + (column_keys == nullptr ? column : column_keys[column]);
          values[next++] = narrow<T>(sum);
          sum = Acc{};
        };
        if (set.is_few(products_of(r))) {
          add_products([&](std::int32_t column) { set.add_of_few(column); });
          set.take_few(write_sum);
        } else if (products_of(r) < columns_) {
          each_column(r, [&](std::int32_t column) { set.add_of_many(column); });
          with_places([&](auto places) {
            const std::int64_t count = set.place<decltype(places)>();
            const auto to = set.places(sums.data(), columns.data());
            each_entry(r, [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
              places.add(RowOfB<T>{b_columns_.data() + begin, b_values + begin, end - begin}, widen(a_values[t]), to);
            });
            const std::int64_t base = a_.keys[r] * key_stride;
            for (std::int64_t k = 0; k < count; ++k) {
              const std::int32_t column = columns[static_cast<std::size_t>(k)];
              keys[next + k] = base + (column_keys == nullptr ? column : column_keys[column]);
              values[next + k] = narrow<T>(sums[static_cast<std::size_t>(k)]);
            }
            std::fill_n(sums.begin(), count, Acc{});
            next += count;
          });
          set.clear();
        } else {
          add_products([&](std::int32_t column) { set.add_of_many(column); });
          set.take_many(write_sum);
        }
      }
    }
  });
}

void SparseMatmul::write(ScalarType type, const void* a_values, const void* b_values, const std::int64_t* column_keys,
                         std::int64_t key_stride, std::int64_t* keys, void* values) const {
  visit_types(type, false, [&](auto scalar, auto) {
    using T = decltype(scalar);
    write_as(static_cast<const T*>(a_values), static_cast<const T*>(b_values), column_keys, key_stride, keys,
             static_cast<T*>(values));
  });
}

}  // namespace lacewing::kernels
