"""Pooling and unpooling over convolution plans, and over the voxels of each batch item."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .._library import ops
from .._plan import check_tensor, check_text, integer
from .plan import ConvolutionPlan, check_plan

PoolMode = Literal["sum", "avg", "max"]


def _check(op: str, features: object, plan: object) -> None:
    check_tensor(op, "features", features)
    check_plan(op, plan)


def sum_pool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """``out[target] = sum of features[source]`` over the plan's pairs. Differentiable to any order; deterministic."""
    return pool(features, plan, "sum")


def avg_pool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """The mean of the source voxels that a target has; 0 where it has none. Differentiable to any order."""
    return pool(features, plan, "avg")


def max_pool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """The largest value of the source voxels that a target has, per channel; 0 where it has none.

    The first of equals in the order of the taps gets the gradient; NaN wins. Differentiable to any order.
    """
    return pool(features, plan, "max")


def max_pool_with_indices(features: Tensor, plan: ConvolutionPlan) -> tuple[Tensor, Tensor]:
    """``max_pool``, and the source row of each entry, -1 where there is none."""
    _check("max_pool", features, plan)
    values, rows = ops.sparse_max_pool(features, plan._array, plan._sizes)
    return values, rows


def pool(features: Tensor, plan: ConvolutionPlan, mode: PoolMode) -> Tensor:
    """One of ``sum_pool``, ``avg_pool`` and ``max_pool``, by name.

    The result has the features' dtype, under autocast too; means of half types are summed and divided in float32.
    """
    _check("pool", features, plan)
    check_text("pool", "mode", mode)
    result: Tensor = ops.sparse_pool(features, plan._array, plan._sizes, mode)
    return result


def unpool(features: Tensor, plan: ConvolutionPlan) -> Tensor:
    """Back along a pooling plan: each source voxel of the plan gets the mean of the targets that it went to.

    Where windows do not overlap (kernel_size = stride) that is the value of its one target.
    """
    return avg_pool(features, check_plan("unpool", plan).transposed())


def max_unpool(features: Tensor, rows: Tensor, plan: ConvolutionPlan) -> Tensor:
    """Back along ``max_pool_with_indices``: each entry goes to the source row it came from; the others are 0.

    Entries of windows that overlap and have the same source are added: it is the transpose of the pooling.

    Raises ValueError for rows that are no source voxels of their target; traced and transformed calls do not look.
    """
    _check("max_unpool", features, plan)
    check_tensor("max_unpool", "rows", rows)
    wrapped = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(rows)
    if not wrapped:
        ops.check_unpool_rows(rows, plan._array, plan._sizes)
    result: Tensor = ops.sparse_max_pool_grad(features, rows, plan._array, plan._sizes)
    return result


def global_pool(features: Tensor, batch: Tensor, batch_size: int, mode: PoolMode = "avg") -> Tensor:
    """(voxels, C) to (batch_size, C): the sum, mean or maximum over the voxels of each batch item; 0 for empty ones."""
    check_tensor("global_pool", "features", features)
    check_tensor("global_pool", "batch", batch)
    check_text("global_pool", "mode", mode)
    result: Tensor = ops.global_pool(features, batch, integer("global_pool", "batch_size", batch_size), mode)
    return result
