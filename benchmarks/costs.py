"""Bytes and operations that a sparse product needs, counted from its structure."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from benchmarks.limits import Work

OPS = ("mul", "outer", "inner", "vecmat", "vecsca", "scavec", "mat_t_vec")
MATRIX_OPS = ("outer", "vecmat", "mat_t_vec")

# Trailing dims of x, y and z as powers of C.
RANKS = {
    "mul": (1, 1, 1),
    "outer": (1, 1, 2),
    "inner": (1, 1, 0),
    "vecmat": (1, 2, 1),
    "vecsca": (1, 0, 1),
    "scavec": (0, 1, 1),
    "mat_t_vec": (2, 1, 1),
}


@dataclass(frozen=True)
class Counts:
    """Sizes of a structure: rows of x, y and z, terms, and distinct index pairs among the terms."""

    rows: tuple[int, int, int]
    terms: int
    pairs_xy: int
    pairs_xz: int
    pairs_yz: int


def count(index1: Tensor, index2: Tensor, index: Tensor, rows: tuple[int, int, int]) -> Counts:
    """Counts terms and the distinct pairs that a kernel could share among them."""

    def pairs(first: Tensor, second: Tensor, width: int) -> int:
        return len(torch.unique(first * width + second))

    return Counts(
        rows,
        len(index),
        pairs(index1, index2, rows[1]),
        pairs(index1, index, rows[2]),
        pairs(index2, index, rows[2]),
    )


def shapes(op: str, n: int, rows: tuple[int, int, int], c: int) -> list[tuple[int, ...]]:
    """Shapes of x, y and z with every channel count equal to c."""
    return [(n, m, *(c,) * rank) for m, rank in zip(rows, RANKS[op], strict=True)]


def _operations(op: str, counts: Counts, c: int, order: tuple[int, int, int]) -> int:
    """Least operations per n for the value (order 0, 1, 2) or a gradient (a permutation of it).

    The least of four ways: term by term; products shared among terms with the same two operands; and sums of
    either operand shared among terms with the same output and other operand.
    """
    sizes: list[int] = [c**rank for rank in RANKS[op]]
    size1, size2, size3 = (sizes[k] for k in order)
    both = {
        frozenset((0, 1)): counts.pairs_xy,
        frozenset((0, 2)): counts.pairs_xz,
        frozenset((1, 2)): counts.pairs_yz,
    }
    first, second, third = order
    madds = max(sizes)
    terms = counts.terms
    return min(
        terms * (2 * madds + min(sizes)),
        both[frozenset((first, second))] * (2 * madds - size3) + 2 * terms * size3,
        2 * terms * size1 + 2 * both[frozenset((second, third))] * madds,
        2 * terms * size2 + 2 * both[frozenset((first, third))] * madds,
    )


def product_work(op: str, n: int, c: int, counts: Counts, itemsize: int = 4, backward: bool = False) -> Work:
    """Work of the value, or of the value and then both gradients.

    Each tensor counts once per pass: x, y, z forward; x, y, z's gradient and both gradients backward. A pass also
    reads the terms once: two 4-byte indices and a scale each, and one 4-byte pointer per output row.
    """
    x, y, z = (itemsize * prod(shape) for shape in shapes(op, n, counts.rows, c))
    structure = counts.terms * (8 + itemsize) + 4 * (counts.rows[2] + 1)
    forward = Work(x + y + z + structure, n * _operations(op, counts, c, (0, 1, 2)))
    if not backward:
        return forward
    flops = n * (_operations(op, counts, c, (1, 2, 0)) + _operations(op, counts, c, (2, 0, 1)))
    return forward + Work(2 * x + 2 * y + z + structure, flops)
