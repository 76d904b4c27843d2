"""P1-growth: time over terms, batch and channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from benchmarks.case import OURS, Context
from benchmarks.checking import check_contenders
from benchmarks.costs import MATRIX_OPS, OPS, count, product_work
from benchmarks.growth import Growth, Point, measure_point
from benchmarks.peers import torch_products as peers
from benchmarks.peers.torch_products import ProductInputs, Triples
from benchmarks.products import BACKWARD, MODES, build_infos, clebsch_gordan_triples, input_maker, ours, random_triples
from benchmarks.registry import Outcome, workload

CHECKED_TERMS = 1000
TOLERANCES = [1e-5, 3e-4, 3e-4]


@workload("P1-growth", "the seven products over T, N and C")
def run(context: Context) -> Outcome:
    """Each axis alone: random triples for T at one n, the Clebsch-Gordan terms for N and C."""
    terms = [10**2, 10**3, 10**4] if context.quick else [10**2, 10**3, 10**4, 10**5, 10**6]
    batches = [16, 64] if context.quick else [64, 256, 1024, 4096]
    channels = [16, 32] if context.quick else [16, 32, 64, 128, 256]
    outcome = Outcome(
        notes=[
            "T: random triples, T/10 rows on each side, N 1, C 64 (C 16 where an operand or output is a matrix)",
            "N and C: the 611 Clebsch-Gordan terms; C 64 (16) over N, N 256 (16) over C",
            "exponents are fitted over the larger half of the sizes; the work's is that of the least possible time",
        ]
    )
    fixed = clebsch_gordan_triples(context.device)
    random = {t: _random(t, context) for t in terms}
    for mode in MODES:
        for op in OPS:
            context.tell(f"  {op} {mode}")
            c, n = (16, 16) if op in MATRIX_OPS else (64, 256)
            over_terms = {t: (triples, 1, c) for t, triples in random.items()}
            over_batch = {size: (fixed, size, c) for size in batches}
            over_channels = {size: (fixed, n, size) for size in channels}
            outcome.growths += [
                _growth(op, mode, "T", f"N 1, C {c}", over_terms, context),
                _growth(op, mode, "N", f"T 611, C {c}", over_batch, context),
                _growth(op, mode, "C", f"T 611, N {n}", over_channels, context),
            ]
    return outcome


def _random(terms: int, context: Context) -> Triples:
    size = max(10, terms // 10)
    return random_triples(terms, (size, size, size), context.device)


def _growth(
    op: str, mode: str, axis: str, fixed: str, settings: Mapping[int, tuple[Triples, int, int]], context: Context
) -> Growth:
    """One table line; a setting is the structure, N and C."""
    points = [_point(op, mode == BACKWARD, size, *setting, context) for size, setting in settings.items()]
    return Growth(op, mode, axis, fixed, points)


def _point(op: str, backward: bool, size: int, triples: Triples, n: int, c: int, context: Context) -> Point:
    mine = ours(op, build_infos(triples))
    make_inputs = input_maker(op, n, c, triples.rows, context.device, backward)
    if len(triples.index) <= CHECKED_TERMS:
        _check(op, triples, mine, make_inputs(0))
    counts = count(triples.index1, triples.index2, triples.index, triples.rows)
    return measure_point(size, mine, make_inputs, product_work(op, n, c, counts, 4, backward), context)


def _check(
    op: str, triples: Triples, mine: Callable[[ProductInputs], tuple[torch.Tensor, ...]], inputs: ProductInputs
) -> None:
    """Compares with the composition in fp64 on the first few n."""
    few = slice(0, 4)
    needs = inputs.x.requires_grad
    x, y = (t.detach()[few].requires_grad_(needs) for t in (inputs.x, inputs.y))
    wide = Triples(triples.index1, triples.index2, triples.index, triples.scale.double(), triples.rows)

    def oracle(narrow: ProductInputs) -> tuple[torch.Tensor, ...]:
        x64, y64 = (t.detach().double().requires_grad_(needs) for t in (narrow.x, narrow.y))
        inputs64 = ProductInputs(x64, y64, narrow.upstream.double())
        return peers.with_gradients(lambda a, b: peers.composition(op, a, b, wide), inputs64)

    check_contenders({OURS: mine}, ProductInputs(x, y, inputs.upstream[few]), oracle, TOLERANCES[: 1 + 2 * needs])
