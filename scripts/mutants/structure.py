"""Mutants of the structure: sorting terms, building plans and deriving those of the gradients."""

from __future__ import annotations

from .record import Mutant

SORT = "src/structure/term_sort.h"
BUILDER = "src/structure/plan_builder.cpp"

STRUCTURE_MUTANTS = (
    Mutant(
        "sort-unstable",
        SORT,
        "to[next[bucket(from[i])]++] = from[i];",
        "to[next[bucket(from[begin + end - 1 - i])]++] = from[begin + end - 1 - i];",
        ("structure",),
        "terms of one bucket come out in the opposite order",
    ),
    Mutant(
        "sort-skips-a-digit",
        SORT,
        "for (int pass = 0; pass < passes; ++pass) {",
        "for (int pass = 0; pass == 0 || pass + 1 < passes; ++pass) {",
        ("structure",),
        "the highest digit of large indices is not sorted by",
    ),
    Mutant(
        "sort-parts-overlap",
        SORT,
        "total += std::exchange(offsets[part * buckets + b], total);",
        "total += part == 0 ? std::exchange(offsets[b], total) : offsets[part * buckets + b];",
        ("structure",),
        "the second thread's part of a sort is written to the wrong place",
    ),
    Mutant(
        "shift-segments",
        BUILDER,
        "segments[row] = static_cast<Index>(i);",
        "segments[row] = static_cast<Index>(i + 1);",
        ("structure",),
        "every segment is shifted by one term",
    ),
    Mutant(
        "rows-after-the-last-term",
        BUILDER,
        "std::fill(segments + last + 1, segments + meta.rows + 1, static_cast<Index>(count));",
        "std::fill(segments + last + 1, segments + meta.rows, static_cast<Index>(count));",
        ("structure",),
        "the end of the last row is not written",
    ),
    Mutant(
        "identity-with-more-rows",
        BUILDER,
        "std::int64_t flags = rows == terms.count() ? 0 : PlanMeta::has_segments;",
        "std::int64_t flags = 0;",
        ("structure",),
        "segments are left out where the output has more rows than there are terms",
    ),
    Mutant(
        "sorted-forget-order",
        BUILDER,
        "static_cast<std::int64_t>(t.entry != i) * PlanMeta::has_order;",
        "static_cast<std::int64_t>(false) * PlanMeta::has_order;",
        ("structure",),
        "sorted terms take the scale of their new positions",
    ),
    Mutant(
        "backward1-roles",
        BUILDER,
        "case View::backward1: return {Key::second, Key::row, Key::first};",
        "case View::backward1: return {Key::row, Key::second, Key::first};",
        ("structure",),
        "the plan of grad x has its inputs exchanged",
    ),
    Mutant(
        "backward2-roles",
        BUILDER,
        "case View::backward2: return {Key::row, Key::first, Key::second};",
        "case View::backward2: return {Key::first, Key::row, Key::second};",
        ("structure",),
        "the plan of grad y has its inputs exchanged",
    ),
    Mutant(
        "groups-by-the-wrong-index",
        BUILDER,
        "fill(to.by_index2, [&](Index term) { return terms.second(term); });",
        "fill(to.by_index2, [&](Index term) { return terms.first(term); });",
        ("structure",),
        "the terms by index2 are those by index1",
    ),
    Mutant(
        "fields-forget-index-out",
        BUILDER,
        "segment_of[static_cast<std::size_t>(f.index_out != nullptr ? f.index_out[s] : s)] = s;",
        "segment_of[static_cast<std::size_t>(s)] = s;",
        ("structure",),
        "index_out is ignored",
    ),
    Mutant(
        "fields-forget-gather",
        BUILDER,
        "const std::int64_t entry = f.gather != nullptr ? f.gather[k] : k;",
        "const std::int64_t entry = k;",
        ("structure",),
        "gather_index is ignored",
    ),
    Mutant(
        "fields-forget-inverse",
        BUILDER,
        "meta.flags |= PlanMeta::has_order | PlanMeta::has_inverse;",
        "meta.flags |= PlanMeta::has_order;",
        ("structure",),
        "an entry of scale that repeats has no list of its terms",
    ),
    Mutant(
        "derive-forget-order",
        BUILDER,
        "static_cast<Index>(from.entry(t))};",
        "static_cast<Index>(from.entry(0))};",
        ("structure",),
        "every term of a derived plan takes the scale of the first term's entry",
    ),
    Mutant(
        "derive-forget-inverse",
        BUILDER,
        "fill_inverse<Index>(derived, out);",
        "",
        ("structure",),
        "a derived plan's list of the terms of each entry is not filled",
    ),
    Mutant(
        "derive-needed-rows",
        BUILDER,
        "derived.need1 = view == View::backward1 ? meta.need2 : meta.rows;",
        "derived.need1 = view == View::backward1 ? meta.need1 : meta.rows;",
        ("structure",),
        "a derived plan asks for the wrong number of rows",
    ),
)
