// One output row of each pattern, with sums in registers over all of its terms (and over n where n is summed).
#pragma once

#include "kernels/cpu/source.h"
#include "kernels/cpu/sum_blocks.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

/// Vectors of one block of channels that are summed at a time.
inline constexpr int kBlockVectors = 4;
/// Rows of the register tile of an outer product, beside kBlockVectors columns of vectors.
inline constexpr int kTileRows = kVectorRegisters == 32 ? 6 : 2;
/// Batch entries that share the reading of one matrix.
inline constexpr int kBatchRows = kVectorRegisters == 32 ? 5 : 2;

/// Where a row's sums go: z in its own type, or a partial sum in the accumulate type.
template <typename T>
struct Target {
  using Acc = accumulate_t<T>;
  T* z;
  Acc* partial;  ///< null: write z

  template <bool Whole>
  LACEWING_INLINE void put(std::int64_t offset, typename Simd<Acc>::Vec v, int count) const {
    if (partial != nullptr) {
      store_vec<Whole>(partial + offset, v, count);
    } else if constexpr (std::is_same_v<T, Acc>) {
      store_vec<Whole>(z + offset, v, count);
    } else {
      Acc lanes[Simd<Acc>::lanes];
      Simd<Acc>::store(lanes, v);
      narrow_row<T>(lanes, z + offset, Whole ? Simd<Acc>::lanes : count);
    }
  }
  LACEWING_INLINE void put_one(std::int64_t offset, Acc value) const {
    if (partial != nullptr) {
      partial[offset] = value;
    } else {
      z[offset] = narrow<T>(value);
    }
  }
};

/// Calls f(offset, vectors, whole, count) for blocks that cover [0, extent): of kBlockVectors whole vectors, then of
/// one, then of the rest; vectors and whole are compile-time constants.
template <typename Acc, typename F>
LACEWING_INLINE void for_blocks(std::int64_t extent, F&& f) {
  constexpr std::int64_t lanes = Simd<Acc>::lanes;
  std::int64_t offset = 0;
  for (; offset + kBlockVectors * lanes <= extent; offset += kBlockVectors * lanes) {
    f(offset, std::integral_constant<int, kBlockVectors>{}, std::true_type{}, static_cast<int>(lanes));
  }
  for (; offset + lanes <= extent; offset += lanes) {
    f(offset, std::integral_constant<int, 1>{}, std::true_type{}, static_cast<int>(lanes));
  }
  if (offset < extent) {
    f(offset, std::integral_constant<int, 1>{}, std::false_type{}, static_cast<int>(extent - offset));
  }
}

/// The state of one thread's share of a product.
template <typename T, typename Index>
class ProductRows {
 public:
  using Acc = accumulate_t<T>;
  using Lane = Simd<Acc>;
  using Vec = typename Lane::Vec;

  ProductRows(const ProductArgs& args, const Schedule& schedule, Acc* scratch)
      : args_(args),
        terms_(args.terms),
        x_(args.x, schedule.x, 0, args.x.stride_a, scratch),
        y_(args.y, schedule.y, args.y.stride_a,
           args.pattern == Pattern::outer || args.pattern == Pattern::vecmat ? args.y.stride_b : args.y.stride_a,
           scratch + schedule.x.scratch),
        fetch_ahead_(x_.direct() && terms_.index1 != nullptr &&
                     args.x.rows * args.extent_a * static_cast<std::int64_t>(sizeof(T)) > kNearBytes) {}

  void start(std::int64_t n) {
    x_.start(n);
    y_.start(n);
  }

  /// Whether several n can share one reading of y (see vecmat_batch).
  bool batches() const {
    return args_.pattern == Pattern::vecmat && !args_.accumulate && args_.y.stride_n == 0 && !y_.transposed() &&
           x_.direct() && std::is_same_v<T, Acc>;
  }

  /// The sums of `row` over n in [n_begin, n_end).
  void run(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    switch (args_.pattern) {
      case Pattern::mul: return mul(n_begin, n_end, row, target);
      case Pattern::outer: return outer(n_begin, n_end, row, target);
      case Pattern::inner: return inner(n_begin, n_end, row, target);
      case Pattern::vecsca: return vecsca(n_begin, n_end, row, target);
      case Pattern::vecmat:
        return y_.transposed() ? vecmat_transposed(n_begin, n_end, row, target) : vecmat(n_begin, n_end, row, target);
    }
  }

  /// `row` for each n in [n, n + count) by itself, count <= kBatchRows; targets lie z_stride apart.
  void run_batch(std::int64_t n, int count, std::int64_t row, T* z, std::int64_t z_stride) {
    if (count == kBatchRows) {
      return vecmat_batch(n, row, z, z_stride);
    }
    for (int i = 0; i < count; ++i) {
      vecmat(n + i, n + i + 1, row, {z + i * z_stride, nullptr});
    }
  }

