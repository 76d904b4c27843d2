"""Sparse convolution: a scan, its kernel map, the law, and its cost beside gather-GEMM-scatter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from benchmarks.report import duration
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from demo_pages import html
from demo_pages.registry import Page, Section, Step, page
from lacewing.conv import CLASSES, ConvolutionPlan, quantize, sparse_conv, synthetic_scan, unique_voxels

COLORS = ListedColormap(["#94a3b8", "#ea580c", "#7c3aed", "#334155", "#0d9488"])
CHANNELS = [(4, 32), (16, 16), (32, 32), (64, 64)]
EXAMPLE = """
voxels, _ = unique_voxels(quantize(points, 0.05))
plan = ConvolutionPlan.build(voxels, kernel_size=3)          # once
out = sparse_conv(features, weight, plan)                    # any number of times; differentiable to any order
"""


@page("convolution", "Sparse convolution", steps=3 + len(CHANNELS))
def make(step: Step) -> Page:
    """Draws a generated scan, checks a layer against dense convolution, and times it."""
    step("drawing a scan")
    points, classes = synthetic_scan(seed=1)
    voxels, _ = unique_voxels(quantize(points[:, :3], 0.05))
    scan = html.picture(_scan(points, classes), "A generated scan from above, coloured by class; axes in metres.")
    step("building plans")
    plan = ConvolutionPlan.build(voxels, 3)
    build = _median(lambda: ConvolutionPlan.build(voxels, 3))
    taps = html.picture(_taps(plan), "Pairs under each of the 27 taps, one square for each step on the first axis.")
    step("checking a layer")
    error = _dense_error()
    rows = []
    for cin, cout in CHANNELS:
        step(f"timing {cin} to {cout}")
        rows.append(_timed(plan, cin, cout))
    fastest = max(r[2] / r[1] for r in rows)
    return Page(
        summary="Point clouds in 1 to 4 dimensions: a plan finds the pairs of voxels once; layers, gradients, "
        "transposed layers and pooling run on it.",
        facts={
            "voxels of a scan": f"{len(voxels):,}",
            "pairs found": f"{plan.pair_count:,}",
            "time to build the plan": duration(build),
            "largest error against dense convolution": f"{error:.1e}",
            "times faster than gather-GEMM-scatter, up to": f"{fastest:.1f}",
        },
        sections=[
            Section(
                "A scan and its plan",
                f"{len(points):,} points fall into {len(voxels):,} voxels of 5 cm. Voxels are sorted once; under each "
                f"tap the pairs then come from one pass of two pointers: {plan.pair_count:,} pairs, "
                f"{plan.pair_count / len(voxels):.1f} of 27 neighbours.",
                [html.code(EXAMPLE), scan, taps],
            ),
            Section(
                "The same as dense convolution",
                f"A 3x3x3 layer with groups on random voxels, value and gradients, against torch's conv3d in double "
                f"precision: the largest relative difference is {error:.1e}.",
            ),
            Section(
                "Time of a layer",
                f"Forward, fp32, {torch.get_num_threads()} threads, a few repeats each; make bench does the same at "
                "full size with gradients and peers.",
                [
                    html.table(
                        ["channels", "Lacewing", "gather-GEMM-scatter", "times faster"],
                        [[name, duration(a), duration(b), f"{b / a:.1f}"] for name, a, b in rows],
                    )
                ],
            ),
        ],
    )


def _scan(points: Tensor, classes: Tensor) -> Figure:
    figure, axis = plt.subplots(figsize=(8, 6), layout="constrained")
    x, y = points[:, 0].numpy(), points[:, 1].numpy()
    dots = axis.scatter(x, y, c=classes.numpy(), cmap=COLORS, vmin=-0.5, vmax=4.5, s=0.3, linewidths=0)
    bar = figure.colorbar(dots, ax=axis, ticks=range(len(CLASSES)))
    bar.ax.set_yticklabels(CLASSES)
    axis.set(xlim=(-50, 50), ylim=(-40, 40), aspect="equal")
    return figure


def _taps(plan: ConvolutionPlan) -> Figure:
    counts = torch.tensor([len(plan.pairs(tap)[0]) for tap in range(plan.taps)]).view(3, 3, 3)
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
    for step, axis in enumerate(axes):
        image = axis.imshow(counts[step].numpy(), cmap="viridis", vmin=0, vmax=int(counts[0].max()) * 2)
        axis.set(title=f"step {step - 1:+d}", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, label="pairs", extend="max")
    return figure


def _dense_error() -> float:
    generator = torch.Generator().manual_seed(0)
    cells = torch.randperm(1000, generator=generator)[:400]
    voxels = torch.stack([0 * cells, cells // 100, cells // 10 % 10, cells % 10], 1).int()
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
    x, weight = draw(400, 8), draw(6, 4, 3, 3, 3)
    mine = sparse_conv(x, weight, ConvolutionPlan.build(voxels, 3), layout="user", groups=2)
    at = tuple(voxels.long().unbind(1))
    grid = x.new_zeros(1, 10, 10, 10, 8).index_put(at, x).movedim(-1, 1)
    theirs = torch.nn.functional.conv3d(grid, weight, padding=1, groups=2).movedim(1, -1)[at]
    upstream = torch.randn(mine.shape, generator=generator, dtype=torch.float64)
    results = zip(
        (mine, *torch.autograd.grad(mine, (x, weight), upstream)),
        (theirs, *torch.autograd.grad(theirs, (x, weight), upstream)),
        strict=True,
    )
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in results)


def _timed(plan: ConvolutionPlan, cin: int, cout: int) -> tuple[str, float, float]:
    x, weight = torch.randn(len(plan.source), cin), torch.randn(plan.taps, 1, cin, cout)
    gemm = plan.with_algorithm("gather_gemm_scatter")
    ours, theirs = (_median(lambda p=p: sparse_conv(x, weight, p)) for p in (plan, gemm))  # type: ignore[misc]
    return f"{cin} to {cout}", ours, theirs


def _median(run: Callable[[], object], repeats: int = 7) -> float:
    samples = []
    run()
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)
