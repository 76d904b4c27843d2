// Products whose operands are read in place and without a scale: SpMM and SDDMM are these. Which operands are indexed
// is settled before the loops, so that a term costs its loads and multiply-adds. Compiled once for each ISA level.
#include "common/deal.h"
#include "kernels/cpu/product_isa.h"
#include "kernels/cpu/source.h"
#include "kernels/cpu/sum_blocks.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// What the loops below share: the operands of one n.
template <typename T, typename Index>
struct Operands {
  TermsView<Index> terms;
  const T* x;
  const T* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int64_t z_stride;
  std::int64_t extent;
  std::int64_t count;  ///< of all terms

  Operands(const ProductArgs& args, std::int64_t n)
      : terms(args.terms),
        x(static_cast<const T*>(args.x.data) + n * args.x.stride_n),
        y(static_cast<const T*>(args.y.data)),
        x_stride(args.x.stride_m),
        y_stride(args.y.stride_m),
        z_stride(args.z.stride_m),
        extent(args.extent_a),
        count(args.terms.terms) {
    if (y != nullptr) {
      y += n * args.y.stride_n;
    }
  }

  /// Whether each of so many rows from `row` on has one term.
  template <int Rows>
  LACEWING_INLINE bool has_single_terms(std::int64_t row) const {
    if (terms.segments == nullptr) {
      return true;
    }
    const Index* const at = terms.segments + row;
    bool single = true;
    for (int k = 1; k <= Rows; ++k) {
      single &= at[k] == at[0] + static_cast<Index>(k);
    }
    return single;
  }

  /// Rows of x and y; Unit: they lie one element apart.
  template <bool Indexed, bool Unit = false>
  LACEWING_INLINE const T* first(std::int64_t term) const {
    return x + (Indexed ? static_cast<std::int64_t>(terms.index1[term]) : term) * (Unit ? 1 : x_stride);
  }
  template <bool Indexed, bool Unit = false>
  LACEWING_INLINE const T* second(std::int64_t term) const {
    return y + (Indexed ? static_cast<std::int64_t>(terms.index2[term]) : term) * (Unit ? 1 : y_stride);
  }
};

/// Whether an operand's rows are scattered over more memory than is near.
template <typename T>
bool is_far(const Operand& operand, std::int64_t extent) {
  return operand.rows * extent * static_cast<std::int64_t>(sizeof(T)) > kNearBytes;
}

/// Keeps a sum out of vectors: the compiler would bring its terms together one by one and add them one by one.
template <typename T>
LACEWING_INLINE void keep_alone([[maybe_unused]] T& sum) {
#if defined(__x86_64__)
  if constexpr (std::is_floating_point_v<T>) {
    asm("" : "+x"(sum));
  }
#endif
}

/// Single numbers: z[row] = sum of x[first] * y[second], of which x alone, or y, may be there or indexed.
template <typename T, typename Index, bool First, bool Scaled, bool Second, bool Far, bool Unit>
struct Numbers {
  static constexpr std::int64_t kNumbersAhead = 32;
  static constexpr std::int64_t kProducts = 1024;
  static constexpr std::int64_t kFew = 8;
  static constexpr std::int64_t kFewRows = 256;
  static constexpr bool kMasked = Scaled && kVectorRegisters == 32 && std::is_floating_point_v<T>;
  const Operands<T, Index>& o;

  LACEWING_INLINE T at(std::int64_t term) const {
    if constexpr (Scaled) {
      return *o.template first<First, Unit>(term) * *o.template second<Second, Unit>(term);
    } else {
      return *o.template first<First, Unit>(term);
    }
  }

  LACEWING_INLINE T row(std::int64_t term, std::int64_t end) const {
    return end - term <= kSumBlock ? block(term, end) : long_row(term, end);
  }

  [[gnu::noinline]] T long_row(std::int64_t term, std::int64_t end) const {
    LongSum<T> sum;
    for (; term < end; term += kSumBlock) {
      sum += block(term, std::min(end, term + kSumBlock));
    }
    return sum.value();
  }

