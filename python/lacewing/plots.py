"""Pictures of sparse tensors."""

from __future__ import annotations

from typing import Any

from .tensor import SparseTensor

_DOTS = 100_000  # beyond it, a picture of counts: dots would only cover each other


def spy(sparse: SparseTensor, axes: Any = None, *, pixels: int = 256, **style: Any) -> Any:
    """Draws where a matrix has entries, coloured by their size; gives matplotlib's axes.

    A vector is one row, blocks of one sparse dim are a column. Of more than two dims the first and
    the second are drawn; of more than a hundred thousand entries their number in each of ``pixels`` x ``pixels`` cells.
    ``style`` goes to matplotlib's scatter or imshow.
    """
    import torch
    from matplotlib import pyplot

    indices = sparse.indices().cpu()
    if len(indices) == 0:
        raise ValueError("[lacewing.spy] the tensor has no sparse dim")
    line = torch.zeros_like(indices[0])  # one sparse dim: a row, or a column of blocks
    if len(indices) > 1:
        (rows, columns), places = sparse.shape[:2], indices[:2]
    elif sparse.dim() == 1:
        rows, columns, places = 1, sparse.shape[0], torch.stack([line, indices[0]])
    else:
        rows, columns, places = sparse.shape[0], 1, torch.stack([indices[0], line])
    rows, columns = max(rows, 1), max(columns, 1)  # so that axes have a length
    axes = pyplot.subplots(layout="constrained")[1] if axes is None else axes
    if sparse.nse <= _DOTS:
        values = sparse.values().detach().cpu()
        sizes = values.unsqueeze(-1).flatten(1).to(values.dtype if values.is_complex() else torch.float64).abs()
        style = {"s": max(0.5, min(80.0, 3e4 / max(rows, columns) ** 1.5)), "marker": "s", "linewidths": 0} | style
        drawn = axes.scatter(places[1], places[0], c=sizes.sum(1), **style)
        label = "absolute value"
    else:
        cells = [min(pixels, rows), min(pixels, columns)]
        key = (places[0] * cells[0] // rows) * cells[1] + places[1] * cells[1] // columns
        counts = torch.bincount(key, minlength=cells[0] * cells[1]).reshape(cells)
        edges = (-0.5, columns - 0.5, rows - 0.5, -0.5)
        drawn = axes.imshow(counts, **{"extent": edges, "aspect": "auto", "interpolation": "nearest"} | style)
        label = "entries"
    axes.figure.colorbar(drawn, ax=axes, label=label)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), xlabel="dim 1", ylabel="dim 0")
    axes.set_title(f"{tuple(sparse.shape)}, {sparse.nse} entries")
    return axes
