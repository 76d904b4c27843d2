"""Learning curves and spike rasters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from evidence_accumulation.evidence import Run, trials

COLOURS = {"d-rtrl": "#0f766e", "pp-prop": "#b45309", "bptt": "#1e293b", "readout-only": "#94a3b8"}


def learning_curves(runs: Sequence[Run]) -> Figure:
    """The moving average of the batch accuracy over updates, one line per run."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        first = next(r for r in runs if r.algorithm == run.algorithm)
        axes.plot(run.ema, color=COLOURS[run.algorithm], alpha=0.8, label=run.algorithm if run is first else None)
    axes.axhline(0.95, color="#cbd5e1", linewidth=1, zorder=0)
    axes.set(xlabel="update", ylabel="accuracy, moving average", ylim=(0.4, 1.01))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def raster(run: Run, config: dict[str, Any], device: str = "cpu") -> Figure:
    """Input and network spikes of one trial, and the readout over time."""
    assert run.executor is not None
    assert run.readout is not None
    xs, labels = trials({**config, "batch": 1}, torch.Generator().manual_seed(7))
    run.executor.reset_state()
    spikes, logits = [], []
    for x in xs.to(device):
        h = run.executor.step(x)
        spikes.append(run.executor.output(h).detach()[0].cpu())
        logits.append(run.readout(h[..., -1]).detach().softmax(-1)[0, 1].cpu())
    run.executor.reset_state()
    figure = Figure(figsize=(8, 6), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2, 4, 1.4])
    for axes, events, name in ((top, xs[:, 0], "input"), (middle, torch.stack(spikes), "neuron")):
        time, index = events.nonzero(as_tuple=True)
        axes.scatter(time, index, s=2.5, color="#1e293b", linewidths=0)
        axes.set_ylabel(name)
    for edge in range(1, config["groups"]):
        top.axhline(edge * config["channels_per_group"] - 0.5, color="#cbd5e1", linewidth=0.8)
    middle.axhline(config["neurons"] * (1 - config["adaptive_fraction"]) - 0.5, color="#cbd5e1", linewidth=0.8)
    bottom.plot(torch.stack(logits), color=COLOURS[run.algorithm])
    bottom.axvspan(len(xs) - config["response"], len(xs), color="#ccfbf1", zorder=0)
    side = "right" if labels.item() == 1 else "left"
    bottom.set(ylim=(0, 1), ylabel="P(right)", xlabel=f"step; the answer is {side}")
    return figure