  /// Four sums in turn, so that a term does not wait for the one before it.
  LACEWING_INLINE T block(std::int64_t term, std::int64_t end) const {
    T acc[4] = {};
    for (; term + 4 <= end; term += 4) {
      if constexpr (Far) {
        if (term + kNumbersAhead + 4 <= o.count) {
          for (int k = 0; k < 4; ++k) {
            __builtin_prefetch(o.template second<Second, Unit>(term + kNumbersAhead + k));
          }
        }
      }
      for (int k = 0; k < 4; ++k) {
        acc[k] += at(term + k);
      }
    }
    if (term + 2 <= end) {
      acc[0] += at(term);
      acc[1] += at(term + 1);
      term += 2;
    }
    if (term < end) {
      acc[2] += at(term);
    }
    return (acc[0] + acc[1]) + (acc[2] + acc[3]);
  }

  /// So many terms, one after the other.
  template <int Terms>
  LACEWING_INLINE T few(std::int64_t term) const {
    T sum{};
#pragma GCC unroll 8
    for (int k = 0; k < Terms; ++k) {
      sum += at(term + k);
      keep_alone(sum);
    }
    return sum;
  }

  /// Rows from `begin` on of few terms, one sum each: the processor works on the next rows meanwhile. Returns where
  /// they end.
  [[gnu::noinline]] std::int64_t few_terms(std::int64_t begin, std::int64_t end, T* z) const {
    const Operands<T, Index> operands = o;  // to be in registers
    const Numbers near{operands};
    const Index* const segments = operands.terms.segments;
    std::int64_t term = segments[begin];
    for (std::int64_t i = begin; i < end; ++i, z += operands.z_stride) {
      const std::int64_t stop = segments[i + 1];
      switch (stop - term) {
        case 0: *z = T{}; break;
        case 1: *z = near.template few<1>(term); break;
        case 2: *z = near.template few<2>(term); break;
        case 3: *z = near.template few<3>(term); break;
        case 4: *z = near.template few<4>(term); break;
        case 5: *z = near.template few<5>(term); break;
        case 6: *z = near.template few<6>(term); break;
        case 7: *z = near.template few<7>(term); break;
        case 8: *z = near.template few<8>(term); break;
        default: return i;
      }
      term = stop;
    }
    return end;
  }

  /// As many rows as a vector has lanes: first all products, then a masked vector of each row, then the sums of all
  /// lanes together. Nowhere is the end of a row a branch: guessed wrong, it would cost more than the row's terms.
  [[gnu::noinline]] void uneven_rows(std::int64_t row, T* z) const {
    using Lane = Simd<T>;
    const Index* const ends = o.terms.segments + row;
    const std::int64_t start = ends[0];
    const std::int64_t count = ends[Lane::lanes] - start;
    T products[kProducts];
    for (std::int64_t t = 0; t < count; ++t) {
      if constexpr (Far) {
        __builtin_prefetch(o.template second<Second, Unit>(std::min(start + t + kNumbersAhead, o.count - 1)));
      }
      products[t] = at(start + t);
    }
    typename Lane::Vec sums[Lane::lanes] = {};
    std::int64_t longest = 1;
    for (std::int64_t from = 0; from < longest; from += Lane::lanes) {
#pragma GCC unroll 16
      for (int k = 0; k < Lane::lanes; ++k) {
        const std::int64_t terms = ends[k + 1] - ends[k];
        longest = std::max(longest, terms);
        sums[k] += Lane::load_part(products + (ends[k] - start) + from,
                                   static_cast<int>(std::clamp<std::int64_t>(terms - from, 0, Lane::lanes)));
      }
    }
    const auto each = sum_each<T, Lane::lanes / 2>(sums);
    for (int k = 0; k < Lane::lanes; ++k) {
      z[k * o.z_stride] = each[k];
    }
  }

