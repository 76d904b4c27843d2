"""Pooling and unpooling over convolution plans, and over the voxels of each batch item."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .._library import ops
from ..info import sparse_scale_infos
from ..scale import sparse_scale
from .functional import sparse_conv
from .plan import ConvolutionPlan

PoolMode = Literal["sum", "avg", "max"]


def sum_pool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """``out[target] = sum of features[source]`` over the plan's pairs: a depthwise convolution with ones.

    Differentiable to any order; deterministic.
    """
    ones = features.new_ones(plan.taps, features.shape[-1], 1, 1)
    return sparse_conv(features, ones, plan)


def pair_counts(plan: ConvolutionPlan) -> Tensor:
    """(target voxels,): how many pairs each target has, in int64."""
    begin = 0 if plan.is_transposed else plan.pair_count
    targets = plan._array[begin : begin + plan.pair_count]
    return torch.bincount(targets, minlength=len(plan.target))


def avg_pool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """The mean of the source voxels that a target has; 0 where it has none. Differentiable to any order."""
    return sum_pool(features, plan) / pair_counts(plan).clamp_min(1).to(features.dtype)[:, None]


def max_pool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """The largest value of the source voxels that a target has, per channel; 0 where it has none.

    The first of equals in the order of the taps gets the gradient; NaN wins. Differentiable to any order.
    """
    return max_pool_with_indices(features, plan)[0]


def max_pool_with_indices(features: Tensor, plan: ConvolutionPlan) -> tuple[Tensor, Tensor]:
    """``max_pool``, and the source row of each entry, -1 where there is none."""
    values, rows = ops.sparse_max_pool(features, plan._array, plan._meta)
    return values, rows


def pool(features: Tensor, plan: ConvolutionPlan, mode: PoolMode) -> Tensor:
    """One of ``sum_pool``, ``avg_pool`` and ``max_pool``, by name."""
    functions = {"sum": sum_pool, "avg": avg_pool, "max": max_pool}
    if mode not in functions:
        raise ValueError(f"[lacewing.pool] mode must be 'sum', 'avg' or 'max', not {mode!r}")
    return functions[mode](features, plan)


def unpool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """Back along a pooling plan: each source voxel of the plan gets the mean of the targets that it went to.

    Where windows do not overlap (kernel_size = stride) that is the value of its one target.
    """
    return avg_pool(features, plan.transposed())


def max_unpool(features: Tensor, rows: Tensor, plan: ConvolutionPlan) -> Tensor:
    """Back along ``max_pool_with_indices``: each entry goes to the source row it came from; the others are 0."""
    result: Tensor = ops.sparse_max_pool_grad(features, rows, plan._array, plan._meta)
    return result


def global_pool(features: Tensor, batch: Tensor, batch_size: int, mode: PoolMode = "avg") -> Tensor:
    """(voxels, C) to (batch_size, C): the sum, mean or maximum over the voxels of each batch item; 0 for empty ones."""
    if mode not in ("sum", "avg", "max"):
        raise ValueError(f"[lacewing.global_pool] mode must be 'sum', 'avg' or 'max', not {mode!r}")
    items = batch.long()
    if len(items) != len(features):
        raise ValueError(f"[lacewing.global_pool] {len(features)} rows of features have {len(items)} batch indices")
    if mode == "max":
        empty = features.new_zeros(batch_size, features.shape[1])
        index = items[:, None].expand_as(features)
        return empty.scatter_reduce(0, index, features, "amax", include_self=False)
    rows = torch.arange(len(items), device=items.device)
    fwd, bwd = sparse_scale_infos(items, rows, None, batch_size, len(items))
    total = sparse_scale(features, fwd, bwd)
    if mode == "sum":
        return total
    return total / torch.bincount(items, minlength=batch_size).clamp_min(1).to(features.dtype)[:, None]
