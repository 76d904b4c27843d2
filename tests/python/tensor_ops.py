"""The operations of sparse tensors, by name: each takes a 3-D tensor whose dims are all sparse, and gives its results.

One list for the tests of scale (a shape that no memory holds) and of memory (bytes beside inputs and outputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lacewing

Op = Callable[[lacewing.SparseTensor], Any]

UNARY = (
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma",
    "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "i0", "isfinite", "isinf", "isnan", "isneginf",
    "isposinf", "isreal", "lgamma", "log", "log10", "log1p", "log2", "logit", "logical_not", "nan_to_num", "neg",
    "positive", "rad2deg", "reciprocal", "relu", "round", "rsqrt", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc",
    "sinh", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip
BINARY = (
    "add", "atan2", "copysign", "div", "eq", "floor_divide", "fmax", "fmin", "fmod", "ge", "gt", "heaviside", "hypot",
    "le", "logaddexp", "logical_and", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul", "ne", "nextafter",
    "pow", "remainder", "sub", "true_divide", "xlogy",
)  # fmt: skip


def companion(s: lacewing.SparseTensor) -> lacewing.SparseTensor:
    """A coalesced tensor of the same shape with half of its entries elsewhere."""
    i, v = s.indices().clone(), s.values().detach()
    i[2, ::2] = (i[2, ::2] + 1) % s.shape[2]
    return lacewing.sparse_coo_tensor(i, v + 0.25, tuple(s.shape)).coalesce()


def other(s: lacewing.SparseTensor) -> lacewing.SparseTensor:
    """The companion of a tensor, made once."""
    if "_companion" not in s.__dict__:
        s._companion = companion(s)  # type: ignore[attr-defined]
    s._used = True  # type: ignore[attr-defined]
    return s._companion  # type: ignore[attr-defined,no-any-return]


def matrix(s: lacewing.SparseTensor) -> lacewing.SparseTensor:
    """A square matrix of the last dim."""
    n = s.shape[2]
    i = torch.arange(n, device=s.device)
    return lacewing.sparse_coo_tensor(
        torch.stack([i, (3 * i) % n]), torch.ones(n, dtype=s.dtype, device=s.device), (n, n)
    )


def vector(s: lacewing.SparseTensor, dim: int) -> lacewing.SparseTensor:
    """A sparse vector along a dim."""
    n = s.shape[dim]
    i = torch.arange(0, n, max(n // 7, 1), device=s.device).unsqueeze(0)
    return lacewing.sparse_coo_tensor(i, torch.ones(i.shape[1], dtype=s.dtype, device=s.device), (n,))


def undefined(s: lacewing.SparseTensor) -> lacewing.SparseTensor:
    return s.with_fill(lacewing.undefined)


def _assigned(s: lacewing.SparseTensor) -> lacewing.SparseTensor:
    t = s.clone()
    t[3, 4, 5] = 1.0
    return t


def _rows(s: lacewing.SparseTensor) -> torch.Tensor:
    return torch.tensor([5, 0, s.shape[0] - 1, 5], device=s.device)


def ops() -> dict[str, Op]:
    """Every operation, by a name."""
    table: dict[str, Op] = {}
    for name in UNARY:
        table[name] = lambda s, name=name: getattr(torch, name)(s)  # type: ignore[misc]
    for name in BINARY:
        table[name] = lambda s, name=name: getattr(torch, name)(s, other(s))  # type: ignore[misc]
    table |= {
        "add a number": lambda s: s + 1,
        "broadcast a sparse vector": lambda s: s * vector(s, 2).with_fill(1.0),
        "broadcast a strided vector": lambda s: s * torch.ones(s.shape[2], dtype=s.dtype, device=s.device),
        "addcmul": lambda s: torch.addcmul(s, other(s), other(s)),
        "lerp": lambda s: torch.lerp(s, other(s), 0.25),
        "where": lambda s: torch.where(s > 0.5, s, other(s)),
        "clamp": lambda s: s.clamp(0.25, 0.75),
        "to": lambda s: s.to(torch.float16),
        "isclose": lambda s: torch.isclose(s, other(s)),
        "softplus": torch.nn.functional.softplus,
        "gelu": torch.nn.functional.gelu,
        "dropout": lambda s: torch.nn.functional.dropout(s, 0.5),
        "sum": lambda s: s.sum(),
        "sum along a dim": lambda s: s.sum(2),
        "sum along two dims": lambda s: s.sum((0, 2), keepdim=True),
        "mean": lambda s: s.mean(1),
        "prod": lambda s: s.prod(2),
        "amax": lambda s: s.amax(2),
        "amin": lambda s: s.amin((1, 2)),
        "max": lambda s: s.max(),
        "max with places": lambda s: s.max(2),
        "min with places": lambda s: s.min(0),
        "argmax": lambda s: s.argmax(),
        "argmin": lambda s: s.argmin(1),
        "aminmax": lambda s: s.aminmax(dim=2),
        "any": lambda s: s.any(2),
        "all": lambda s: s.all(0),
        "count_nonzero": lambda s: s.count_nonzero(1),
        "var": lambda s: s.var(2),
        "std": lambda s: s.std((0, 1)),
        "norm": lambda s: s.norm(),
        "norm along a dim": lambda s: s.norm(1, 2),
        "logsumexp": lambda s: torch.logsumexp(s, 2),
        "softmax of the entries": lambda s: torch.softmax(undefined(s), 2),
        "softmax": lambda s: torch.softmax(s, 2),
        "log_softmax": lambda s: torch.log_softmax(s, 2),
        "cumsum": lambda s: s.cumsum(2),
        "cumprod": lambda s: s.cumprod(2),
        "transpose": lambda s: s.transpose(0, 2),
        "permute": lambda s: s.permute(2, 0, 1).coalesce(),
        "movedim": lambda s: s.movedim(0, 2),
        "reshape": lambda s: s.reshape(-1, s.shape[2]),
        "flatten": lambda s: s.flatten(1),
        "unflatten": lambda s: s.unflatten(2, (-1, 2)) if s.shape[2] % 2 == 0 else s,
        "unsqueeze": lambda s: s.unsqueeze(1),
        "squeeze": lambda s: s.unsqueeze(0).squeeze(0),
        "expand": lambda s: s.unsqueeze(0).expand(2, -1, -1, -1),
        "broadcast_to": lambda s: torch.broadcast_to(s, (2, *s.shape)),
        "repeat": lambda s: s.repeat(1, 2, 1),
        "cat": lambda s: torch.cat([s, other(s)], 1),
        "stack": lambda s: torch.stack([s, other(s)]),
        "flip": lambda s: s.flip(0, 2),
        "roll": lambda s: s.roll(3, 1),
        "rot90": lambda s: s.rot90(1, (0, 1)),
        "tril": lambda s: s.tril(),
        "triu": lambda s: s.triu(1),
        "diagonal": lambda s: s.diagonal(0, 0, 1),
        "diag_embed": lambda s: torch.diag_embed(s.select(0, 0)),
        "pad": lambda s: torch.nn.functional.pad(s, (1, 2)),
        "split": lambda s: s.split(s.shape[2] // 2, 2),
        "chunk": lambda s: s.chunk(2, 0),
        "narrow": lambda s: s.narrow(0, 1, 3),
        "index an integer": lambda s: s[3],
        "slice": lambda s: s[1:-1:2, :, ::3],
        "ellipsis": lambda s: s[..., 1],
        "new dim": lambda s: s[None, ..., None],
        "index tensor": lambda s: s[_rows(s)],
        "index tensors": lambda s: s[_rows(s), _rows(s) * 0, _rows(s) * 0 + 1],
        "index_select": lambda s: s.index_select(1, _rows(s).clamp_max(s.shape[1] - 1)),
        "gather": lambda s: s.gather(0, torch.zeros(1, 1, 2, dtype=torch.int64, device=s.device)),
        "take": lambda s: s.take(torch.tensor([0, 5], device=s.device)),
        "assignment": _assigned,
        "index_put": lambda s: s.index_put(
            (_rows(s), _rows(s) * 0, _rows(s) * 0), torch.ones(4, dtype=s.dtype, device=s.device), accumulate=True
        ),
        "scatter_add": lambda s: s.scatter_add(
            0,
            torch.zeros(1, 1, 2, dtype=torch.int64, device=s.device),
            torch.ones(1, 1, 2, dtype=s.dtype, device=s.device),
        ),
        "matmul with a sparse matrix": lambda s: s.flatten(0, 1) @ matrix(s),
        "matmul with a strided matrix": lambda s: s @ torch.ones(s.shape[2], 4, dtype=s.dtype, device=s.device),
        "matmul with a strided vector": lambda s: s @ torch.ones(s.shape[2], dtype=s.dtype, device=s.device),
        "einsum with a strided vector": lambda s: torch.einsum(
            "ijk,i->kj", s, torch.ones(s.shape[0], dtype=s.dtype, device=s.device)
        ),
        "tensordot with a strided vector": lambda s: torch.tensordot(
            s, torch.ones(s.shape[0], dtype=s.dtype, device=s.device), dims=([0], [0])
        ),
        "batches of sparse matrices": lambda s: torch.bmm(s, other(s).transpose(1, 2)),
        "matrix times vector": lambda s: s.select(0, 0) @ vector(s, 2),
        "vector times matrix": lambda s: vector(s, 1) @ s.select(0, 0),
        "tensordot": lambda s: torch.tensordot(s, matrix(s), dims=([2], [0])),
        "einsum": lambda s: torch.einsum("ijk,kl->ijl", s, matrix(s)),
        "einsum of all": lambda s: torch.einsum("ijk,ijk->", s, other(s)),
        "kron": lambda s: torch.kron(s.select(0, 0), matrix(s).narrow(0, 0, 2).narrow(1, 0, 2)),
        "outer": lambda s: torch.outer(vector(s, 1), vector(s, 2)),
        "inner": lambda s: torch.inner(s.flatten(0, 1), matrix(s)),
        "masked matmul": lambda s: s.select(0, 0) * (vector(s, 1).unsqueeze(1) @ vector(s, 2).unsqueeze(0)),
        "nonzero": lambda s: s.nonzero(),
        "unique": lambda s: s.unique(),
        "sort": lambda s: s.sort(2),
        "topk": lambda s: s.topk(2, 2),
        "equal": lambda s: torch.equal(s, other(s)),
        "zeros_like": torch.zeros_like,
        "clone": lambda s: s.clone(),
        "coalesce": lambda s: s.coalesce(),
        "prune": lambda s: s.prune(),
        "with_fill": lambda s: s.with_fill(2.0),
        "mse_loss": lambda s: torch.nn.functional.mse_loss(s, other(s)),
        "add in place": lambda s: s.clone().add_(other(s)),
        "distance": lambda s: torch.dist(s, other(s)),
    }
    return table
