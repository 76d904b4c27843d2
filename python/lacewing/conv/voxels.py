"""From points to voxels: quantisation, merging of duplicates, and the reduction of their features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .._library import ops
from ..info import sparse_scale_infos
from ..scale import sparse_scale

Reduction = Literal["sum", "mean", "first"]


def quantize(points: Tensor, voxel_size: float | Sequence[float], batch: Tensor | int = 0) -> Tensor:
    """``floor(point / voxel_size)`` with the batch index in front: (points, axes) floats to (points, 1 + axes) int32.

    ``batch`` is one index for all points or one per point. Raises ValueError for points that are not finite or whose
    voxel does not fit int32.
    """
    if points.dim() != 2 or not points.is_floating_point():
        raise ValueError(
            f"[lacewing.quantize] points must be floats of shape (points, axes), not {points.dtype} of shape "
            f"{tuple(points.shape)}"
        )
    size = torch.as_tensor(voxel_size, dtype=torch.float64, device=points.device)
    if not bool((size > 0).all()):
        raise ValueError(f"[lacewing.quantize] voxel_size must be positive, not {voxel_size}")
    cells = torch.floor(points.double() / size)
    bad = ~((cells >= -(2.0**31)) & (cells < 2.0**31))
    if bool(bad.any()):
        row = int(bad.any(1).nonzero()[0])
        raise ValueError(f"[lacewing.quantize] points[{row}] = {points[row].tolist()} does not fit an int32 voxel")
    column = torch.as_tensor(batch, dtype=torch.int32, device=points.device).expand(len(points))
    return torch.cat([column[:, None], cells.int()], 1)


def unique_voxels(coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct voxels in sorted order, and for each given row the row of the result that it went to."""
    unique, _, inverse = ops.unique_voxels(coordinates)
    return unique, inverse


def reduce_voxels(
    features: Tensor, coordinates: Tensor, reduction: Reduction = "mean"
) -> tuple[Tensor, Tensor, Tensor]:
    """Merges rows with equal coordinates: ``(features, coordinates, inverse)`` of the distinct voxels, sorted.

    ``"sum"`` and ``"mean"`` add in the order of the rows; ``"first"`` keeps the first row. Differentiable for features.
    """
    if reduction not in ("sum", "mean", "first"):
        raise ValueError(f"[lacewing.reduce_voxels] reduction must be 'sum', 'mean' or 'first', not {reduction!r}")
    if features.dim() != 2 or len(features) != len(coordinates):
        raise ValueError(
            f"[lacewing.reduce_voxels] features of shape {tuple(features.shape)} do not have one row for each of the "
            f"{len(coordinates)} coordinates"
        )
    unique, first, inverse = ops.unique_voxels(coordinates)
    if reduction == "first":
        return features.index_select(0, first), unique, inverse
    rows = torch.arange(len(features), device=features.device)
    fwd, bwd = sparse_scale_infos(inverse, rows, None, len(unique), len(features))
    summed = sparse_scale(features, fwd, bwd)
    if reduction == "mean":
        count = torch.bincount(inverse, minlength=len(unique)).to(features.dtype)
        summed = summed / count[:, None]
    return summed, unique, inverse