  /// Whether the lengths of rows [begin, end) change from row to row, by a look at the first of them.
  LACEWING_INLINE bool are_uneven(std::int64_t begin, std::int64_t end) const {
    constexpr std::int64_t kLooks = 32;
    if (o.terms.segments == nullptr || end - begin <= kLooks) {
      return false;
    }
    const Index* const at = o.terms.segments + begin;
    int changes = 0;
    for (int k = 1; k <= kLooks; ++k) {
      changes += at[k + 1] - at[k] != at[k] - at[k - 1] ? 1 : 0;
    }
    return 2 * changes > kLooks;
  }

  /// Rows from `begin` on in groups, where their lengths change; returns where the others begin.
  [[gnu::noinline]] std::int64_t run_uneven(std::int64_t begin, std::int64_t end, T* z) const {
    constexpr int lanes = Simd<T>::lanes;
    std::int64_t i = begin;
    if (are_uneven(begin, end)) {
      for (; i + lanes <= end; i += lanes, z += lanes * o.z_stride) {
        const Index* const ends = o.terms.segments + i;
        if (ends[lanes] - ends[0] <= kProducts) {
          uneven_rows(i, z);
          continue;
        }
        for (int k = 0; k < lanes; ++k) {
          z[k * o.z_stride] = row(ends[k], ends[k + 1]);
        }
      }
    }
    return i;
  }

  void run(std::int64_t begin, std::int64_t end, T* z) const {
    constexpr int kRows = 16;
    std::int64_t i = begin;
    if constexpr (kMasked) {
      i = run_uneven(begin, end, z);
      z += (i - begin) * o.z_stride;
    }
    while (i < end) {
      std::int64_t term = o.terms.begin(i);
      if (i + kRows <= end && o.template has_single_terms<kRows>(i)) {
        for (const std::int64_t stop = term + kRows; term < stop; ++term, ++i, z += o.z_stride) {
          *z = at(term);
        }
        continue;
      }
      if (!Far && o.terms.segments != nullptr && o.terms.end(i) - term <= kFew) {
        const std::int64_t stop = few_terms(i, std::min(i + kFewRows, end), z);
        z += (stop - i) * o.z_stride;
        i = stop;
        continue;
      }
      for (const std::int64_t last = std::min(i + kRows, end); i < last; ++i, z += o.z_stride) {
        const std::int64_t stop = o.terms.end(i);
        *z = row(term, stop);
        term = stop;
      }
    }
  }
};

template <typename T, typename Index>
void run_numbers(const Operands<T, Index>& o, bool far, std::int64_t begin, std::int64_t end, T* z) {
  const auto with = [&](auto first, auto scaled, auto second, auto ahead, auto unit) {
    Numbers<T, Index, first, scaled, second, ahead, unit>{o}.run(begin, end, z);
  };
  constexpr std::true_type yes;
  constexpr std::false_type no;
  const bool indexed = o.terms.index1 != nullptr;
  if (o.y == nullptr) {
    return indexed ? with(yes, no, no, no, no) : with(no, no, no, no, no);
  }
  const bool unit = indexed && o.x_stride == 1 && o.y_stride == 1;
  if (o.terms.index2 == nullptr) {
    return unit ? with(yes, yes, no, no, yes) : indexed ? with(yes, yes, no, no, no) : with(no, yes, no, no, no);
  }
  if (far) {
    return unit ? with(yes, yes, yes, yes, yes) : indexed ? with(yes, yes, yes, yes, no) : with(no, yes, yes, yes, no);
  }
  return unit ? with(yes, yes, yes, no, yes) : indexed ? with(yes, yes, yes, no, no) : with(no, yes, yes, no, no);
}

/// Rows of numbers: z[row] = sum of y[second] * x[first], y being single numbers.
template <typename T, typename Index, bool Second, bool Far>
struct Rows {
  using Lane = Simd<T>;
  using Vec = typename Lane::Vec;
  const Operands<T, Index>& o;

