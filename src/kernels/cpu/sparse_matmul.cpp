#include "kernels/sparse_matmul.h"

#include <algorithm>

#include "kernels/cpu/column_set.h"
#include "kernels/terms.h"
#include "kernels/wider.h"

namespace lacewing::kernels {
namespace {

constexpr std::int64_t kMostParts = 64;
constexpr std::int64_t kPartWork = 1 << 13;

/// to[k] = f(k) for k < count; beyond it, up to a whole step, where there is room.
template <typename To, typename F>
inline __attribute__((always_inline)) void fill_steps(To* to, std::int64_t count, bool room, const F& f) {
  if (room) {
    for (std::int64_t first = 0; first < count; first += kStep) {
      for (std::int64_t k = first; k < first + kStep; ++k) {
        to[k] = f(k);
      }
    }
  } else {
    for (std::int64_t k = 0; k < count; ++k) {
      to[k] = f(k);
    }
  }
}

/// Asks for the memory of `count` elements that will be written.
template <typename T>
void ask_for_writing(const T* to, std::int64_t count) {
  constexpr std::int64_t kInLine = 64 / sizeof(T);
  for (std::int64_t k = 0; k < count; k += kInLine) {
    __builtin_prefetch(to + k, 1);
  }
}

}  // namespace

/// Calls f(part, begin, end) on the rows of each part.
template <typename F>
void SparseMatmul::for_parts(const F& f) const {
  executor_.parallel_for(0, static_cast<std::int64_t>(cuts_.size()) - 1, 1,
                         [&](std::int64_t first, std::int64_t last) { f(first, last); });
}

/// Copies the columns of b that meet in row r into the batch, as often as they do, and by copy(t, u, count) what else
/// belongs to the entries u, u + 1, ... of b that entry t of a meets; ask_for(u) goes ahead of it. Calls f() whenever
/// the batch is full, and at the end.
template <typename AskFor, typename Copy, typename F>
void SparseMatmul::each_batch(std::int64_t r, ColumnBatch& batch, const AskFor& ask_for, const Copy& copy,
                              const F& f) const {
  constexpr std::int64_t kEntriesAhead = 6;
  const std::int32_t* const b_columns = b_columns_.data();
  batch.count = 0;
  for (std::int64_t t = a_.segments[r]; t < a_.segments[r + 1]; ++t) {
    if (t + kEntriesAhead < a_.entries) {
      const std::int64_t next = met_[static_cast<std::size_t>(t + kEntriesAhead)].begin;
      __builtin_prefetch(b_columns + next);
      ask_for(next);
    }
    const Span met = met_[static_cast<std::size_t>(t)];
    for (std::int64_t u = met.begin; u < met.end;) {
      if (batch.count == kBatch) {
        f();
        batch.count = 0;
      }
      const std::int64_t count = std::min(met.end - u, kBatch - batch.count);
      fill_steps(batch.columns.data() + batch.count, count, true,
                 [from = b_columns + u](std::int64_t k) { return from[k]; });
      copy(t, u, count);
      batch.count += count;
      u += count;
    }
  }
  f();
}

/// The columns alone.
template <typename F>
void SparseMatmul::each_columns(std::int64_t r, ColumnBatch& batch, const F& f) const {
  each_batch(r, batch, [](std::int64_t) {}, [](std::int64_t, std::int64_t, std::int64_t) {}, f);
}

/// With the products.
template <typename T, typename F>
void SparseMatmul::each_products(std::int64_t r, const T* a_values, const T* b_values, ProductBatch<wider_t<T>>& batch,
                                 const F& f) const {
  each_batch(
      r, batch, [&](std::int64_t u) { __builtin_prefetch(b_values + u); },
      [&](std::int64_t t, std::int64_t u, std::int64_t count) {
        fill_steps(batch.products.data() + batch.count, count, u + count + kStep <= b_.entries,
                   [left = converted<wider_t<T>>(widen(a_values[t])), from = b_values + u](std::int64_t k) {
                     return left * converted<wider_t<T>>(widen(from[k]));
                   });
      },
      f);
}

SparseMatmul::SparseMatmul(const RowsView& a, const RowsView& b, std::int64_t shared, std::int64_t columns,
                           const CpuExecutor& executor)
    : a_(a),
      b_(b),
      columns_(columns),
      executor_(executor),
      b_columns_(static_cast<std::size_t>(b.entries + kStep)),
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
    ColumnBatch batch;
    const auto each = [&batch](const auto& f) {
      for (std::int64_t k = 0; k < batch.count; ++k) {
        f(batch.columns[static_cast<std::size_t>(k)]);
      }
    };
    for (std::int64_t part = first; part < last; ++part) {
      std::int64_t count = 0;
      with_places([&](auto places) {
        for (std::int64_t r = cuts_[static_cast<std::size_t>(part)]; r < cuts_[static_cast<std::size_t>(part) + 1];
             ++r) {
          if (set.is_few(products_of(r), places.kWordsPerColumn)) {
            each_columns(r, batch, [&] { each([&](std::int32_t column) { count += set.count_new(column); }); });
            each_columns(r, batch, [&] { each([&](std::int32_t column) { set.remove_word_of(column); }); });
          } else {
            each_columns(r, batch, [&] { set.add_of_many(batch); });
            count += set.take_count<decltype(places)>();
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
  using Sum = wider_t<T>;
  for_parts([&](std::int64_t first, std::int64_t last) {
    ColumnSet set(columns_);
    ProductBatch<Sum> batch;
    const auto width = static_cast<std::size_t>(std::max<std::int64_t>(columns_, 0));
    std::vector<Sum> sums(width, Sum{});
    std::vector<std::int32_t> columns(width);
    for (std::int64_t part = first; part < last; ++part) {
      std::int64_t next = starts_[static_cast<std::size_t>(part)];
      for (std::int64_t r = cuts_[static_cast<std::size_t>(part)]; r < cuts_[static_cast<std::size_t>(part) + 1]; ++r) {
        const std::int64_t products = products_of(r);
        const std::int64_t base = a_.keys[r] * key_stride;
        const auto write_key = [&](std::int64_t at, std::int64_t column) {
          keys[at] = base + (column_keys == nullptr ? column : column_keys[column]);
        };
        const auto write_sum = [&](std::int64_t column) {
          Sum& sum = sums[static_cast<std::size_t>(column)];
          write_key(next, column);
          values[next++] = rounded<T>(sum);
          sum = Sum{};
        };
        const auto add_by_column = [&] {
          for (std::int64_t k = 0; k < batch.count; ++k) {
            sums[static_cast<std::size_t>(batch.columns[static_cast<std::size_t>(k)])] +=
                batch.products[static_cast<std::size_t>(k)];
          }
        };
        if (set.is_few(products)) {
          each_products(r, a_values, b_values, batch, [&] {
            add_by_column();
            set.add_of_few(batch);
          });
          set.take_few(write_sum);
        } else if (products >= columns_) {
          each_products(r, a_values, b_values, batch, [&] {
            add_by_column();
            set.add_of_many(batch);
          });
          set.take_many(write_sum);
        } else {
          const bool at_once = products <= kBatch;
          if (at_once) {
            ask_for_writing(keys + next, products);
            ask_for_writing(values + next, products);
            each_products(r, a_values, b_values, batch, [&] { set.add_of_many(batch); });
          } else {
            each_columns(r, batch, [&] { set.add_of_many(batch); });
          }
          with_places([&](auto places) {
            const std::int64_t count = set.place<decltype(places)>();
            const auto to = set.places(sums.data(), columns.data());
            if (at_once) {
              places.add(batch, to);
            } else {
              each_products(r, a_values, b_values, batch, [&] { places.add(batch, to); });
            }
            for (std::int64_t k = 0; k < count; ++k) {
              write_key(next + k, columns[static_cast<std::size_t>(k)]);
            }
            for (std::int64_t k = 0; k < count; ++k) {
              values[next + k] = rounded<T>(sums[static_cast<std::size_t>(k)]);
            }
            std::fill_n(sums.begin(), count, Sum{});
            next += count;
          });
          set.clear();
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
