#include "structure/plan_builder.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/terms.h"
#include "structure/term_sort.h"

namespace lacewing::structure {
namespace {

/// Which of the arrays of a view are the identity, and so are left out.
template <typename Index>
std::int64_t canonical_flags(const TermSort<Index>& terms, const Roles& roles, std::int64_t rows) {
  constexpr std::int64_t all =
      PlanMeta::has_segments | PlanMeta::has_index1 | PlanMeta::has_index2 | PlanMeta::has_order;
  std::vector<std::int64_t> parts(static_cast<std::size_t>(terms.parts()), 0);
  terms.for_runs([&](std::int64_t part, std::int64_t begin, const Term<Index>* run, std::int64_t length) {
    std::int64_t& flags = parts[static_cast<std::size_t>(part)];
    for (std::int64_t i = 0; i < length && flags != all; ++i) {
      const std::int64_t place = begin + i;
      flags |= static_cast<std::int64_t>(run[i].key[roles.row] != place) * PlanMeta::has_segments;
      flags |= static_cast<std::int64_t>(run[i].key[roles.index1] != place) * PlanMeta::has_index1;
      flags |= static_cast<std::int64_t>(run[i].key[roles.index2] != place) * PlanMeta::has_index2;
      flags |= static_cast<std::int64_t>(run[i].entry != place) * PlanMeta::has_order;
    }
    return flags != all;
  });
  std::int64_t flags = rows == terms.count() ? 0 : PlanMeta::has_segments;
  for (const std::int64_t part : parts) {
    flags |= part;
  }
  return flags;
}

/// Where a part of the sorted terms begins, and its first and last row; no rows where the part is empty.
struct PartRows {
  std::int64_t begin = 0;
  std::int64_t first = -1;
  std::int64_t last = -1;
};

/// Fills the arrays that the flags name from terms that are sorted by row.
template <typename Index>
void fill(const TermSort<Index>& terms, const Roles& roles, const PlanMeta& meta, void* array) {
  const kernels::Terms to = terms_of(meta, array);
  auto* const segments = static_cast<Index*>(const_cast<void*>(to.segments));
  auto* const index1 = static_cast<Index*>(const_cast<void*>(to.index1));
  auto* const index2 = static_cast<Index*>(const_cast<void*>(to.index2));
  auto* const order = static_cast<Index*>(const_cast<void*>(to.order));
  std::vector<PartRows> parts(static_cast<std::size_t>(terms.parts()));
  terms.for_runs([&](std::int64_t part, std::int64_t begin, const Term<Index>* run, std::int64_t length) {
    const auto copy = [&](Index* column, auto&& of) {
      for (std::int64_t i = 0; column != nullptr && i < length; ++i) {
        column[begin + i] = of(run[i]);
      }
    };
    copy(index1, [&](const Term<Index>& term) { return term.key[roles.index1]; });
    copy(index2, [&](const Term<Index>& term) { return term.key[roles.index2]; });
    copy(order, [&](const Term<Index>& term) { return term.entry; });
    if (segments == nullptr) {
      return true;
    }
    PartRows& rows = parts[static_cast<std::size_t>(part)];
    if (rows.first < 0) {
      rows = {begin, run[0].key[roles.row], run[0].key[roles.row]};
    }
    for (std::int64_t i = 0; i < length; ++i) {
      // A term whose row is new starts every row after its predecessor's, up to its own.
      while (rows.last < static_cast<std::int64_t>(run[i].key[roles.row])) {
        segments[++rows.last] = static_cast<Index>(begin + i);
      }
    }
    return true;
  });
  if (segments == nullptr) {
    return;
  }
  std::int64_t last = -1;
  for (const PartRows& rows : parts) {
    while (last < rows.first) {
      segments[++last] = static_cast<Index>(rows.begin);
    }
    last = std::max(last, rows.last);
  }
  std::fill(segments + last + 1, segments + meta.rows + 1, static_cast<Index>(terms.count()));
}

/// In small plans: the terms in the order of each index, and of the rows inside.
template <typename Index>
void fill_groups(const PlanMeta& meta, void* array) {
  const kernels::Terms to = terms_of(meta, array);
  if (to.by_index1 == nullptr) {
    return;
  }
  const kernels::TermsView<Index> terms(to);
  const auto fill = [&](const void* where, auto&& key) {
    auto* const order = static_cast<Index*>(const_cast<void*>(where));
    std::iota(order, order + meta.terms, Index{0});
    // Terms are numbered row by row, so a stable sort by the index leaves the rows in order.
    std::stable_sort(order, order + meta.terms, [&](Index a, Index b) { return key(a) < key(b); });
  };
  fill(to.by_index1, [&](Index term) { return terms.first(term); });
  fill(to.by_index2, [&](Index term) { return terms.second(term); });
}

/// Where an entry has several terms: the terms of each entry, in order.
template <typename Index>
void fill_inverse(const PlanMeta& meta, void* array) {
  const kernels::Terms to = terms_of(meta, array);
  if (to.inverse_segments == nullptr) {
    return;
  }
  auto* const segments = static_cast<Index*>(const_cast<void*>(to.inverse_segments));
  auto* const inverse = static_cast<Index*>(const_cast<void*>(to.inverse_terms));
  const auto* const order = static_cast<const Index*>(to.order);
  std::fill(segments, segments + meta.entries + 1, Index{0});
  for (std::int64_t term = 0; term < meta.terms; ++term) {
    ++segments[order[term] + 1];
  }
  for (std::int64_t entry = 0; entry < meta.entries; ++entry) {
    segments[entry + 1] += segments[entry];
  }
  std::vector<Index> next(segments, segments + meta.entries);
  for (std::int64_t term = 0; term < meta.terms; ++term) {
    inverse[next[static_cast<std::size_t>(order[term])]++] = static_cast<Index>(term);
  }
}

std::int64_t limit_of(const Triples& triples, Key key) {
  return key == Key::first ? triples.limit1 : key == Key::second ? triples.limit2 : triples.limit_row;
}

template <typename Index>
std::vector<PlanMeta> build_sorted_as(const Triples& triples, const std::vector<Request>& requests,
                                      const CpuExecutor& executor) {
  TermSort<Index> terms(triples.count, executor);
  std::vector<kernels::TermHash> hashes(static_cast<std::size_t>(terms.parts()));
  terms.for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    kernels::TermHash hash;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = triples.index1 != nullptr ? triples.index1[i] : i;
      const std::int64_t second = triples.unary ? 0 : triples.index2 != nullptr ? triples.index2[i] : i;
      const std::int64_t row = triples.row != nullptr ? triples.row[i] : i;
      hash.add(first, second, row, i, triples.unary);
      terms.data()[i] = {{static_cast<Index>(first), static_cast<Index>(second), static_cast<Index>(row)},
                         static_cast<Index>(i)};
    }
    hashes[static_cast<std::size_t>(part)] = hash;
  });
  kernels::TermHash hash;
  for (const kernels::TermHash& part : hashes) {
    hash.add(part);
  }
  std::vector<PlanMeta> metas;
  bool rotating = false;
  for (const Request& request : requests) {
    const Roles roles = roles_of(request.view, triples.unary);
    if (!rotating) {
      // Terms in the order of an index1 that is the identity need no second key.
      if (roles.index1 != Key::first || triples.index1 != nullptr) {
        terms.sort(roles.index2, limit_of(triples, roles.index2));
        terms.sort(roles.index1, limit_of(triples, roles.index1));
      }
      rotating = true;
    }
    terms.sort(roles.row, limit_of(triples, roles.row));
    PlanMeta meta;
    meta.entries = triples.count;
    meta.terms = triples.count;
    meta.rows = request.rows;
    meta.need1 = limit_of(triples, roles.index1);
    meta.need2 = limit_of(triples, roles.index2);
    meta.flags = canonical_flags(terms, roles, request.rows) | (sizeof(Index) == 8 ? PlanMeta::wide : 0) |
                 group_flag(meta.terms);
    if (triples.unary) {
      meta.flags &= ~PlanMeta::has_index2;
      meta.need2 = 0;
    }
    write_hash(hash, meta, request.view, triples.unary);
    void* const array = request.allocate(meta.length(), sizeof(Index) == 8);
    fill(terms, roles, meta, array);
    fill_groups<Index>(meta, array);
    metas.push_back(meta);
  }
  return metas;
}

}  // namespace