  template <int Vectors, bool Whole>
  LACEWING_INLINE void block(std::int64_t term, std::int64_t end, std::int64_t a, int count, T* z) const {
    Vec acc[Vectors] = {};
    const auto add = [&](std::int64_t t) LACEWING_INLINE_LAMBDA {
      const T factor = *o.template second<Second>(t);
      const T* const x = o.template first<true>(t) + a;
      for (int v = 0; v < Vectors; ++v) {
        acc[v] += factor * load_vec<Whole>(x + v * Lane::lanes, count);
      }
    };
    SumBlocks<Vec[Vectors]> blocks;
    blocks.add(term, end, acc, [&](std::int64_t t, std::int64_t last) LACEWING_INLINE_LAMBDA {
      if constexpr (Far) {
        for (const std::int64_t stop = std::min(last, o.count - kAhead); t < stop; ++t) {
          fetch<Vectors>(o.template first<true>(t + kAhead) + a);
          if constexpr (Second) {
            __builtin_prefetch(o.template second<true>(t + kAhead));
          }
          add(t);
        }
      }
      for (; t < last; ++t) {
        add(t);
      }
    });
    blocks.finish(acc);
    for (int v = 0; v < Vectors; ++v) {
      store_vec<Whole>(z + a + v * Lane::lanes, acc[v], count);
    }
  }

  void run(std::int64_t begin, std::int64_t end, T* z) const {
    for (std::int64_t i = begin; i < end; ++i, z += o.z_stride) {
      const std::int64_t term = o.terms.begin(i);
      const std::int64_t stop = o.terms.end(i);
      std::int64_t a = 0;
      for (; a + 8 * Lane::lanes <= o.extent; a += 8 * Lane::lanes) {
        block<8, true>(term, stop, a, 0, z);
      }
      for (; a + 4 * Lane::lanes <= o.extent; a += 4 * Lane::lanes) {
        block<4, true>(term, stop, a, 0, z);
      }
      for (; a + Lane::lanes <= o.extent; a += Lane::lanes) {
        block<1, true>(term, stop, a, 0, z);
      }
      if (a < o.extent) {
        block<1, false>(term, stop, a, static_cast<int>(o.extent - a), z);
      }
    }
  }
};

template <typename T, typename Index>
void run_rows(const Operands<T, Index>& o, bool far, std::int64_t begin, std::int64_t end, T* z) {
  const auto with = [&](auto second, auto ahead) { Rows<T, Index, second, ahead>{o}.run(begin, end, z); };
  constexpr std::true_type yes;
  constexpr std::false_type no;
  if (o.terms.index2 != nullptr) {
    return far ? with(yes, yes) : with(yes, no);
  }
  return far ? with(no, yes) : with(no, no);
}

/// z[row] = sum of the dot products of x[first] and y[second]; where rows have one term each, as many of them at a time
/// as a vector has lanes.
template <typename T, typename Index>
struct Dots {
  using Lane = Simd<T>;
  using Vec = typename Lane::Vec;
  static constexpr std::int64_t kDotsAhead = 16;
  const Operands<T, Index>& o;
  bool far;

  /// Vectors of a dot product.
  std::int64_t vectors() const { return (o.extent + Lane::lanes - 1) / Lane::lanes; }

  /// A sum of more vectors than a block has.
  [[gnu::noinline]] Vec long_row(std::int64_t term, std::int64_t end) const {
    Vec acc{};
    SumBlocks<Vec> blocks;
    for (; term < end; ++term) {
      const T* const x = o.template first<true>(term);
      const T* const y = o.template second<true>(term);
      blocks.add(0, vectors(), acc, [&](std::int64_t first, std::int64_t last) LACEWING_INLINE_LAMBDA {
        for (std::int64_t a = first * Lane::lanes; a < last * Lane::lanes; a += Lane::lanes) {
          const int count = static_cast<int>(std::min<std::int64_t>(o.extent - a, Lane::lanes));
          acc += count == Lane::lanes ? Lane::load(x + a) * Lane::load(y + a)
                                      : Lane::load_part(x + a, count) * Lane::load_part(y + a, count);
        }
      });
    }
    blocks.finish(acc);
    return acc;
  }