 private:
  /// Calls f(n, term, scale), which adds to `sums`, for the terms of a row.
  template <typename Sums, typename F>
  LACEWING_INLINE void for_terms(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Sums& sums, F&& f) const {
    const std::int64_t begin = terms_.begin(row);
    const std::int64_t end = terms_.end(row);
    SumBlocks<Sums> blocks;
    for (std::int64_t n = n_begin; n < n_end; ++n) {
      blocks.add(begin, end, sums, [&](std::int64_t first, std::int64_t last) LACEWING_INLINE_LAMBDA {
        for (std::int64_t term = first; term < last; ++term) {
          f(n, term, args_.scale == nullptr ? one<Acc>() : scale_at<T>(args_, terms_.entry(term)));
        }
      });
    }
    blocks.finish(sums);
  }

  void mul(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    for_blocks<Acc>(args_.extent_a, [&](std::int64_t a, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      Vec acc[vectors];
      zero(acc);
      for_terms(n_begin, n_end, row, acc, [&](std::int64_t n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
        const Acc* x = x_.block(n, terms_.first(term)) + a;
        const Acc* y = y_.block(n, terms_.second(term)) + a;
        for (int v = 0; v < vectors; ++v) {
          acc[v] += scale * (load_vec<whole>(x + v * Lane::lanes, count) * load_vec<whole>(y + v * Lane::lanes, count));
        }
      });
      store<whole>(acc, a, count, target);
    });
  }

  void vecsca(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    for_blocks<Acc>(args_.extent_a, [&](std::int64_t a, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      Vec acc[vectors];
      zero(acc);
      for_terms(n_begin, n_end, row, acc, [&](std::int64_t n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
        const Acc* x = x_.block(n, terms_.first(term)) + a;
        if (fetch_ahead_ && term + kAhead < args_.terms.terms) {
          fetch<vectors>(x_.address(n, terms_.first(term + kAhead)) + a);
        }
        const Acc factor = scale * y_.scalar(n, terms_.second(term));
        for (int v = 0; v < vectors; ++v) {
          acc[v] += factor * load_vec<whole>(x + v * Lane::lanes, count);
        }
      });
      store<whole>(acc, a, count, target);
    });
  }

  void inner(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    LongSum<Acc> total;
    for_blocks<Acc>(args_.extent_a, [&](std::int64_t a, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      Vec acc[vectors];
      zero(acc);
      for_terms(n_begin, n_end, row, acc, [&](std::int64_t n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
        const Acc* x = x_.block(n, terms_.first(term)) + a;
        const Acc* y = y_.block(n, terms_.second(term)) + a;
        if (fetch_ahead_ && term + kAhead < args_.terms.terms) {
          fetch<vectors>(x_.address(n, terms_.first(term + kAhead)) + a);
        }
        for (int v = 0; v < vectors; ++v) {
          acc[v] += scale * (load_vec<whole>(x + v * Lane::lanes, count) * load_vec<whole>(y + v * Lane::lanes, count));
        }
      });
      for (int v = 1; v < vectors; ++v) {
        acc[0] += acc[v];
      }
      total += Lane::sum(acc[0]);
    });
    target.put_one(0, total.value());
  }

  void outer(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    for_blocks<Acc>(args_.extent_b, [&](std::int64_t b, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      std::int64_t a = 0;
      for (; a + kTileRows <= args_.extent_a; a += kTileRows) {
        outer_tile<kTileRows, vectors, whole>(n_begin, n_end, row, a, b, count, target);
      }
      for (; a < args_.extent_a; ++a) {
        outer_tile<1, vectors, whole>(n_begin, n_end, row, a, b, count, target);
      }
    });
  }

