"""Mutants of the reference and CPU kernels."""

from __future__ import annotations

from .record import LEVELS, Mutant

TERMS = "src/kernels/terms.h"
REFERENCE = "src/kernels/reference/product.cpp"
CPU = "src/kernels/cpu/product.cpp"
CPU_TASKS = "src/kernels/cpu/product_isa.cpp"
CPU_ROWS = "src/kernels/cpu/product_rows.h"
FOLDED = "src/kernels/cpu/folded_rows.h"
CPU_SCALE_GRAD = "src/kernels/cpu/scale_grad_terms.h"
SCHEDULE = "src/kernels/cpu/schedule.h"
SIMD = "src/kernels/cpu/simd.h"
SOURCE = "src/kernels/cpu/source.h"

ENDS = ("baseline", "avx512")
"""The narrowest and the widest vectors."""

# Every kernel includes terms.h, so its mutants run on each of them by itself.
SHARED_MUTANTS = (
    Mutant(
        "swap-indices",
        TERMS,
        "index1(static_cast<const Index*>(terms.index1)),\n        index2(static_cast<const Index*>(terms.index2)),",
        "index1(static_cast<const Index*>(terms.index2)),\n        index2(static_cast<const Index*>(terms.index1)),",
        ("reference", *ENDS, "cuda"),
        "index1 and index2 are exchanged",
        units=("kernels/cuda/product.cu",),
    ),
    Mutant(
        "segment-starts-late",
        TERMS,
        "return segments != nullptr ? static_cast<std::int64_t>(segments[row]) : row;",
        "return segments != nullptr ? static_cast<std::int64_t>(segments[row]) + 1 : row;",
        ("reference", *ENDS, "cuda"),
        "every segment starts one term late",
        units=("kernels/cuda/product.cu",),
    ),
    Mutant(
        "forget-order",
        TERMS,
        "return order != nullptr ? static_cast<std::int64_t>(order[term]) : term;",
        "return order != nullptr ? static_cast<std::int64_t>(order[0]) : term;",
        ("reference", *ENDS, "cuda"),
        "every term takes the scale of the first term's entry",
        units=("kernels/cuda/product.cu",),
    ),
    Mutant(
        "wide-indices-read-narrow",
        TERMS,
        "f(scalar, std::int64_t{});",
        "f(scalar, std::int32_t{});",
        ("reference", *ENDS),
        "int64 plans are read as int32",
    ),
    Mutant(
        "drop-scale-conjugate",
        TERMS,
        "return args.conjugate_scale ? conj(value) : value;",
        "return value;",
        ("reference", *ENDS, "cuda"),
        "a conjugated scale is read as it lies in memory",
        units=("kernels/cuda/product.cu",),
    ),
    Mutant(
        "drop-operand-conjugate",
        TERMS,
        "return operand.conjugate ? conj(value) : value;",
        "return value;",
        ("reference", "cuda"),
        "a conjugated operand is read as it lies in memory",
        units=("kernels/cuda/product.cu",),
    ),
)

REFERENCE_MUTANTS = (
    Mutant(
        "reference-forget-scale",
        REFERENCE,
        "sum += scale * (x * y);",
        "sum += x * y;",
        ("reference",),
        "scale is forgotten",
    ),
    Mutant(
        "reference-drop-last-n",
        REFERENCE,
        "const std::int64_t sum_n = args.accumulate ? args.batch : 1;",
        "const std::int64_t sum_n = args.accumulate ? args.batch - 1 : 1;",
        ("reference",),
        "an accumulated sum loses its last n",
    ),
    Mutant(
        "reference-scale-grad-conjugate",
        REFERENCE,
        "sum += conj(x * y) *",
        "sum += (x * y) *",
        ("reference",),
        "the gradient of scale lacks its conjugate",
    ),
)

