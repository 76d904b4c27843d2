"""S-growth: coalesce, SpMM and pointwise ops over the number of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import Context
from benchmarks.growth import Growth, measure_point
from benchmarks.limits import Work
from benchmarks.registry import Outcome, workload

WIDTH = 16
BANDED = "SpMM, banded"
ONE_SIZE = "SpMM, n = 10,000"


@workload("S-growth", "sparse tensors over the number of entries")
def run(context: Context) -> Outcome:
    """Uniform matrices with 20 entries in a row (one row: of one size), from 10^4 to 10^7 entries."""
    sizes = [10**3, 10**4] if context.quick else [10**4, 10**5, 10**6, 10**7]
    work: dict[str, Callable[[int], Work]] = {
        "coalesce": lambda size: Work(40 * size, 0),
        "SpMM": lambda size: Work(8 * size + 8 * WIDTH * size // 20, 2 * WIDTH * size),
        BANDED: lambda size: Work(8 * size + 8 * WIDTH * size // 20, 2 * WIDTH * size),
        ONE_SIZE: lambda size: Work(8 * size + 8 * WIDTH * 10_000, 2 * WIDTH * size),
        "pointwise": lambda size: Work(8 * size, size),
        "union add": lambda size: Work(60 * size, 2 * size),
    }
    outcome = Outcome(
        notes=[
            f"fp32, SpMM with C {WIDTH}; coalesce from random order, from a new tensor in every call",
            "at 10^7 entries the rows of X exceed the caches for a random matrix, for a banded one they do not",
            f"{ONE_SIZE}: the same X for all, so that the entries alone grow",
        ]
    )
    for name, least in work.items():
        context.tell(f"  {name}")
        points = [measure_point(size, *_contender(name, size, context), least(size), context) for size in sizes]
        fixed = "n = 10,000" if name == ONE_SIZE else "n = nse / 20"
        outcome.growths.append(Growth(name, "forward", "nse", fixed, points))
        outcome.summary[f"{name}: exponent of time"] = outcome.growths[-1].exponent
    return outcome


def _contender(name: str, size: int, context: Context) -> tuple[Any, Any]:
    import lacewing

    n = 10_000 if name == ONE_SIZE else max(size // 20, 10)
    shape = (n, n)
    device = context.device
    if name == BANDED:
        band = patterns.matrix("banded", n, size).to(device)
        matrix = lacewing.sparse_coo_tensor(band, torch.rand(band.shape[1], device=device), shape)
        dense = torch.rand(n, WIDTH, device=device)
        return (lambda x: matrix @ x), lambda _: dense
    random = [patterns.uniform(n, size, seed).to(device) for seed in (0, 1)]
    values = torch.rand(size, device=device)
    if name == "coalesce":
        return (lambda v: lacewing.sparse_coo_tensor(random[0], v, shape).coalesce()), lambda _: values
    a, b = (lacewing.sparse_coo_tensor(i, values, shape).coalesce() for i in random)
    if name in ("SpMM", ONE_SIZE):
        x = torch.rand(n, WIDTH, device=device)
        return (lambda x: a @ x), lambda _: x
    both: Callable[[Tensor], Any] = (lambda _: torch.sin(a)) if name == "pointwise" else (lambda _: a + b)
    return both, lambda _: values
