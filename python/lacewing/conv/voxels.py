"""From points to voxels: quantisation, merging of duplicates, and the reduction of their features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, SupportsFloat

import torch
from torch import Tensor

from .._library import ops
from .._plan import check_tensor, check_text

Reduction = Literal["sum", "mean", "first"]


def _numbers(voxel_size: SupportsFloat | Sequence[SupportsFloat], axes: int) -> list[float]:
    """One float per axis; a single one is for all."""
    try:
        if isinstance(voxel_size, SupportsFloat) and getattr(voxel_size, "ndim", 0) == 0:
            return [float(voxel_size)] * axes
        return [float(v) for v in voxel_size]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise TypeError(f"[lacewing.quantize] voxel_size must hold numbers, not {voxel_size!r}") from None


def quantize(points: Tensor, voxel_size: SupportsFloat | Sequence[SupportsFloat], batch: Tensor | int = 0) -> Tensor:
    """``floor(point / voxel_size)`` with the batch index in front: (points, axes) floats to (points, 1 + axes) int32.

    ``batch`` is one index for all points or one per point. Raises ValueError for points that are not finite or whose
    voxel does not fit int32, and for batch indices that are negative or do not fit.
    """
    check_tensor("quantize", "points", points)
    axes = points.shape[1] if points.dim() == 2 else 0  # of another rank: the op says so
    sizes = _numbers(voxel_size, axes)
    try:
        items = torch.as_tensor(batch, device=points.device)
    except (TypeError, RuntimeError, ValueError):
        raise TypeError(f"[lacewing.quantize] batch must be an integer or a tensor, not {batch!r}") from None
    result: Tensor = ops.quantize(points, sizes, items)
    return result


def unique_voxels(coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct voxels in sorted order, and for each given row the row of the result that it went to."""
    check_tensor("unique_voxels", "coordinates", coordinates)
    if coordinates.device.type == "meta":
        raise ValueError(
            "[lacewing.unique_voxels] coordinates on the meta device have no values, by which voxels are told apart"
        )
    unique, _, inverse = ops.unique_voxels(coordinates)
    return unique, inverse


def reduce_voxels(
    features: Tensor, coordinates: Tensor, reduction: Reduction = "mean"
) -> tuple[Tensor, Tensor, Tensor]:
    """Merges rows with equal coordinates: ``(features, coordinates, inverse)`` of the distinct voxels, sorted.

    ``"sum"`` and ``"mean"`` add in the order of the rows (means of half types in float32); ``"first"`` keeps the first
    row. Differentiable for features.
    """
    check_tensor("reduce_voxels", "features", features)
    check_tensor("reduce_voxels", "coordinates", coordinates)
    check_text("reduce_voxels", "reduction", reduction)
    merged, unique, inverse = ops.reduce_voxels(features, coordinates, reduction)
    return merged, unique, inverse