CPU_MUTANTS = (
    Mutant(
        "cpu-scale-grad-conjugate",
        CPU,
        "args.y.conjugate = complex && !args.y.conjugate;",
        "args.y.conjugate = complex && args.y.conjugate;",
        ("cpu",),
        "the gradient of scale does not conjugate y",
    ),
    Mutant(
        "cpu-expanded-mul-indices",
        SCHEDULE,
        "std::swap(args.terms.index1, args.terms.index2);",
        "",
        ("cpu",),
        "mul with an expanded x exchanges the operands without their indices",
    ),
    Mutant(
        "cpu-last-term-lost",
        CPU_ROWS,
        "const std::int64_t end = terms_.end(row);",
        "const std::int64_t end = terms_.end(row) - 1;",
        LEVELS,
        "every segment ends one term early",
    ),
    Mutant(
        "cpu-scalar-conjugate",
        SOURCE,
        "return operand_.conjugate ? conj(value) : value;",
        "return value;",
        ENDS,
        "a conjugated operand without channels is read as it lies in memory",
    ),
    Mutant(
        "cpu-packed-conjugate",
        SOURCE,
        "if (operand_.conjugate) {",
        "if (false) {",
        ENDS,
        "a conjugated operand is packed without its conjugate",
    ),
    Mutant(
        "cpu-transposed-stride",
        SOURCE,
        "return column_stride_;",
        "return row_stride_;",
        ENDS,
        "a transposed matrix is walked with the stride of its rows",
    ),
    Mutant(
        "cpu-transposed-gaps",
        SOURCE,
        "return column_stride_;",
        "return plan_.block_rows;",
        ENDS,
        "the columns of a transposed matrix are taken to lie without gaps",
    ),
    Mutant(
        "cpu-packed-stride",
        SOURCE,
        "to[column] = widen(line[column * column_stride_]);",
        "to[column] = widen(line[column]);",
        ENDS,
        "a strided row is packed as if its stride were one",
    ),
    Mutant(
        "cpu-packed-rows-of-another-n",
        CPU_TASKS,
        "rows.start(n);",
        "if (task == begin) {\n          rows.start(n);\n        }",
        ENDS,
        "the packed rows of one n are used for the next",
    ),
    Mutant(
        "cpu-one-scratch-for-both",
        CPU_ROWS,
        "scratch + schedule.x.scratch),",
        "scratch),",
        ENDS,
        "y is packed over x",
    ),
    Mutant(
        "cpu-forget-to-widen",
        SIMD,
        "to[i] = widen(from[i]);",
        "if constexpr (is_narrow_v<T>) { to[i] = from[i].bits; } else { to[i] = widen(from[i]); }",
        ENDS,
        "half numbers are read as integers",
    ),
    Mutant(
        "cpu-forget-to-widen-vectors",
        SIMD,
        "_mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));",
        "_mm256_storeu_ps(to + i, _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(bits)));",
        ("avx2", "avx512"),
        "eight half numbers at a time are read as integers",
    ),
    Mutant(
        "cpu-truncate-half",
        SIMD,
        "_MM_FROUND_TO_NEAREST_INT",
        "_MM_FROUND_TO_ZERO",
        ("avx2", "avx512"),
        "results in half precision are cut off instead of rounded",
    ),
    Mutant(
        "cpu-forget-tail",
        CPU_ROWS,
        "if (offset < extent) {",
        "if (false) {",
        LEVELS,
        "channels beyond the last whole vector are not computed",
    ),
    Mutant(
        "cpu-forget-transposed-tail",
        CPU_ROWS,
        "if (a < extent) {",
        "if (false) {",
        ENDS,
        "a transposed matrix is summed over whole vectors only",
    ),
    Mutant(
        "cpu-scale-grad-forget-tail",
        CPU_SCALE_GRAD,
        "acc += Lane::load_part(u + i, count) * Lane::load_part(v + i, count);",
        "",
        ENDS,
        "the gradient of scale sums whole vectors only",
    ),
    Mutant(
        "cpu-lane-sum",
        SIMD,
        "for (int half = lanes / 2; half > 0; half /= 2) {",
        "for (int half = lanes / 2; half > 1; half /= 2) {",
        LEVELS,
        "the sum across the lanes of a vector loses half of them",
    ),
    Mutant(
        "cpu-inner-block",
        CPU_ROWS,
        "for (int v = 1; v < vectors; ++v) {",
        "for (int v = 2; v < vectors; ++v) {",
        ENDS,
        "inner loses one vector of each block",
    ),
    Mutant(
        "cpu-outer-tile-rest",
        CPU_ROWS,
        "for (; a < args_.extent_a; ++a) {",
        "for (; a + 1 < args_.extent_a; ++a) {",
        LEVELS,
        "outer loses the last row beyond its register tiles",
    ),
    Mutant(
        "cpu-vecmat-forget-scale",
        CPU_ROWS,
        "acc[v] += scale * sum[v];",
        "acc[v] += sum[v];",
        ENDS,
        "vecmat forgets scale",
    ),
    Mutant(
        "cpu-batch-of-one-n",
        CPU_ROWS,
        "x[i] = x_.block(first_n + i, terms_.first(term));",
        "x[i] = x_.block(first_n, terms_.first(term));",
        LEVELS,
        "n that share a matrix all take the x of the first",
    ),
    Mutant(
        "cpu-drop-last-part",
        CPU_TASKS,
        "for (std::int64_t part = 1; part < schedule.parts; ++part) {",
        "for (std::int64_t part = 1; part + 1 < schedule.parts; ++part) {",
        ENDS,
        "a sum over n in parts loses the last part",
    ),
    Mutant(
        "cpu-row-boundary",
        SCHEDULE,
        "return share == shares ? terms.rows : low;",
        "return share == shares ? terms.rows : low + 1;",
        ENDS,
        "the shares of the rows start one row late",
    ),
    Mutant(
        "cpu-row-boundary-without-segments",
        SCHEDULE,
        "return terms.rows * share / shares;",
        "return (terms.rows - 1) * share / shares;",
        ENDS,
        "without segments the last row is in no share",
    ),
    Mutant(
        "cpu-inverse-terms",
        CPU_TASKS,
        "sum += by_term[inverse_terms[i]];",
        "sum += by_term[i];",
        ENDS,
        "the gradient of a repeated entry of scale adds the wrong terms",
    ),
    Mutant(
        "cpu-unused-entries",
        CPU_TASKS,
        "std::fill_n(out, args.terms.entries, T{});",
        "",
        ENDS,
        "the gradient of an entry that no term uses is left as memory held it",
    ),
)

