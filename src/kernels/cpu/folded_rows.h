// Small structures with matrices: terms that share a row of an operand are added up before they meet it.
//
//   outer:   z[r] = sum over runs of terms with one index1 of  x[index1] (x) (sum of scale * y[index2])
//   vecmat:  z[r] = sum over matrices of  (sum of scale * x[index1]) . y[index2]
//
// A Clebsch-Gordan product has two to three terms in each such sum, and the rest is a small dense matrix product.
#pragma once

#include "kernels/cpu/product_rows.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

template <typename T, typename Index>
class FoldedRows {
 public:
  using Acc = accumulate_t<T>;
  using Lane = Simd<Acc>;
  using Vec = typename Lane::Vec;

  FoldedRows(const ProductArgs& args, const Schedule& schedule, Acc* scratch)
      : args_(args),
        terms_(args.terms),
        x_(args.x, schedule.x, 0, args.x.stride_a, scratch),
        y_(args.y, schedule.y, args.y.stride_a, args.y.stride_b, scratch + schedule.x.scratch),
        folds_(scratch + schedule.x.scratch + schedule.y.scratch) {}

  /// All rows of one n; z is where row 0 lies.
  void run(std::int64_t n, T* z) {
    x_.start(n);
    y_.start(n);
    if (args_.pattern == Pattern::outer) {
      for (std::int64_t row = 0; row < terms_.rows; ++row) {
        outer(n, row, z + row * args_.z.stride_m);
      }
    } else {
      vecmat(n, z);
    }
  }

 private:
  Acc scale_of(std::int64_t term) const {
    return args_.scale == nullptr ? one<Acc>() : scale_at<T>(args_, terms_.entry(term));
  }

  /// to = scale * from, or to += scale * from.
  static LACEWING_INLINE void fold(Acc scale, const Acc* from, Acc* to, std::int64_t extent, bool first) {
    std::int64_t i = 0;
    for (; i + Lane::lanes <= extent; i += Lane::lanes) {
      const Vec value = scale * Lane::load(from + i);
      Lane::store(to + i, first ? value : Lane::load(to + i) + value);
    }
    for (; i < extent; ++i) {
      const Acc value = scale * from[i];
      to[i] = first ? value : to[i] + value;
    }
  }

  /// The runs of a row as pairs of vectors, at most kFolds at a time.
  void outer(std::int64_t n, std::int64_t row, T* z) {
    const bool by_second = args_.terms.mirrored;
    const std::int64_t extent = by_second ? args_.extent_a : args_.extent_b;
    const std::int64_t end = terms_.end(row);
    std::int64_t term = terms_.begin(row);
    Acc* sums = nullptr;
    if constexpr (std::is_same_v<T, Acc>) {
      sums = z;
    } else {
      sums = folds_ + kFolds * std::max(args_.extent_a, args_.extent_b);
    }
    bool first_chunk = true;
    do {
      int runs = 0;
      const Acc* xs[kFolds];
      const Acc* ys[kFolds];
      while (term < end && runs < kFolds) {
        const std::int64_t shared = by_second ? terms_.second(term) : terms_.first(term);
        Acc* const folded = folds_ + runs * extent;
        for (bool first = true; term < end && (by_second ? terms_.second(term) : terms_.first(term)) == shared;
             ++term, first = false) {
          const Acc* const other = by_second ? x_.block(n, terms_.first(term)) : y_.block(n, terms_.second(term));
          fold(scale_of(term), other, folded, extent, first);
        }
        xs[runs] = by_second ? folded : x_.block(n, shared);
        ys[runs] = by_second ? y_.block(n, shared) : folded;
        ++runs;
      }
      outer_tiles(xs, ys, runs, sums, first_chunk);
      first_chunk = false;
    } while (term < end);
    if constexpr (!std::is_same_v<T, Acc>) {
      narrow_row<T>(sums, z, args_.extent_a * args_.extent_b);
    }
  }

  void outer_tiles(const Acc* const* xs, const Acc* const* ys, int runs, Acc* z, bool first_chunk) {
    for_blocks<Acc>(args_.extent_b, [&](std::int64_t b, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      std::int64_t a = 0;
      for (; a + kTileRows <= args_.extent_a; a += kTileRows) {
        outer_tile<kTileRows, vectors, whole>(xs, ys, runs, a, b, count, z, first_chunk);
      }
      for (; a + 2 <= args_.extent_a; a += 2) {
        outer_tile<2, vectors, whole>(xs, ys, runs, a, b, count, z, first_chunk);
      }
      for (; a < args_.extent_a; ++a) {
        outer_tile<1, vectors, whole>(xs, ys, runs, a, b, count, z, first_chunk);
      }
    });
  }

