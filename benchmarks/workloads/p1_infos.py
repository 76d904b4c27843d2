"""P1-infos: building the three sorted views of 10^7 random triples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.limits import Work
from benchmarks.peers.torch_infos import View, sorted_views
from benchmarks.peers.torch_products import Triples
from benchmarks.products import build_infos, random_triples
from benchmarks.registry import Outcome, workload

TORCH = "torch sort"


@workload("P1-infos", "building the three sorted views of random triples")
def run(context: Context) -> Outcome:
    """sparse_product_infos against stable sorts of a combined key."""
    terms, size = (10**5, 10**3) if context.quick else (10**7, 10**5)

    def make_inputs(seed: int) -> Triples:
        return random_triples(terms, (size, size, size), context.device, seed)

    def by_torch(triples: Triples) -> tuple[View, ...]:
        return sorted_views(triples.index1, triples.index2, triples.index, size, size, size)

    case = Case(
        name="infos",
        mode="build",
        contenders={OURS: build_infos, TORCH: by_torch},
        make_inputs=make_inputs,
        oracle=lexicographic,
        tolerances=[0.0] * 9,
        # Three int64 indices and a scale in; two indices, a permutation and pointers of 4 bytes out, per view.
        work=Work(terms * (3 * 8 + 4) + 3 * (3 * 4 * terms + 4 * (size + 1)), 0),
        readers={OURS: read_infos, TORCH: read_views},
    )
    row = run_case(case, context)
    return Outcome(
        [row],
        summary={f"ratio to {TORCH}": row.ratio(TORCH)},
        notes=[f"{terms:,} triples, {size:,} rows on each side; views equal entry by entry"],
    )


def read_views(views: Sequence[View]) -> list[Tensor]:
    """Pointers and both indices of each view, in sorted order."""
    return [tensor.cpu() for view in views for tensor in (view.segments, view.first, view.second)]


def read_infos(infos: Sequence[Any]) -> list[Tensor]:
    """The same from infos, whose absent fields stand for the identity."""
    tensors: list[Tensor] = []
    for info in infos:
        terms = len(info.scale)
        identity = torch.arange(terms)
        order = identity if info.gather_index is None else info.gather_index.cpu()
        segments = torch.arange(info.out_size + 1) if info.seg_out is None else info.seg_out.cpu()
        first, second = (identity if i is None else i.cpu() for i in (info.index1, info.index2))
        tensors += [segments, first[order], second[order]]
    return tensors


def lexicographic(triples: Triples) -> list[Tensor]:
    """The same by numpy's lexsort, as fp64."""
    columns = [t.cpu().numpy() for t in (triples.index1, triples.index2, triples.index)]
    sizes = triples.rows
    tensors: list[Tensor] = []
    for first, second, key in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        order = np.lexsort((columns[second], columns[first], columns[key]))
        counts = np.bincount(columns[key], minlength=sizes[key])
        segments = np.concatenate([[0], np.cumsum(counts)])
        tensors += [torch.from_numpy(a).double() for a in (segments, columns[first][order], columns[second][order])]
    return tensors