std::vector<PlanMeta> build_sorted(const Triples& triples, const std::vector<Request>& requests,
                                   const CpuExecutor& executor) {
  std::int64_t largest = std::max({triples.count, triples.limit1, triples.limit2, triples.limit_row});
  for (const Request& request : requests) {
    largest = std::max(largest, request.rows);
  }
  return fits_narrow(largest) ? build_sorted_as<std::int32_t>(triples, requests, executor)
                              : build_sorted_as<std::int64_t>(triples, requests, executor);
}

namespace {

template <typename Index>
PlanMeta build_fields_as(const Fields& f, PlanMeta meta, const Allocate& allocate) {
  // T is settled by a field: gather everything into rows, in the order of the rows.
  const std::int64_t length = f.gather != nullptr ? *f.gather_length : *f.entries;
  const std::int64_t segment_count = f.segments != nullptr || f.index_out != nullptr ? f.segment_count : length;
  std::vector<std::int64_t> segment_of(static_cast<std::size_t>(meta.rows), -1);
  for (std::int64_t s = 0; s < segment_count; ++s) {
    segment_of[static_cast<std::size_t>(f.index_out != nullptr ? f.index_out[s] : s)] = s;
  }
  const auto begin_of = [&](std::int64_t s) { return f.segments != nullptr ? f.segments[s] : s; };
  const auto end_of = [&](std::int64_t s) { return f.segments != nullptr ? f.segments[s + 1] : s + 1; };

  const auto for_terms = [&](auto&& g) {
    std::int64_t term = 0;
    for (std::int64_t row = 0; row < meta.rows; ++row) {
      const std::int64_t s = segment_of[static_cast<std::size_t>(row)];
      if (s < 0) {
        continue;
      }
      for (std::int64_t k = begin_of(s); k < end_of(s); ++k, ++term) {
        const std::int64_t entry = f.gather != nullptr ? f.gather[k] : k;
        g(term, f.index1 != nullptr ? f.index1[entry] : entry,
          f.unary               ? 0
          : f.index2 != nullptr ? f.index2[entry]
                                : entry,
          row, entry);
      }
    }
    return term;
  };

  std::vector<bool> seen(static_cast<std::size_t>(*f.entries), false);
  kernels::TermHash hash;
  meta.flags = sizeof(Index) == 8 ? PlanMeta::wide : 0;
  meta.terms =
      for_terms([&](std::int64_t term, std::int64_t i1, std::int64_t i2, std::int64_t row, std::int64_t entry) {
        hash.add(i1, i2, row, entry, f.unary);
        meta.flags |= (row != term ? PlanMeta::has_segments : 0) | (i1 != term ? PlanMeta::has_index1 : 0) |
                      (!f.unary && i2 != term ? PlanMeta::has_index2 : 0) | (entry != term ? PlanMeta::has_order : 0);
        if (seen[static_cast<std::size_t>(entry)]) {
          meta.flags |= PlanMeta::has_order | PlanMeta::has_inverse;
        }
        seen[static_cast<std::size_t>(entry)] = true;
      });
  if (meta.terms != meta.rows) {
    meta.flags |= PlanMeta::has_segments;
  }
  meta.flags |= group_flag(meta.terms);
  write_hash(hash, meta, View::forward, f.unary);

  void* const array = allocate(meta.length(), sizeof(Index) == 8);
  const kernels::Terms to = terms_of(meta, array);
  auto* const segments = static_cast<Index*>(const_cast<void*>(to.segments));
  const auto put = [](const void* at, std::int64_t i, std::int64_t value) {
    if (at != nullptr) {
      static_cast<Index*>(const_cast<void*>(at))[i] = static_cast<Index>(value);
    }
  };
  if (segments != nullptr) {
    std::fill(segments, segments + meta.rows + 1, Index{0});
  }
  for_terms([&](std::int64_t term, std::int64_t i1, std::int64_t i2, std::int64_t row, std::int64_t entry) {
    put(to.index1, term, i1);
    put(to.index2, term, i2);
    put(to.order, term, entry);
    if (segments != nullptr) {
      ++segments[row + 1];
    }
  });
  if (segments != nullptr) {
    for (std::int64_t row = 0; row < meta.rows; ++row) {
      segments[row + 1] += segments[row];
    }
  }
  fill_inverse<Index>(meta, array);
  fill_groups<Index>(meta, array);
  return meta;
}

template <typename Index>
void derive_as(const PlanMeta& meta, const void* array, View view, bool unary, const PlanMeta& derived, void* out,
               const CpuExecutor& executor) {
  const kernels::TermsView<Index> from(terms_of(meta, array));
  TermSort<Index> terms(meta.terms, executor);
  executor.parallel_for(0, meta.rows, 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t t = from.begin(row); t < from.end(row); ++t) {
        const auto second = unary ? Index{0} : static_cast<Index>(from.second(t));
        terms.data()[t] = {{static_cast<Index>(from.first(t)), second, static_cast<Index>(row)},
                           static_cast<Index>(from.entry(t))};
      }
    }
  });
  const Roles roles = roles_of(view, unary);
  if (!derives_in_order(meta, view, derived.rows)) {
    terms.sort(roles.row, derived.rows);
  }
  fill(terms, roles, derived, out);
  fill_inverse<Index>(derived, out);
  fill_groups<Index>(derived, out);
}

}  // namespace