  template <int Rows, int Vectors, bool Whole>
  void outer_tile(const Acc* const* xs, const Acc* const* ys, int runs, std::int64_t a, std::int64_t b, int count,
                  Acc* z, bool first_chunk) {
    Vec acc[Rows][Vectors];
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        acc[i][v] =
            first_chunk ? Lane::zero() : load_vec<Whole>(z + (a + i) * args_.extent_b + b + v * Lane::lanes, count);
      }
    }
    for (int r = 0; r < runs; ++r) {
      const Acc* const x = xs[r] + a;
      const Acc* const y = ys[r] + b;
      Vec right[Vectors];
      for (int v = 0; v < Vectors; ++v) {
        right[v] = load_vec<Whole>(y + v * Lane::lanes, count);
      }
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < Vectors; ++v) {
          acc[i][v] += x[i] * right[v];
        }
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        store_vec<Whole>(z + (a + i) * args_.extent_b + b + v * Lane::lanes, acc[i][v], count);
      }
    }
  }

  /// Matrix by matrix: the folded vectors of all rows that it serves, then one small matrix product.
  void vecmat(std::int64_t n, T* z) {
    const std::int64_t terms = args_.terms.terms;
    Acc* const sums = folds_ + kFolds * args_.extent_a;
    std::fill_n(sums, terms_.rows * args_.extent_b, Acc{});
    for (std::int64_t i = 0; i < terms;) {
      const std::int64_t matrix = terms_.second(terms_.by_index2[i]);
      const Acc* const y = y_.block(n, matrix);
      while (i < terms && terms_.second(terms_.by_index2[i]) == matrix) {
        int folds = 0;
        std::int64_t rows[kFolds];
        while (i < terms && folds < kFolds && terms_.second(terms_.by_index2[i]) == matrix) {
          const std::int64_t row = row_of(terms_.by_index2[i], folds == 0 ? 0 : rows[folds - 1]);
          const std::int64_t end = terms_.end(row);
          Acc* const folded = folds_ + folds * args_.extent_a;
          for (bool first = true;
               i < terms && terms_.by_index2[i] < end && terms_.second(terms_.by_index2[i]) == matrix;
               ++i, first = false) {
            const std::int64_t term = terms_.by_index2[i];
            fold(scale_of(term), x_.block(n, terms_.first(term)), folded, args_.extent_a, first);
          }
          rows[folds++] = row;
        }
        multiply(y, rows, folds, sums);
      }
    }
    for (std::int64_t row = 0; row < terms_.rows; ++row) {
      narrow_row<T>(sums + row * args_.extent_b, z + row * args_.z.stride_m, args_.extent_b);
    }
  }

  /// The row of a term, at or after `from`.
  std::int64_t row_of(std::int64_t term, std::int64_t from) const {
    while (terms_.end(from) <= term) {
      ++from;
    }
    return from;
  }

  /// sums[rows[f]] += folded[f] . y, for all folds.
  void multiply(const Acc* y, const std::int64_t* rows, int folds, Acc* sums) {
    for_blocks<Acc>(args_.extent_b, [&](std::int64_t b, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      int f = 0;
      for (; f + kBatchRows <= folds; f += kBatchRows) {
        multiply_tile<kBatchRows, vectors, whole>(y + b, rows + f, folds_ + f * args_.extent_a, b, count, sums);
      }
      for (; f + 2 <= folds; f += 2) {
        multiply_tile<2, vectors, whole>(y + b, rows + f, folds_ + f * args_.extent_a, b, count, sums);
      }
      for (; f < folds; ++f) {
        multiply_tile<1, vectors, whole>(y + b, rows + f, folds_ + f * args_.extent_a, b, count, sums);
      }
    });
  }

  template <int Rows, int Vectors, bool Whole>
  void multiply_tile(const Acc* y, const std::int64_t* rows, const Acc* folded, std::int64_t b, int count, Acc* sums) {
    const std::int64_t leading = y_.leading();
    Vec acc[Rows][Vectors];
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        acc[i][v] = load_vec<Whole>(sums + rows[i] * args_.extent_b + b + v * Lane::lanes, count);
      }
    }
    for (std::int64_t a = 0; a < args_.extent_a; ++a, y += leading) {
      Vec right[Vectors];
      for (int v = 0; v < Vectors; ++v) {
        right[v] = load_vec<Whole>(y + v * Lane::lanes, count);
      }
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < Vectors; ++v) {
          acc[i][v] += folded[i * args_.extent_a + a] * right[v];
        }
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        store_vec<Whole>(sums + rows[i] * args_.extent_b + b + v * Lane::lanes, acc[i][v], count);
      }
    }
  }

  ProductArgs args_;
  TermsView<Index> terms_;
  Source<T> x_;
  Source<T> y_;
  Acc* folds_;
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
