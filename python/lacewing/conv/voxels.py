"""From points to voxels: quantisation, merging of duplicates, and the reduction of their features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .._library import ops

Reduction = Literal["sum", "mean", "first"]


def quantize(points: Tensor, voxel_size: float | Sequence[float], batch: Tensor | int = 0) -> Tensor:
    """``floor(point / voxel_size)`` with the batch index in front: (points, axes) floats to (points, 1 + axes) int32.

    ``batch`` is one index for all points or one per point. Raises ValueError for points that are not finite or whose
    voxel does not fit int32.
    """
    sizes = [float(voxel_size)] * points.shape[-1] if isinstance(voxel_size, int | float) else voxel_size
    items = torch.as_tensor(batch, device=points.device)
    result: Tensor = ops.quantize(points, sizes, items)
    return result


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
    merged, unique, inverse = ops.reduce_voxels(features, coordinates, reduction)
    return merged, unique, inverse