  template <int Rows, int Vectors, bool Whole>
  void outer_tile(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, std::int64_t a, std::int64_t b, int count,
                  Target<T> target) {
    Vec acc[Rows][Vectors];
    for (auto& line : acc) {
      zero(line);
    }
    for_terms(n_begin, n_end, row, acc, [&](std::int64_t n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
      const Acc* x = x_.block(n, terms_.first(term)) + a;
      const Acc* y = y_.block(n, terms_.second(term)) + b;
      Vec scaled[Vectors];
      for (int v = 0; v < Vectors; ++v) {
        scaled[v] = scale * load_vec<Whole>(y + v * Lane::lanes, count);
      }
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < Vectors; ++v) {
          acc[i][v] += x[i] * scaled[v];
        }
      }
    });
    for (int i = 0; i < Rows; ++i) {
      store<Whole>(acc[i], (a + i) * args_.extent_b + b, count, target);
    }
  }

  void vecmat(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    const std::int64_t leading = y_.leading();
    for_blocks<Acc>(args_.extent_b, [&](std::int64_t b, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      Vec acc[vectors];
      zero(acc);
      for_terms(n_begin, n_end, row, acc, [&](std::int64_t n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
        const Acc* x = x_.block(n, terms_.first(term));
        const Acc* y = y_.block(n, terms_.second(term)) + b;
        Vec sum[vectors];
        zero(sum);
        for (std::int64_t a = 0; a < args_.extent_a; ++a, y += leading) {
          for (int v = 0; v < vectors; ++v) {
            sum[v] += x[a] * load_vec<whole>(y + v * Lane::lanes, count);
          }
        }
        for (int v = 0; v < vectors; ++v) {
          acc[v] += scale * sum[v];
        }
      });
      store<whole>(acc, b, count, target);
    });
  }

  /// The matrix is unit-stride in the summed index a: sums of lanes over a, added across the lanes once at the end.
  void vecmat_transposed(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, Target<T> target) {
    constexpr int kColumns = 8;
    std::int64_t b = 0;
    for (; b + kColumns <= args_.extent_b; b += kColumns) {
      transposed_columns<kColumns>(n_begin, n_end, row, b, target);
    }
    for (; b < args_.extent_b; ++b) {
      transposed_columns<1>(n_begin, n_end, row, b, target);
    }
  }

  template <int Columns>
  void transposed_columns(std::int64_t n_begin, std::int64_t n_end, std::int64_t row, std::int64_t b,
                          Target<T> target) {
    const std::int64_t leading = y_.leading();
    const std::int64_t extent = args_.extent_a;
    Vec acc[Columns];
    zero(acc);
    for_terms(n_begin, n_end, row, acc, [&](std::int64_t n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
      const Acc* x = x_.block(n, terms_.first(term));
      const Acc* y = y_.block(n, terms_.second(term)) + b * leading;
      std::int64_t a = 0;
      for (; a + Lane::lanes <= extent; a += Lane::lanes) {
        const Vec scaled = scale * Lane::load(x + a);
        for (int j = 0; j < Columns; ++j) {
          acc[j] += scaled * Lane::load(y + j * leading + a);
        }
      }
      if (a < extent) {
        const int count = static_cast<int>(extent - a);
        const Vec scaled = scale * Lane::load_part(x + a, count);
        for (int j = 0; j < Columns; ++j) {
          acc[j] += scaled * Lane::load_part(y + j * leading + a, count);
        }
      }
    });
    for (int j = 0; j < Columns; ++j) {
      target.put_one(b + j, Lane::sum(acc[j]));
    }
  }

  /// kBatchRows entries of the batch at once against one matrix that they share.
  void vecmat_batch(std::int64_t n, std::int64_t row, T* z, std::int64_t z_stride) {
    const std::int64_t leading = y_.leading();
    for_blocks<Acc>(args_.extent_b, [&](std::int64_t b, auto vectors, auto whole, int count) LACEWING_INLINE_LAMBDA {
      Vec acc[kBatchRows][vectors];
      for (auto& line : acc) {
        zero(line);
      }
      for_terms(n, n + 1, row, acc, [&](std::int64_t first_n, std::int64_t term, Acc scale) LACEWING_INLINE_LAMBDA {
        const Acc* x[kBatchRows];
        for (int i = 0; i < kBatchRows; ++i) {
          x[i] = x_.block(first_n + i, terms_.first(term));
        }
        const Acc* y = y_.block(first_n, terms_.second(term)) + b;
        for (std::int64_t a = 0; a < args_.extent_a; ++a, y += leading) {
          Vec scaled[vectors];
          for (int v = 0; v < vectors; ++v) {
            scaled[v] = scale * load_vec<whole>(y + v * Lane::lanes, count);
          }
          for (int i = 0; i < kBatchRows; ++i) {
            for (int v = 0; v < vectors; ++v) {
              acc[i][v] += x[i][a] * scaled[v];
            }
          }
        }
      });
      for (int i = 0; i < kBatchRows; ++i) {
        store<whole>(acc[i], b, count, Target<T>{z + i * z_stride, nullptr});
      }
    });
  }

  template <std::size_t Vectors>
  static LACEWING_INLINE void zero(Vec (&acc)[Vectors]) {
    for (auto& v : acc) {
      v = Lane::zero();
    }
  }

  template <bool Whole, std::size_t Vectors>
  static LACEWING_INLINE void store(const Vec (&acc)[Vectors], std::int64_t offset, int count, Target<T> target) {
    for (std::size_t v = 0; v < Vectors; ++v) {
      target.template put<Whole>(offset + static_cast<std::int64_t>(v) * Lane::lanes, acc[v], count);
    }
  }

  ProductArgs args_;
  TermsView<Index> terms_;
  Source<T> x_;
  Source<T> y_;
  bool fetch_ahead_;  ///< rows of x are scattered over more memory than is near
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
