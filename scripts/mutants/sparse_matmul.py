"""Mutants of sparse @ sparse."""

from __future__ import annotations

from .record import Mutant

ROWS = "src/kernels/cpu/sparse_matmul.cpp"
SET = "src/kernels/cpu/column_set.h"
BACKEND = ("sparse-matmul",)

SPARSE_MATMUL_MUTANTS = (
    Mutant(
        "matmul-loses-a-full-batch",
        ROWS,
        "        f();\n        batch.count = 0;",
        "        batch.count = 0;",
        BACKEND,
        "products before the last batch of a row are dropped",
    ),
    Mutant(
        "matmul-keeps-the-columns-of-a-row",
        ROWS,
        "          set.clear();",
        "",
        BACKEND,
        "the columns of a row stay in the set of the next",
    ),
    Mutant(
        "matmul-forgets-the-names-of-columns",
        ROWS,
        "column_keys == nullptr ? column : column_keys[column]",
        "column",
        BACKEND,
        "numbered columns keep their numbers",
    ),
    Mutant(
        "matmul-places-one-group-late",
        SET,
        "__builtin_convertvector(total + sums - bits, Places)",
        "__builtin_convertvector(total + sums, Places)",
        BACKEND,
        "a word's own columns are counted among those before it",
    ),
    Mutant(
        "matmul-counts-without-clearing",
        SET,
        "      std::fill_n(words + w, kWordGroup, 0);\n",
        "",
        BACKEND,
        "the count of a row has the columns of all rows before it",
    ),
)
