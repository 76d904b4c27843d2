"""Pictures of the products page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from benchmarks.clebsch_gordan import Terms
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

DEGREE_COLORS = ("#334155", "#0d9488", "#ea580c", "#7c3aed")
BAR_COLORS = ("#0f766e", "#f59e0b", "#94a3b8")
EDGES = (0, 1, 4, 9, 16)
Array = npt.NDArray[np.float64]

plt.rcParams.update({"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False})


def _degree_axis(axis: Axes, cell: int) -> None:
    """Lines between degrees, and their names on both axes."""
    for edge in EDGES[1:-1]:
        axis.axhline(edge * cell - 0.5, color="#94a3b8", linewidth=0.8)
        axis.axvline(edge * cell - 0.5, color="#94a3b8", linewidth=0.8)
    middles = [(low + high) / 2 * cell - 0.5 for low, high in pairwise(EDGES)]
    names = [f"l={k}" for k in range(4)]
    axis.set_xticks(middles, names)
    axis.set_yticks(middles, names)
    axis.tick_params(length=0)
    axis.set(xlabel="index2: row of y", ylabel="index1: row of x")
    axis.spines[:].set_visible(False)


def structure(terms: Terms) -> Figure:
    """Each of the 16 x 16 pairs is a cell of 4 x 4 pixels, one pixel per output row."""
    rows, columns = 4 * terms.index1 + terms.index // 4, 4 * terms.index2 + terms.index % 4
    values, degrees = np.full((64, 64), np.nan), np.full((64, 64), np.nan)
    values[rows, columns] = terms.scale
    degrees[rows, columns] = np.sqrt(terms.index).astype(int)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5), layout="constrained")
    image = left.imshow(values, cmap="RdBu_r", vmin=-0.4, vmax=0.4, interpolation="nearest")
    figure.colorbar(image, ax=left, shrink=0.8, label="coefficient", extend="both")
    left.set_title(f"{len(terms)} terms, coloured by coefficient")
    image = right.imshow(degrees, cmap=ListedColormap(DEGREE_COLORS), vmin=-0.5, vmax=3.5, interpolation="nearest")
    bar = figure.colorbar(image, ax=right, shrink=0.8, ticks=range(4))
    bar.set_ticklabels([f"l={k}" for k in range(4)])
    right.set_title("the same, coloured by the degree of the output")
    for axis in (left, right):
        _degree_axis(axis, 4)
    return figure


def sorted_views(terms: Terms) -> Figure:
    """The sort key of each view as a staircase, the other two indices as dots."""
    names = {"output": terms.index, "index1": terms.index1, "index2": terms.index2}
    orders = {"output": ("index1", "index2"), "index1": ("index2", "output"), "index2": ("output", "index1")}
    titles = {
        "output": "by output: the value",
        "index1": "by index1: gradient of x",
        "index2": "by index2: gradient of y",
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.1), sharey=True, layout="constrained")
    for axis, (key, others) in zip(axes, orders.items(), strict=True):
        order = np.lexsort((names[others[1]], names[others[0]], names[key]))
        position = np.arange(len(terms))
        for other, color in zip(others, ("#ea580c", "#7c3aed"), strict=True):
            axis.plot(position, names[other][order], ".", markersize=2, color=color, label=other)
        axis.fill_between(position, names[key][order], step="mid", color="#0f766e", alpha=0.25)
        axis.step(position, names[key][order], where="mid", color="#0f766e", label=key)
        axis.set(title=titles[key], xlabel="position of the term")
        axis.legend(frameon=False, fontsize=7, loc="upper left", ncols=3, handletextpad=0.3, columnspacing=0.8)
        axis.set_ylim(-0.5, 18.5)
        axis.set_yticks(range(0, 16, 3))
    axes[0].set_ylabel("row")
    return figure


def errors(ops: Sequence[str], series: Mapping[str, Sequence[float]]) -> Figure:
    """Errors against the dense contraction, on a logarithmic scale."""
    figure, axis = plt.subplots(figsize=(10.5, 2.9), layout="constrained")
    for number, (name, values) in enumerate(series.items()):
        height = (number - (len(series) - 1) / 2) * 0.15
        axis.scatter(np.arange(len(ops)) + height, np.maximum(values, 1e-18), s=38, label=name)
    axis.axhline(np.finfo(np.float64).eps, color="#64748b", linewidth=0.8, linestyle="--")
    axis.text(-0.53, np.finfo(np.float64).eps * 0.5, "fp64 epsilon", fontsize=7, color="#64748b")
    axis.set(yscale="log", ylim=(1e-18, 1e-12), ylabel="largest relative error")
    axis.set_xticks(range(len(ops)), ops)
    axis.legend(frameon=False, fontsize=8, ncols=len(series), loc="upper left")
    return figure


def equivariance(angles: Array, rotated_before: Array, rotated_after: Array, error: Array) -> Figure:
    """Outputs of degree 1 and 2 while the inputs turn: rotated before (dots) or after (lines) the product."""
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3), layout="constrained", width_ratios=(2, 2, 1.4))
    for axis, degree in zip(axes, (1, 2), strict=False):
        rows = range(degree**2, (degree + 1) ** 2)
        for row, color in zip(rows, ("#0f766e", "#ea580c", "#7c3aed", "#1d4ed8", "#be123c"), strict=False):
            axis.plot(angles, rotated_after[:, row], color=color, linewidth=1.2)
            axis.plot(angles[::3], rotated_before[::3, row], ".", color=color, markersize=6)
        axis.set(title=f"degree {degree}: lines D z(x, y), dots z(D x, D y)", xlabel="angle of rotation")
    axes[2].semilogy(angles, np.where(error > 0, error, np.nan), color="#334155")
    axes[2].set(title="difference, relative", xlabel="angle of rotation", ylim=(1e-17, 1e-12))
    return figure


def bars(ops: Sequence[str], times: Mapping[str, Sequence[float]], peaks: Mapping[str, Sequence[float]]) -> Figure:
    """Milliseconds and mebibytes of each contender, on logarithmic scales."""
    figure, axes = plt.subplots(2, 1, figsize=(10.5, 5.4), layout="constrained", sharex=True)
    panels = (("time, ms", times), ("peak memory beyond the inputs, MiB", peaks))
    for axis, (label, series) in zip(axes, panels, strict=True):
        width = 0.8 / len(series)
        for number, (name, values) in enumerate(series.items()):
            left = np.arange(len(ops)) + (number - (len(series) - 1) / 2) * width
            drawn = axis.bar(left, values, width * 0.94, label=name, color=BAR_COLORS[number % len(BAR_COLORS)])
            axis.bar_label(drawn, [f"{v:,.0f}" if v >= 100 else f"{v:.2g}" for v in values], fontsize=7, padding=1)
        axis.set(yscale="log", ylabel=label)
        axis.margins(y=0.15)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=len(times), loc="outside upper left")
    axes[1].set_xticks(range(len(ops)), ops)
    return figure