  LACEWING_INLINE void add(std::int64_t term, Vec& acc) const {
    const T* const x = o.template first<true>(term);
    const T* const y = o.template second<true>(term);
    std::int64_t a = 0;
    for (; a + Lane::lanes <= o.extent; a += Lane::lanes) {
      acc += Lane::load(x + a) * Lane::load(y + a);
    }
    if (a < o.extent) {
      const int count = static_cast<int>(o.extent - a);
      acc += Lane::load_part(x + a, count) * Lane::load_part(y + a, count);
    }
  }

  LACEWING_INLINE void fetch_rows(std::int64_t term) const {
    for (const std::int64_t end = std::min(term + Lane::lanes, o.count); term < end; ++term) {
      const T* const x = o.template first<true>(term);
      for (std::int64_t a = 0; a < o.extent; a += Lane::lanes) {
        fetch<1>(x + a);
      }
    }
  }

  void run(std::int64_t begin, std::int64_t end, T* z) const {
    std::int64_t i = begin;
    while (i < end) {
      if (i + Lane::lanes <= end && vectors() <= kSumBlock && o.template has_single_terms<Lane::lanes>(i)) {
        const std::int64_t term = o.terms.begin(i);
        if (far) {
          fetch_rows(term + kDotsAhead);
        }
        Vec acc[Lane::lanes] = {};
#pragma GCC unroll 16
        for (int k = 0; k < Lane::lanes; ++k) {
          add(term + k, acc[k]);
        }
        Lane::store(z, sum_each<T, Lane::lanes / 2>(acc));
        i += Lane::lanes;
        z += Lane::lanes;
        continue;
      }
      for (const std::int64_t last = std::min(i + Lane::lanes, end); i < last; ++i, ++z) {
        std::int64_t term = o.terms.begin(i);
        const std::int64_t stop = o.terms.end(i);
        Vec acc{};
        if ((stop - term) * vectors() > kSumBlock) {
          acc = long_row(term, stop);
        } else {
          for (; term < stop; ++term) {
            add(term, acc);
          }
        }
        *z = Lane::sum(acc);
      }
    }
  }
};

}  // namespace

void gathered(const ProductArgs& args, const Schedule& schedule, const CpuExecutor& executor) {
  visit_types(args.type, args.terms.wide, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    using Index = decltype(index);
    if constexpr (std::is_same_v<T, accumulate_t<T>>) {
      const TermsView<Index> terms(args.terms);
      const bool x_far = is_far<T>(args.x, args.extent_a);
      const std::int64_t shares = std::clamp<std::int64_t>(kTasks / std::max<std::int64_t>(args.batch, 1), 1,
                                                           std::max<std::int64_t>(terms.rows, 1));
      const auto run = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t task = begin; task < end; ++task) {
          const Operands<T, Index> o(args, task / shares);
          const std::int64_t first = row_boundary(terms, task % shares, shares);
          const std::int64_t last = row_boundary(terms, task % shares + 1, shares);
          T* const z = static_cast<T*>(args.output()) + task / shares * args.z.stride_n + first * args.z.stride_m;
          if (args.extent_a == 1) {
            run_numbers(o, is_far<T>(args.y, 1), first, last, z);
          } else if constexpr (std::is_floating_point_v<T>) {
            args.pattern == Pattern::inner ? Dots<T, Index>{o, x_far}.run(first, last, z)
                                           : run_rows(o, x_far, first, last, z);
          }
        }
      };
      deal_tasks(executor, args.batch * shares, schedule.threads(executor),
                 [&](std::int64_t) -> const auto& { return run; });
    }
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
