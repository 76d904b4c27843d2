"""Sparse scale: a constant sparse matrix applied along one dim."""

from __future__ import annotations

import torch
from torch import Tensor

from ._library import ops
from ._plan import arguments, check_tensor, needs_grad
from .info import SparseScaleInfo


def sparse_scale(input: Tensor, info_fwd: SparseScaleInfo, info_bwd: SparseScaleInfo | None = None) -> Tensor:
    """``out[..., m, c] = sum for t in segment m of scale[t] * input[..., index[t], c]``.

    Shapes: (..., M_in, C) -> (..., out_size, C), with any leading dims. Differentiable to any order for the input (by
    S^T: ``info_bwd``, derived once and kept on info_fwd where it is not given) and for ``info_fwd.scale``.
    Deterministic.
    """
    if not isinstance(info_fwd, SparseScaleInfo):
        raise TypeError(f"[lacewing.sparse_scale] info_fwd must be a SparseScaleInfo, not {type(info_fwd).__name__}")
    if info_bwd is not None and not isinstance(info_bwd, SparseScaleInfo):
        raise TypeError(f"[lacewing.sparse_scale] info_bwd must be a SparseScaleInfo, not {type(info_bwd).__name__}")
    check_tensor("sparse_scale", "input", input)
    in_size = input.shape[-2] if input.dim() >= 2 else 0
    info_fwd = info_fwd._resolved(in_size)
    plan = info_fwd._plan
    bwd = None if info_bwd is None else info_bwd._plan
    if bwd is not None and not bwd.serves(plan, 1, info_fwd.scale is not None):
        bwd = None
    derives = bwd is None and needs_grad(input, info_fwd.scale)
    if torch.compiler.is_compiling():
        derives = derives and isinstance(in_size, int) and (in_size,) in info_fwd._derived
    if derives and plan.fits(in_size):
        bwd = info_fwd._backward_plan(int(in_size))
    result: Tensor = ops.sparse_scale(input, info_fwd.scale, *arguments(plan, bwd))
    return result


class SparseScale:
    """``SparseScale.apply`` is ``sparse_scale``."""

    apply = staticmethod(sparse_scale)
