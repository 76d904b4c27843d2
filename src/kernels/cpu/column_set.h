// The columns of one row of a sparse product: batches of them, and a set that gives them back in order or settles their
// places.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/cpu/isa.h"

#if LACEWING_HAVE_X86_ISA
#include <immintrin.h>
#endif

namespace lacewing::kernels {

/// Products of a row that are looked at together, and how many of them are copied at a time.
constexpr std::int64_t kBatch = 1024;
constexpr std::int64_t kStep = 16;
/// Words of a set of columns come in groups of as many.
constexpr std::int64_t kWordGroup = 8;

/// Columns that products of a row fall on, side by side: a loop over them does not end with each row of b, which the
/// processor could not foresee.
struct ColumnBatch {
  std::array<std::int32_t, kBatch + kStep> columns;
  std::int64_t count = 0;
};

/// With the products.
template <typename Acc>
struct ProductBatch : ColumnBatch {
  std::array<Acc, kBatch + kStep> products;
};

/// Where the sums of a row of the product gather: at the places of their columns, and the columns beside them.
template <typename Acc>
struct PlacedSums {
  const std::uint64_t* words;
  const std::int32_t* before;
  Acc* sums;
  std::int32_t* columns;
};

// Places in a set of bits, counted by the processor's own instructions where it has them: the same loops for each.

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

/// The bits in the words, which are cleared.
inline __attribute__((always_inline)) std::int64_t take_all(std::uint64_t* words, std::int64_t count) {
  std::int64_t total = 0;
  for (std::int64_t w = 0; w < count; ++w) {
    total += __builtin_popcountll(words[w]);
    words[w] = 0;
  }
  return total;
}

template <typename Acc>
inline __attribute__((always_inline)) void add_batch(const ProductBatch<Acc>& batch, const PlacedSums<Acc>& to) {
  for (std::int64_t k = 0; k < batch.count; ++k) {
    const std::int32_t column = batch.columns[static_cast<std::size_t>(k)];
    const std::uint64_t below = to.words[column >> 6] & ((std::uint64_t{1} << (column & 63)) - 1);
    const std::int32_t place = to.before[column >> 6] + static_cast<std::int32_t>(__builtin_popcountll(below));
    to.columns[place] = column;
    to.sums[place] += batch.products[static_cast<std::size_t>(k)];
  }
}

struct PlainPlaces {
  static constexpr std::int64_t kWordsPerColumn = 1;  ///< words that are counted in the time of one column
  static std::int64_t count(const std::uint64_t* words, std::int64_t n, std::int32_t* before) {
    return count_before(words, n, before);
  }
  static std::int64_t take(std::uint64_t* words, std::int64_t n) { return take_all(words, n); }
  template <typename Acc>
  static void add(const ProductBatch<Acc>& batch, const PlacedSums<Acc>& to) {
    add_batch(batch, to);
  }
};

#if LACEWING_HAVE_X86_ISA
#define LACEWING_TARGET(features) __attribute__((target(features)))

struct FastPlaces {
  static constexpr std::int64_t kWordsPerColumn = 4;
  LACEWING_TARGET("popcnt")
  static std::int64_t count(const std::uint64_t* words, std::int64_t n, std::int32_t* before) {
    return count_before(words, n, before);
  }
  LACEWING_TARGET("popcnt") static std::int64_t take(std::uint64_t* words, std::int64_t n) {
    return take_all(words, n);
  }
  template <typename Acc>
  LACEWING_TARGET("popcnt")
  static void add(const ProductBatch<Acc>& batch, const PlacedSums<Acc>& to) {
    add_batch(batch, to);
  }
};

/// A group of words at a time.
struct WidePlaces : FastPlaces {
  typedef long long Words __attribute__((vector_size(8 * kWordGroup)));
  typedef std::int32_t Places __attribute__((vector_size(4 * kWordGroup), aligned(4)));

  static constexpr std::int64_t kWordsPerColumn = 8;

