"""The loss curve, and a scan with the classes that were found."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from lacewing.conv import CLASSES
from street_segmentation.training import Scene

COLOURS = ListedColormap(["#94a3b8", "#ea580c", "#7c3aed", "#334155", "#0d9488"])


def loss_curve(losses: Sequence[float], window: int = 10) -> Figure:
    """The loss of each step, and its mean over a window."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    values = torch.tensor(losses)
    axes.plot(values, color="#cbd5e1", linewidth=0.8)
    if len(values) >= window:
        axes.plot(range(window - 1, len(values)), values.unfold(0, window, 1).mean(1), color="#0f766e")
    axes.set(xlabel="step, one scan each", ylabel="cross entropy", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def labelled(scene: Scene, found: Tensor) -> Figure:
    """The scan from above with the classes found, and with those it has."""
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    for axes, classes, title in zip(figure.subplots(1, 2), (found, scene.classes), ("found", "true"), strict=True):
        x, y = scene.points[:, 0].numpy(), scene.points[:, 1].numpy()
        dots = axes.scatter(x, y, c=classes.numpy(), cmap=COLOURS, vmin=-0.5, vmax=4.5, s=0.4, linewidths=0)
        axes.set(xlim=(-40, 40), ylim=(-40, 40), aspect="equal", title=title)
    bar = figure.colorbar(dots, ax=figure.axes, ticks=range(len(CLASSES)))
    bar.ax.set_yticklabels(CLASSES)
    return figure