# Sums of terms that share a row, before they are multiplied.
FOLDED_MUTANTS = (
    Mutant(
        "folded-last-term-only",
        FOLDED,
        "Lane::store(to + i, first ? value : Lane::load(to + i) + value);",
        "Lane::store(to + i, value);",
        ENDS,
        "of terms that share a row only the last counts",
    ),
    Mutant(
        "folded-forget-tail",
        FOLDED,
        "for (; i < extent; ++i) {",
        "for (; i + 1 < extent; ++i) {",
        LEVELS,
        "the last channel beyond the whole vectors is not added up",
    ),
    Mutant(
        "folded-forget-scale",
        FOLDED,
        "fold(scale_of(term), x_.block(n, terms_.first(term)), folded, args_.extent_a, first);",
        "fold(one<Acc>(), x_.block(n, terms_.first(term)), folded, args_.extent_a, first);",
        ENDS,
        "vecmat forgets scale where terms share a matrix",
    ),
    Mutant(
        "folded-second-chunk",
        FOLDED,
        "outer_tiles(xs, ys, runs, sums, first_chunk);",
        "outer_tiles(xs, ys, runs, sums, true);",
        ENDS,
        "a row of more terms than are kept at a time loses the earlier ones",
    ),
    Mutant(
        "folded-row-before",
        FOLDED,
        "rows[folds++] = row;",
        "rows[folds++] = row > 0 ? row - 1 : row;",
        ENDS,
        "the product with a shared matrix goes to the row before",
    ),
    Mutant(
        "folded-sums-not-cleared",
        FOLDED,
        "std::fill_n(sums, terms_.rows * args_.extent_b, Acc{});",
        "",
        ENDS,
        "sums start with what memory held",
    ),
    Mutant(
        "folded-tile-rest",
        FOLDED,
        "for (; f < folds; ++f) {",
        "for (; f + 1 < folds; ++f) {",
        LEVELS,
        "the row beyond the register tiles is not multiplied",
    ),
    Mutant(
        "transposed-copy-rest",
        SIMD,
        "to[(r + i) * columns + c] = from[r + i + c * stride];",
        "to[(r + i) * columns + c] = from[r + i];",
        ENDS,
        "columns beyond the last square of a transposed copy repeat the first",
    ),
    Mutant(
        "transposed-copy-stride",
        SIMD,
        "v[i] = Simd<A>::load(from + r + (c + i) * stride);",
        "v[i] = Simd<A>::load(from + r + (c + i) * rows);",
        ENDS,
        "the columns of a matrix that is copied transposed are taken to lie without gaps",
    ),
)

KERNEL_MUTANTS = (*SHARED_MUTANTS, *REFERENCE_MUTANTS, *CPU_MUTANTS, *FOLDED_MUTANTS)