PlanMeta build_from_fields(const Fields& fields, const Allocate& allocate) {
  PlanMeta meta;
  if (!fields.entries.has_value()) {
    allocate(0, false);
    return meta;
  }
  const std::int64_t length = fields.gather != nullptr ? *fields.gather_length : *fields.entries;
  const bool counted = fields.segments != nullptr || fields.index_out != nullptr;
  meta.entries = *fields.entries;
  meta.rows = fields.out_size.value_or(counted ? fields.segment_count : length);
  meta.need1 = fields.limit1;
  meta.need2 = fields.limit2;
  const std::int64_t largest = std::max({length, meta.entries, meta.rows, meta.need1, meta.need2});
  return fits_narrow(largest) ? build_fields_as<std::int32_t>(fields, meta, allocate)
                              : build_fields_as<std::int64_t>(fields, meta, allocate);
}

void derive(const PlanMeta& meta, const void* array, View view, std::int64_t rows, bool unary, void* out,
            const CpuExecutor& executor) {
  const PlanMeta derived = derived_meta(meta, view, rows, unary);
  if (derived.is_identity()) {
    return meta.has(PlanMeta::wide) ? fill_groups<std::int64_t>(derived, out) : fill_groups<std::int32_t>(derived, out);
  }
  if (meta.has(PlanMeta::wide)) {
    derive_as<std::int64_t>(meta, array, view, unary, derived, out, executor);
  } else {
    derive_as<std::int32_t>(meta, array, view, unary, derived, out, executor);
  }
}

}  // namespace lacewing::structure