  LACEWING_TARGET("avx512f,avx512vpopcntdq")
  static Words bits_of(const std::uint64_t* words) { return (Words)_mm512_popcnt_epi64(_mm512_loadu_si512(words)); }
  LACEWING_TARGET("avx512f,avx512vpopcntdq")
  static std::int64_t count(const std::uint64_t* words, std::int64_t n, std::int32_t* before) {
    constexpr Words kZero{};
    Words total{};
    for (std::int64_t w = 0; w < n; w += kWordGroup) {
      const Words bits = bits_of(words + w);
      Words sums = bits + __builtin_shuffle(kZero, bits, Words{7, 8, 9, 10, 11, 12, 13, 14});
      sums += __builtin_shuffle(kZero, sums, Words{6, 7, 8, 9, 10, 11, 12, 13});
      sums += __builtin_shuffle(kZero, sums, Words{4, 5, 6, 7, 8, 9, 10, 11});
      *reinterpret_cast<Places*>(before + w) = __builtin_convertvector(total + sums - bits, Places);
      total += __builtin_shuffle(sums, Words{7, 7, 7, 7, 7, 7, 7, 7});
    }
    return total[0];
  }
  LACEWING_TARGET("avx512f,avx512vpopcntdq") static std::int64_t take(std::uint64_t* words, std::int64_t n) {
    Words total{};
    for (std::int64_t w = 0; w < n; w += kWordGroup) {
      total += bits_of(words + w);
      std::fill_n(words + w, kWordGroup, 0);
    }
    std::int64_t sum = 0;
    for (std::int64_t lane = 0; lane < kWordGroup; ++lane) {
      sum += total[lane];
    }
    return sum;
  }
};

#undef LACEWING_TARGET

/// Calls f with the places that this processor has.
template <typename F>
void with_places(const F& f) {
  static const bool counts_wide = __builtin_cpu_supports("avx512vpopcntdq") != 0;
  if (counts_wide && cpu::isa() == cpu::Isa::avx512) {
    f(WidePlaces{});
  } else if (cpu::isa() != cpu::Isa::baseline) {
    f(FastPlaces{});
  } else {
    f(PlainPlaces{});
  }
}
#else
template <typename F>
void with_places(const F& f) {
  f(PlainPlaces{});
}
#endif

/// A set of columns that gives them back in order: a bit for each. For few columns, also a bit for each word of them;
/// for many, the words are looked through.
class ColumnSet {
 public:
  explicit ColumnSet(std::int64_t columns) {
    const std::size_t words = (static_cast<std::size_t>(columns) / (64 * kWordGroup) + 1) * kWordGroup;
    words_.assign(words, 0);
    summary_.assign(words / 64 + 1, 0);
    used_.resize(words + 1);
    before_.resize(words);
  }

  /// Whether to look at as many columns is less than to look through all words.
  bool is_few(std::int64_t columns, std::int64_t words_per_column = 8) const {
    return columns < static_cast<std::int64_t>(words_.size()) / words_per_column;
  }

  void add_of_few(const ColumnBatch& batch) {
    for (std::int64_t k = 0; k < batch.count; ++k) {
      const std::int32_t column = batch.columns[static_cast<std::size_t>(k)];
      const auto word = static_cast<std::size_t>(column >> 6);
      if (words_[word] == 0) {
        summary_[word >> 6] |= std::uint64_t{1} << (word & 63);
      }
      words_[word] |= std::uint64_t{1} << (column & 63);
    }
  }
  /// 1 where the column is new, else 0.
  std::int64_t count_new(std::int32_t column) {
    std::uint64_t& word = words_[static_cast<std::size_t>(column >> 6)];
    const std::uint64_t before = word >> (column & 63);
    word |= std::uint64_t{1} << (column & 63);
    return static_cast<std::int64_t>(~before & 1);
  }
  void remove_word_of(std::int32_t column) { words_[static_cast<std::size_t>(column >> 6)] = 0; }
  void add_of_many(const ColumnBatch& batch) {
    std::uint64_t* const words = words_.data();
    for (std::int64_t k = 0; k < batch.count; ++k) {
      const std::int32_t column = batch.columns[static_cast<std::size_t>(k)];
      words[column >> 6] |= std::uint64_t{1} << (column & 63);
    }
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
  /// How many columns the set has; empties it.
  template <typename Places>
  std::int64_t take_count() {
    return Places::take(words_.data(), static_cast<std::int64_t>(words_.size()));
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

}  // namespace lacewing::kernels
