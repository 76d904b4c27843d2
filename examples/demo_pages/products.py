"""Sparse products: a Clebsch-Gordan product drawn, its law checked, its cost beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.case import OURS, Context, Row, geometric_mean, run_case
from benchmarks.checking import max_relative_error
from benchmarks.clebsch_gordan import block_wigner_d, product_terms
from benchmarks.costs import OPS
from benchmarks.limits import Limits
from benchmarks.peers.torch_products import Rows, dense_coefficients, dense_product
from benchmarks.products import LMAX, build_infos, clebsch_gordan_triples, input_maker, ours
from benchmarks.report import duration, size_text
from benchmarks.timing import Schedule
from benchmarks.workloads.p1_products import COMPOSITION, DENSE, product_case
from torch import Tensor

import lacewing
from demo_pages import html
from demo_pages import products_figures as figures
from demo_pages.registry import Page, Section, Step, page

CPU = torch.device("cpu")
CHECKS = ("value", "gradient of x", "gradient of y", "Hessian-vector product")
LABELS = {OURS: "Lacewing", COMPOSITION: "torch: index_select, op, index_add", DENSE: "torch: dense einsum"}
BATCH, CHANNELS = 64, 32
SCHEDULE = Schedule(repeats=9, least_repeats=3, budget_s=4.0, sample_s=0.01)

EXAMPLE = """
infos = lacewing.sparse_product_infos(index1, index2, index, scale, 16, 16, 16)
z = lacewing.sparse_mul(x, y, infos)               # x, y, z: (N, 16, C); differentiable to any order
"""


@page("products", "Sparse products", steps=2 + 2 * len(OPS) + 1)
def make(step: Step) -> Page:
    """Draws, checks and times the product of all degrees up to 3."""
    drawing = _structure(step)
    law, worst = _law(step)
    symmetry, asymmetry = _equivariance(step)
    cost, rows = _cost(step)
    return Page(
        summary="z[M] = sum over t of s[t] x[i1[t]] o y[i2[t]], for seven dense products o: one call, "
        "with gradients of any order that are such calls again.",
        facts={
            "terms drawn and checked": f"{len(product_terms(LMAX))}",
            "largest error of values, gradients, Hessians": f"{worst:.1e}",
            "largest break of rotation symmetry": f"{asymmetry:.1e}",
            "times faster than index_select, op, index_add": f"{_mean_ratio(rows, COMPOSITION):.1f}",
            "times faster than dense einsum": f"{_mean_ratio(rows, DENSE):.1f}",
        },
        sections=[drawing, law, symmetry, cost],
    )


def _mean_ratio(rows: list[Row], peer: str) -> float:
    return geometric_mean(row.ratio(peer) for row in rows)


def _structure(step: Step) -> Section:
    terms = product_terms(LMAX)
    step("drawing the terms")
    structure = html.picture(
        figures.structure(terms),
        "Each of the 16 x 16 operand pairs is a small square of 4 x 4 pixels, one pixel per output row; white is zero.",
    )
    step("drawing the sorted views")
    views = html.picture(
        figures.sorted_views(terms),
        "The same terms sorted three ways: contiguous segments for the value and for each gradient.",
    )
    share = len(terms) / terms.size**3
    text = (
        "Two signals on the sphere with degrees 0 to 3 have 16 rows each. Their equivariant product has "
        f"{len(terms.paths)} paths (l1, l2, l3) and {len(terms)} nonzero Clebsch-Gordan coefficients: {share:.0%} of "
        "the dense 16 x 16 x 16 tensor."
    )
    return Section("The structure of a Clebsch-Gordan product", text, [html.code(EXAMPLE), structure, views])


def derivatives(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, v: Tensor, w: Tensor
) -> list[Tensor]:
    """Value, both gradients and both parts of the Hessian-vector product of sum(z * z) / 2 at (x, y) along (v, w)."""
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    z = product(x, y)
    gradients = torch.autograd.grad(z.square().sum() / 2, (x, y), create_graph=True)
    along = (gradients[0] * v).sum() + (gradients[1] * w).sum()
    return [t.detach() for t in (z, *gradients, *torch.autograd.grad(along, (x, y)))]


def _errors(op: str, rows: Rows, infos: tuple[Any, Any, Any], coefficients: Tensor) -> list[float]:
    """Errors of our value, gradients and Hessian-vector product."""
    function = getattr(lacewing, f"sparse_{op}")
    point, direction = (input_maker(op, 4, 8, rows, CPU, False)(seed) for seed in (0, 1))
    arguments = [t.double() for t in (point.x, point.y, direction.x, direction.y)]
    got = derivatives(lambda x, y: function(x, y, *infos), *arguments)
    want = derivatives(lambda x, y: dense_product(op, x, y, coefficients), *arguments)
    found = [max_relative_error(a, b) for a, b in zip(got, want, strict=True)]
    return [*found[:3], max(found[3:])]


def _law(step: Step) -> tuple[Section, float]:
    triples = clebsch_gordan_triples(CPU, torch.float64)
    infos = build_infos(triples)
    coefficients = dense_coefficients(triples, torch.float64)
    rows = []
    for op in OPS:
        step(f"checking {op}")
        rows.append(_errors(op, triples.rows, infos, coefficients))
    series = {name: [row[k] for row in rows] for k, name in enumerate(CHECKS)}
    picture = html.picture(
        figures.errors(OPS, series), "Largest difference from the dense contraction, relative, in fp64."
    )
    table = html.table(["op", *CHECKS], [[op, *(f"{e:.1e}" for e in row)] for op, row in zip(OPS, rows, strict=True)])
    text = (
        "Every op against two dense einsums over the full coefficient tensor, in fp64: the value, the gradients of "
        "sum(z * z) / 2 for both operands, and its Hessian along a random direction."
    )
    return Section("The law, checked", text, [picture, table]), max(max(row) for row in rows)


def _equivariance(step: Step) -> tuple[Section, float]:
    step("rotating")
    triples = clebsch_gordan_triples(CPU, torch.float64)
    infos = build_infos(triples)
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(1, 16, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    z = lacewing.sparse_mul(x, y, *infos)
    axis = np.array([1.0, 2.0, -0.5]) / np.linalg.norm([1.0, 2.0, -0.5])
    angles = np.linspace(0, 2 * np.pi, 97)
    turns = torch.from_numpy(np.stack([block_wigner_d(LMAX, angle * axis) for angle in angles]))
    before = lacewing.sparse_mul(turns @ x, turns @ y, *infos)[..., 0].numpy()
    after = (turns @ z)[..., 0].numpy()
    error = np.abs(before - after).max(axis=1) / np.abs(after).max()
    picture = html.picture(
        figures.equivariance(angles, before, after, error),
        "Inputs rotated, then multiplied (dots); multiplied, then rotated (lines).",
    )
    text = (
        "Rotating both inputs and multiplying gives what multiplying and rotating the output gives: the product is "
        f"equivariant. Largest difference over {len(angles)} rotations about one axis: {error.max():.1e}."
    )
    return Section("Turning the inputs turns the output", text, [picture]), float(error.max())


def _cost(step: Step) -> tuple[Section, list[Row]]:
    triples = clebsch_gordan_triples(CPU)
    infos = build_infos(triples)
    # No limits here: the page shows times and memory, not fractions of what the machine can do.
    context = Context(CPU, True, Limits(1.0, 1.0), lambda _: None, SCHEDULE)
    rows = []
    for op in OPS:
        step(f"timing {op}")
        rows.append(
            run_case(product_case(op, True, BATCH, CHANNELS, triples, ours(op, infos), context, False), context)
        )
    times = {label: [row.timings[name].median * 1e3 for row in rows] for name, label in LABELS.items()}
    peaks = {label: [row.peaks[name] / 2**20 for row in rows] for name, label in LABELS.items()}
    picture = html.picture(
        figures.bars(OPS, times, peaks), "Forward and backward; lower is better; logarithmic scales."
    )
    head = [
        "op",
        "Lacewing",
        "index_select, op, index_add",
        "times faster",
        "dense einsum",
        "times faster",
        "memory",
        "composition's",
    ]
    lines = []
    for row in rows:
        cells = [row.name, duration(row.timings[OURS].median)]
        for peer in (COMPOSITION, DENSE):
            cells += [duration(row.timings[peer].median), f"{row.ratio(peer):.1f}"]
        lines.append([*cells, size_text(row.peaks[OURS]), size_text(row.peaks[COMPOSITION])])
    text = (
        f"Value and both gradients for N = {BATCH}, C = {CHANNELS}, fp32, {torch.get_num_threads()} threads, measured "
        "in turn on the same data in this run, a few repeats each; make bench does the same at full size."
    )
    return Section("Time and memory beside torch", text, [picture, html.table(head, lines)]), rows
