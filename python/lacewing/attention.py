"""Attention over the edges of a graph in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ._library import ops
from ._plan import check_tensor, integer
from .formula import Edges
from .tensor import SparseTensor, is_sparse_tensor

__all__ = ["edge_attention", "edges_of"]


def edges_of(sparse: SparseTensor) -> Edges:
    """The entries of a sparse tensor as edges, from columns to rows, in their order; built anew by every call.

    >>> import lacewing
    >>> edges_of(lacewing.sparse_coo_tensor([[0, 1, 1], [2, 0, 1]], torch.ones(3), (2, 3)))
    Edges('@@', edges=3)
    """
    if not is_sparse_tensor(sparse) or sparse.sparse_dim() != 2:
        what = f"of shape {tuple(sparse.shape)}" if isinstance(sparse, Tensor) else type(sparse).__name__
        raise TypeError(
            f"[lacewing.edges_of] sparse must be a sparse tensor with two sparse dims, rows and columns, not {what}"
        )
    rows, columns = sparse.indices()
    return Edges(maps=(columns,), out=rows, batch=(sparse.shape[1],), out_batch=sparse.shape[0])


def edge_attention(
    edges: Edges,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    factor: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    negative_slope: float | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
) -> Tensor:
    """``out[i, h] = sum over edges e from j to i: softmax over the edges of i (logit)[e, h] * v[j, h]``.

    ``logit[e, h] = leaky(factor[e, h] * pair[e, h] + bias[e, h])``, where ``pair[e, h]`` is ``scale * <q[i, h], k[j,
    h]>``, or ``q[i, h] + k[j, h]`` where q and k have no channels (GAT). ``edges`` are ``Edges(maps=(source,),
    out=destination, batch=(columns,), out_batch=rows)``. ``q`` has shape ``([batch], rows, heads, d)`` and ``k``
    ``([batch], columns, heads, d)``, or both without d; ``v`` ``([batch], columns, heads, channels)``; ``factor`` and
    ``bias`` ``(edges,)``, or what broadcasts to ``([batch], edges, heads)``. Returns ``([batch], rows, heads,
    channels)``. Rows without edges, or whose logits are all -inf, give zeros.

    ``scale`` is that of dot products, ``1 / sqrt(d)`` where it is not given. ``negative_slope`` is that of leaky ReLU:
    0.2 without channels of q and k, else 1, which is none. ``dropout`` is that of the softmax's weights; which of them
    go depends on ``seed``, edge and head alone; without a seed it is drawn from torch's generator.

    dtype: ``torch.result_type`` of the operands; float16 and bfloat16 accumulate in float32. Differentiable to any
    order for q, k, v, factor and bias. Allocates, beside its results, one number for each row and head and, for float16
    and bfloat16 on the CPU, the operands in float32; on CUDA also a workspace of at most one part of a row's sums for
    each 256 edges. Derivatives beyond the first, and forward mode, hold edges x heads numbers. Deterministic: the same
    bits for every run and every number of threads. Raises RuntimeError or TypeError with one sentence for what does not
    fit.

    >>> edges = Edges(maps=([0, 1, 2, 2],), out=[0, 0, 1, 2], batch=(3,), out_batch=3)
    >>> edge_attention(edges, torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8, 16)).shape
    torch.Size([3, 8, 16])
    """
    op = "edge_attention"
    if not isinstance(edges, Edges):
        raise TypeError(f"[lacewing.{op}] edges must be Edges, not {type(edges).__name__}")
    for name, value in (("q", q), ("k", k), ("v", v)):
        check_tensor(op, name, value)
    for name, numbers in (("factor", factor), ("bias", bias)):
        if numbers is not None:
            check_tensor(op, name, numbers)
    if seed is not None and not isinstance(seed, Tensor):
        seed = torch.full((), integer(op, "seed", seed), dtype=torch.int64, device=v.device)
    result: Tensor = ops.edge_attention(
        q, k, v, factor, bias, seed, edges.array, edges.sizes, edges.maps, scale, negative_slope, dropout
    )
    return result
