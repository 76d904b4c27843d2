"""Building the three sorted views of a set of triples with torch's sort and searchsorted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class View(NamedTuple):
    """Triples sorted by (key, first, second): pointers per key, the permutation, and both indices in that order."""

    segments: Tensor
    order: Tensor
    first: Tensor
    second: Tensor


def sorted_view(first: Tensor, second: Tensor, key: Tensor, first_size: int, second_size: int, key_size: int) -> View:
    """One stable sort of a combined int64 key, pointers by searchsorted, indices gathered."""
    combined = (key * first_size + first) * second_size + second
    values, order = torch.sort(combined, stable=True)
    starts = torch.arange(key_size + 1, device=key.device) * (first_size * second_size)
    return View(torch.searchsorted(values, starts), order, first[order], second[order])


def sorted_views(
    index1: Tensor, index2: Tensor, index: Tensor, out_size: int, in1_size: int, in2_size: int
) -> tuple[View, View, View]:
    """The views by output, by first operand and by second operand."""
    return (
        sorted_view(index1, index2, index, in1_size, in2_size, out_size),
        sorted_view(index2, index, index1, in2_size, out_size, in1_size),
        sorted_view(index, index1, index2, out_size, in1_size, in2_size),
    )
