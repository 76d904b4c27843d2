"""Sparse scale: a constant sparse matrix applied along one dim."""

from __future__ import annotations

from torch import Tensor

from ._library import ops
from ._plan import check_tensor
from .info import SparseScaleInfo, SparseScaleInfos


def sparse_scale(
    input: Tensor, info_fwd: SparseScaleInfo | SparseScaleInfos, info_bwd: SparseScaleInfo | None = None
) -> Tensor:
    """``out[..., m, c] = sum for t in segment m of scale[t] * input[..., index[t], c]``.

    Shapes: (..., M_in, C) -> (..., out_size, C), with any leading dims. Differentiable to any order for the input (by
    S^T: ``info_bwd``, derived once and kept on info_fwd where it is not given) and for ``info_fwd.scale``.
    Deterministic. Both infos may be given as one ``SparseScaleInfos``.
    """
    if isinstance(info_fwd, SparseScaleInfos) and info_bwd is None:
        info_fwd, info_bwd = info_fwd
    if not isinstance(info_fwd, SparseScaleInfo):
        raise TypeError(
            f"[lacewing.sparse_scale] info_fwd must be a SparseScaleInfo, or SparseScaleInfos alone, not "
            f"{type(info_fwd).__name__}"
        )
    if info_bwd is not None and not isinstance(info_bwd, SparseScaleInfo):
        raise TypeError(f"[lacewing.sparse_scale] info_bwd must be a SparseScaleInfo, not {type(info_bwd).__name__}")
    check_tensor("sparse_scale", "input", input)
    in_size = input.shape[-2] if input.dim() >= 2 else 0
    info: SparseScaleInfo = info_fwd._resolved(in_size)
    result: Tensor = ops.sparse_scale(input, info.scale, *info._arguments((info_bwd,), (in_size,), input))
    return result


class SparseScale:
    """``SparseScale.apply`` is ``sparse_scale``."""

    apply = staticmethod(sparse_scale)
