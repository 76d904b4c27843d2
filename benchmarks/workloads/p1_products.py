"""P1: the seven products over all Clebsch-Gordan paths up to l = 3, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, Row, geometric_mean, run_case
from benchmarks.costs import MATRIX_OPS, OPS, count, product_work
from benchmarks.peers import torch_products as peers
from benchmarks.peers.torch_products import ProductInputs, Triples
from benchmarks.products import BACKWARD, MODES, build_infos, clebsch_gordan_triples, input_maker, ours
from benchmarks.registry import Outcome, workload
from benchmarks.timing import make_clock

COMPOSITION = "torch"
CHUNKED = "torch chunked"
DENSE = "torch dense"

FORWARD_TOLERANCE = 1e-5
BACKWARD_TOLERANCE = 3e-4

# Slices of n that keep the composition's intermediates of a matrix op near half a gigabyte.
MATRIX_CHUNK = 64
CHUNKS = {True: (4, 16), False: (8, 16, 32, 64)}

Product = Callable[[ProductInputs], tuple[Tensor, ...]]


@workload("P1", "the seven products over 611 Clebsch-Gordan terms (34 paths up to l = 3)")
def run(context: Context) -> Outcome:
    """All ops in both modes against the torch composition and a dense contraction."""
    n, c = (32, 16) if context.quick else (256, 64)
    triples = clebsch_gordan_triples(context.device)
    infos = build_infos(triples)
    on_cpu = context.device.type == "cpu"
    rows = [
        run_case(product_case(op, mode == BACKWARD, n, c, triples, ours(op, infos), context, on_cpu), context)
        for mode in MODES
        for op in OPS
    ]
    outcome = Outcome(rows, summary=_summary(rows))
    outcome.notes += [
        f"N {n}, C {c}, T {len(triples.index)}, fp32",
        f"'{COMPOSITION}': index_select + op + index_add over all n at once, except where a row says otherwise",
        f"'{CHUNKED}': the same over slices of n, with the fastest slice length for each row (CPU only)",
        f"'{DENSE}': two einsums through the dense 16x16x16 coefficient tensor",
    ]
    return outcome


def product_case(
    op: str, backward: bool, n: int, c: int, triples: Triples, mine: Product, context: Context, chunks: bool
) -> Case:
    """One op in one mode; with `chunks`, the composition in tuned slices of n competes as well."""
    make_inputs = input_maker(op, n, c, triples.rows, context.device, backward)
    coefficients = peers.dense_coefficients(triples, triples.scale.dtype)
    wide = peers.dense_coefficients(triples, torch.float64)

    def chunked(chunk: int) -> Product:
        return lambda inputs: peers.in_chunks(lambda x, y: peers.composition(op, x, y, triples), inputs, chunk)

    def dense(inputs: ProductInputs) -> tuple[Tensor, ...]:
        return peers.with_gradients(lambda x, y: peers.dense_product(op, x, y, coefficients), inputs)

    def oracle(inputs: ProductInputs) -> Sequence[Tensor]:
        return peers.fp64_oracle(op, inputs, wide)

    notes = []
    whole = n
    if context.device.type == "cpu" and op in MATRIX_OPS and n > MATRIX_CHUNK:
        whole = MATRIX_CHUNK
        notes.append(f"'{COMPOSITION}' in slices of {whole} n to bound its memory")
    contenders: dict[str, Product] = {OURS: mine, COMPOSITION: chunked(whole)}
    if chunks:
        lengths = [length for length in CHUNKS[op in MATRIX_OPS] if length < whole]
        best = _fastest(lengths, chunked, make_inputs(0), context)
        contenders[CHUNKED] = chunked(best)
        notes.append(f"'{CHUNKED}' in slices of {best} n")
    contenders[DENSE] = dense
    tolerances = [FORWARD_TOLERANCE] + [BACKWARD_TOLERANCE] * (2 * backward)
    work = product_work(op, n, c, count(triples.index1, triples.index2, triples.index, triples.rows), 4, backward)
    return Case(op, MODES[backward], contenders, make_inputs, oracle, tolerances, work, tuple(notes))


def _fastest(lengths: Sequence[int], chunked: Callable[[int], Product], inputs: ProductInputs, context: Context) -> int:
    """The slice length with the shortest call; quick ones get a second try."""
    clock = make_clock(context.device)

    def seconds(length: int) -> float:
        contender = chunked(length)
        first = clock(lambda: _discard(contender(inputs)))
        return first if first > 1 else min(first, clock(lambda: _discard(contender(inputs))))

    return min(lengths, key=seconds)


def _discard(_: tuple[Tensor, ...]) -> None:
    """Turns a call with a result into a statement."""


def _summary(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric mean and minimum of the ratios to each peer, and of the fraction of the limit."""
    summary: dict[str, float] = {}
    for peer in rows[0].peers:
        for mode in MODES:
            ratios = [row.ratio(peer) for row in rows if row.mode == mode]
            summary[f"{mode}: geomean ratio to {peer}"] = geometric_mean(ratios)
            summary[f"{mode}: least ratio to {peer}"] = min(ratios)
        summary[f"all: geomean ratio to {peer}"] = geometric_mean(row.ratio(peer) for row in rows)
        summary[f"all: least ratio to {peer}"] = min(row.ratio(peer) for row in rows)
    summary["all: geomean fraction of the limit"] = geometric_mean(row.fraction for row in rows)
    summary["all: largest error"] = max(max(row.errors[OURS]) for row in rows)
    return summary
