"""Mutants of the CUDA kernels."""

from __future__ import annotations

from .record import Mutant

PRODUCT = "src/kernels/cuda/product.cu"

CUDA_MUTANTS = (
    Mutant(
        "cuda-swap-indices",
        PRODUCT,
        "value_at<T>(args.y, n0 + n1, second, a0 + a1, b0 + b1);",
        "value_at<T>(args.y, n0 + n1, first, a0 + a1, b0 + b1);",
        ("cuda",),
        "y is read by index1",
    ),
    Mutant(
        "cuda-forget-scale",
        PRODUCT,
        "sum += scale_at<T>(args, terms.entry(term)) * dense;",
        "sum += dense;",
        ("cuda",),
        "scale is forgotten",
    ),
    Mutant(
        "cuda-drop-last-n",
        PRODUCT,
        "const std::int64_t sum_n = args.accumulate ? args.batch : 1;",
        "const std::int64_t sum_n = args.accumulate ? args.batch - 1 : 1;",
        ("cuda",),
        "an accumulated sum loses its last n",
    ),
    Mutant(
        "cuda-scale-grad-conjugate",
        PRODUCT,
        "sum += conj(value_at<T>(args.x, n, first, a, b) * value_at<T>(args.y, n, second, a, b)) *",
        "sum += (value_at<T>(args.x, n, first, a, b) * value_at<T>(args.y, n, second, a, b)) *",
        ("cuda",),
        "the gradient of scale lacks its conjugate",
    ),
    Mutant(
        "cuda-row-of-term",
        PRODUCT,
        "if (terms.begin(middle) <= term) {",
        "if (terms.begin(middle) < term) {",
        ("cuda",),
        "the first term of a row is taken for the row before",
    ),
    Mutant(
        "cuda-tree-sum",
        PRODUCT,
        "for (int half = kThreads / 2; half > 0; half /= 2) {",
        "for (int half = kThreads / 2; half > 1; half /= 2) {",
        ("cuda",),
        "the gradient of scale loses every other thread",
    ),
    Mutant(
        "cuda-inverse-terms",
        PRODUCT,
        "sum += by_term[terms[i]];",
        "sum += by_term[i];",
        ("cuda",),
        "the gradient of a repeated entry of scale adds the wrong terms",
    ),
    Mutant(
        "cuda-unused-entries",
        PRODUCT,
        "clear(out, terms.entries * static_cast<std::int64_t>(sizeof(T)), executor);",
        "",
        ("cuda",),
        "the gradient of an entry that no term uses is left as memory held it",
    ),
)
