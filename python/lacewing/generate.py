"""Tensors from few numbers: random sparse ones, identities, diagonals; strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ._library import ops
from ._tensor_arguments import sizes_of
from .tensor import SparseTensor, sparse_coo_tensor


def random(
    size: Sequence[int],
    density: float | None = None,
    nse: int | None = None,
    *,
    sparse_dims: int | None = None,
    sampler: Callable[..., Tensor] = torch.rand,
    fill_value: object = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """A sparse tensor with entries at distinct random places, ``nse`` of them or a share ``density``.

    The leading ``sparse_dims`` dims are sparse, all by default. ``sampler(shape, dtype=, device=, generator=)`` draws
    the values, uniform in [0, 1) by default. The places take memory in proportion to the entries, not to the size.
    """
    size = sizes_of("random", "size", size)
    if nse is not None:
        (nse,) = sizes_of("random", "(nse,)", (nse,))
    count = len(size) if sparse_dims is None else sparse_dims
    if not 0 <= count <= len(size):
        raise ValueError(f"[lacewing.random] sparse_dims must lie between 0 and {len(size)}, not {count}")
    numel = 1
    for s in size[:count]:
        numel *= s
    if (density is None) == (nse is None):
        raise ValueError("[lacewing.random] give one of density and nse")
    if density is not None and not 0 <= density <= 1:
        raise ValueError(f"[lacewing.random] density must lie between 0 and 1, not {density}")
    entries = round(numel * density) if density is not None else nse or 0
    if not 0 <= entries <= numel:
        raise ValueError(f"[lacewing.random] nse must lie between 0 and the {numel} places, not {entries}")
    (entries,) = sizes_of("random", "(entries,)", (entries,))
    indices = ops.random_indices(list(size[:count]), entries, device, generator)
    shape = (entries, *size[count:])
    values = sampler(shape, dtype=dtype, device=device, generator=generator)
    return sparse_coo_tensor(indices, values, size, fill_value, requires_grad=requires_grad)


def eye(
    rows: int, columns: int | None = None, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> SparseTensor:
    """The matrix with ones on its diagonal."""
    size = sizes_of("eye", "size", (rows, rows if columns is None else columns))
    if min(size) < 0:
        raise ValueError(f"[lacewing.eye] rows and columns must not be negative, not {tuple(size)}")
    return diags([torch.ones(min(size), dtype=dtype, device=device)], [0], size)


def diags(
    diagonals: Tensor | Sequence[Tensor | Sequence[float]],
    offsets: int | Sequence[int] = 0,
    size: Sequence[int] | None = None,
) -> SparseTensor:
    """The matrix with these diagonals: offset 0 is the main one, k > 0 lies above it, k < 0 below.

    A diagonal of one number is repeated. Without ``size`` the matrix is square and fits the longest diagonal.
    Differentiable in the diagonals; those of one offset add.
    """
    lines = [diagonals] if isinstance(offsets, int) else list(diagonals)
    steps = [offsets] if isinstance(offsets, int) else sizes_of("diags", "offsets", offsets)
    if len(lines) != len(steps):
        raise ValueError(f"[lacewing.diags] {len(lines)} diagonals need as many offsets, not {len(steps)}")
    tensors = [torch.as_tensor(line) for line in lines]
    return SparseTensor(ops.sparse_diags(tensors, steps, None if size is None else sizes_of("diags", "size", size)))


def strided(strides: Sequence[int], values: Tensor, shape: Sequence[int]) -> Tensor:
    """The strided tensor whose element I is element number ``sum(strides * I)`` of ``values``; it is a view.

    ``values`` are contiguous or a vector; an element that would lie outside of them is refused. Differentiable.
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"[lacewing.strided] values must be a tensor, not a {type(values).__name__}")
    result: Tensor = ops.strided(sizes_of("strided", "strides", strides), values, sizes_of("strided", "shape", shape))
    return result


def contiguous_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dims, outermost first, in whose order a strided array is C-contiguous; None where it is in no order.

    ``torch.as_strided(values, shape, strides).permute(contiguous_order(shape, strides))`` is contiguous. Dims of size 1
    stay at their places.
    """
    op = "contiguous_order"
    order = ops.contiguous_order(sizes_of(op, "shape", shape), sizes_of(op, "strides", strides))
    return None if order is None else tuple(order)
