"""Pictures of a workload: ratios, fraction of the limit, memory, and growth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Row
from benchmarks.growth import Growth
from benchmarks.registry import Outcome, Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0f766e", "#c2410c", "#6d28d9", "#1d4ed8", "#a16207", "#be123c", "#4d7c0f")


def draw(workload: Workload, outcome: Outcome, kind: str, folder: Path) -> list[str]:
    """Writes the pictures that the outcome allows and returns their file names."""
    figures = {}
    if outcome.rows:
        figures["rows"] = _rows_figure(outcome.rows, workload.title)
    if outcome.growths:
        figures["growth"] = _growth_figure(outcome.growths, workload.title)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for part, figure in figures.items():
        names.append(f"{workload.id.lower()}_{kind}_{part}.svg")
        figure.savefig(folder / names[-1], metadata={"Date": None})
    return names


def _subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[list[Axes]]]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "lacewing", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes.tolist()


def grouped_bars(axis: Axes, labels: Sequence[str], series: dict[str, Sequence[float]], first_color: int = 0) -> None:
    """Bars side by side, one colour per series; missing values are nan."""
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        left = [k - 0.4 + (number + 0.5) * width for k in range(len(labels))]
        axis.bar(left, values, width, label=name, color=COLORS[(first_color + number) % len(COLORS)])
    axis.set_xticks(range(len(labels)), labels, rotation=30, ha="right")


def _rows_figure(rows: Sequence[Row], title: str) -> Figure:
    modes = list(dict.fromkeys(row.mode for row in rows))
    figure, axes = _subplots(3, len(modes), (5.5 * len(modes), 9))
    figure.suptitle(title)
    for column, mode in enumerate(modes):
        group = [row for row in rows if row.mode == mode]
        labels = [row.name for row in group]
        peers = list(dict.fromkeys(peer for row in group for peer in row.peers))
        names = list(dict.fromkeys(name for row in group for name in row.timings))
        ratio, fraction, memory = (axes[k][column] for k in range(3))
        nan = float("nan")
        grouped_bars(ratio, labels, {p: [r.ratio(p) if p in r.timings else nan for r in group] for p in peers}, 1)
        ratio.set(title=mode, ylabel="times faster than", yscale="log")
        ratio.axhline(1, color="#334155", linewidth=0.8)
        grouped_bars(fraction, labels, {"lacewing": [r.fraction for r in group]})
        fraction.set(ylabel="fraction of measured limit")
        grouped_bars(memory, labels, {n: [r.peaks.get(n, 0) / 2**20 or nan for r in group] for n in names})
        memory.set(ylabel="peak memory, MiB", yscale="log")
    handles, labels = axes[2][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=len(labels), loc="outside lower center")
    return figure


def _growth_figure(growths: Sequence[Growth], title: str) -> Figure:
    modes = list(dict.fromkeys(g.mode for g in growths))
    axes_names = list(dict.fromkeys(g.axis for g in growths))
    figure, axes = _subplots(len(modes), len(axes_names), (4 * len(axes_names), 3.6 * len(modes)))
    figure.suptitle(f"{title}: time (lines) and the least the limits allow (dotted)")
    for row, mode in enumerate(modes):
        for column, name in enumerate(axes_names):
            axis = axes[row][column]
            for number, g in enumerate(g for g in growths if (g.mode, g.axis) == (mode, name)):
                sizes, color = [p.size for p in g.points], COLORS[number % len(COLORS)]
                axis.plot(sizes, [p.timing.median for p in g.points], "o-", markersize=3, color=color, label=g.name)
                axis.plot(sizes, [p.least_s for p in g.points], ":", color=color)
            axis.set(xscale="log", yscale="log", xlabel=name, ylabel="seconds", title=mode)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=len(labels), loc="outside lower center")
    return figure
