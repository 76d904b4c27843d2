// A plan: the terms of a product grouped by output row, packed into one integer array, and its description.
// Torch-free.
//
// The array holds, one after the other, those of these that the flags name; an absent one is the identity:
//   segments (rows + 1), index1 (terms), index2 (terms), order (terms),
//   inverse_segments (entries + 1) and inverse_terms (terms) where an entry of scale is used by several terms,
//   by_index1 (terms) and by_index2 (terms), in small plans: the terms sorted by (index, row).
// A mirrored plan has the roles of index1 and index2 exchanged, over the same array.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/product.h"

namespace lacewing::structure {

/// Everything about a plan but its array. Crosses the boundary of an op as integers, in this order; those of a plan
/// that is traced are symbols (Number), but for the flags.
template <typename Number>
struct PlanNumbers {
  using Flag = std::int64_t;
  static constexpr Flag has_segments = 1;
  static constexpr Flag has_index1 = 2;
  static constexpr Flag has_index2 = 4;
  static constexpr Flag has_order = 8;
  static constexpr Flag has_inverse = 16;
  static constexpr Flag wide = 32;  ///< int64 instead of int32
  static constexpr Flag mirrored = 64;
  static constexpr Flag has_groups = 128;
  /// Plans of at most so many terms have groups: beyond, a batch is small and terms are not shared through a cache.
  static constexpr std::int64_t grouped_terms = 1 << 14;
  static constexpr std::int64_t unknown = -1;

  Number entries = unknown;  ///< T, the length of scale; unknown until a product is called: then it is M1
  Number terms = unknown;    ///< how many terms; unknown where it follows entries
  Number rows = unknown;     ///< rows of the output; unknown where it follows terms
  Number need1 = 0;          ///< rows that input1 must have: one more than the largest index
  Number need2 = 0;
  Flag flags = 0;
  Number hash = 0;       ///< of the set of terms, whatever their order; 0 where T was unknown
  Number hash_bwd1 = 0;  ///< what the hash of the plan of the gradient of input1 must be
  Number hash_bwd2 = 0;
  Number order_hash = 0;  ///< of the terms with their entries of scale, the same for all three plans

  static constexpr std::size_t size = 10;
  static constexpr std::size_t flags_at = 5;
  std::vector<Number> to_vector() const {
    return {entries, terms, rows, need1, need2, Number(flags), hash, hash_bwd1, hash_bwd2, order_hash};
  }
  static PlanNumbers from(std::span<const Number> v, Flag flags) {
    return {v[0], v[1], v[2], v[3], v[4], flags, v[6], v[7], v[8], v[9]};
  }
  static PlanNumbers from(std::span<const Number> v)
    requires std::is_same_v<Number, std::int64_t>
  {
    return from(v, v[flags_at]);
  }

  bool has(Flag flag) const { return (flags & flag) != 0; }
  bool is_dynamic() const { return entries == unknown; }

  /// Whether each term is its own row, with its own row of each input and its own entry of scale.
  bool is_identity() const {
    return (flags & (has_segments | has_index1 | has_index2 | has_order)) == 0 && rows == terms;
  }

  /// Elements of the array.
  Number length() const {
    Number length = 0;
    const auto add = [&](Flag flag, const Number& count) { length = has(flag) ? length + count : length; };
    add(has_segments, rows + 1);
    add(has_index1, terms);
    add(has_index2, terms);
    add(has_order, terms);
    add(has_inverse, entries + 1 + terms);
    add(has_groups, terms * 2);
    return length;
  }

  /// With T settled to the rows of the first input.
  PlanNumbers resolved(const Number& first_rows) const {
    PlanNumbers meta = *this;
    if (meta.entries == unknown) {
      meta.entries = first_rows;
    }
    if (meta.terms == unknown) {
      meta.terms = meta.entries;
    }
    if (meta.rows == unknown) {
      meta.rows = meta.terms;
    }
    return meta;
  }

  /// The same terms with input1 and input2 exchanged.
  PlanNumbers mirror() const {
    PlanNumbers meta = *this;
    meta.flags ^= mirrored;
    std::swap(meta.need1, meta.need2);
    return meta;
  }
};

using PlanMeta = PlanNumbers<std::int64_t>;

/// The kernels' view of a plan whose T is settled. `array` is where its array lies.
template <typename Pointer>
kernels::Terms terms_of(const PlanMeta& meta, Pointer array) {
  const std::int64_t width = meta.has(PlanMeta::wide) ? 8 : 4;
  const char* next = static_cast<const char*>(static_cast<const void*>(array));
  const auto take = [&](PlanMeta::Flag flag, std::int64_t count) -> const void* {
    if (!meta.has(flag)) {
      return nullptr;
    }
    const void* const here = next;
    next += count * width;
    return here;
  };
  kernels::Terms terms;
  terms.segments = take(PlanMeta::has_segments, meta.rows + 1);
  terms.index1 = take(PlanMeta::has_index1, meta.terms);
  terms.index2 = take(PlanMeta::has_index2, meta.terms);
  terms.order = take(PlanMeta::has_order, meta.terms);
  terms.inverse_segments = take(PlanMeta::has_inverse, meta.entries + 1);
  terms.inverse_terms = take(PlanMeta::has_inverse, meta.terms);
  terms.by_index1 = take(PlanMeta::has_groups, meta.terms);
  terms.by_index2 = take(PlanMeta::has_groups, meta.terms);
  if (meta.has(PlanMeta::mirrored)) {
    std::swap(terms.index1, terms.index2);
    std::swap(terms.by_index1, terms.by_index2);
  }
  terms.mirrored = meta.has(PlanMeta::mirrored);
  terms.wide = meta.has(PlanMeta::wide);
  terms.rows = meta.rows;
  terms.terms = meta.terms;
  terms.entries = meta.entries;
  return terms;
}

}  // namespace lacewing::structure
