"""How many entries of torch's operator database each kind of sparse tensor answers."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import lacewing

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "Lacewing COO": lambda t: lacewing.to_sparse(t),
    "Lacewing GCRS": lambda t: lacewing.to_sparse(t).to_gcs(),
    "torch COO": lambda t: t.to_sparse(),
    "torch CSR": lambda t: t.to_sparse_csr() if t.dim() == 2 else t.to_sparse(),
}
OUTCOMES = ("native", "strided inside", "refused", "wrong")


def measured() -> dict[str, Counter[str]]:
    """One sample of every entry with a strided float64 tensor as its first argument and a result that is a function of
    it: what becomes of it for each kind."""
    from torch.testing._internal.common_methods_invocations import op_db

    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            sample = _sample(op)
            if sample is not None:
                for kind, make in KINDS.items():
                    counts[kind][_outcome(op, make, *sample)] += 1
    torch.set_num_threads(threads)
    return counts


def _sample(op: Any) -> tuple[Tensor, Any, Any, list[Any]] | None:
    if torch.float64 not in op.supported_dtypes("cpu"):
        return None
    torch.manual_seed(0)
    random.seed(0)
    try:
        for sample in op.sample_inputs("cpu", torch.float64, requires_grad=False):
            first = sample.input
            if isinstance(first, Tensor) and first.layout == torch.strided and first.dim() == 2 and first.numel() > 1:
                thin = torch.where(torch.rand(first.shape) < 0.5, first, 0)
                results = [_run(op, thin, sample.args, sample.kwargs) for _ in range(2)]
                same = len(results[0]) == len(results[1]) and all(map(_equal, *results))
                return (thin, sample.args, sample.kwargs, results[0]) if same else None
    except Exception:
        return None
    return None


def _run(op: Any, first: Tensor, args: Any, kwargs: Any) -> list[Any]:
    args, kwargs = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, (args, kwargs))
    return tree_flatten(op.op(first, *args, **kwargs))[0]


def _outcome(
    op: Any, make: Callable[[Tensor], Tensor], first: Tensor, args: Any, kwargs: Any, wanted: list[Any]
) -> str:
    try:
        with lacewing.record_densified() as densified:
            found = _run(op, make(first), args, kwargs)
    except Exception:
        return "refused"
    if len(found) != len(wanted) or not all(map(_equal, found, wanted)):
        return "wrong"
    return "strided inside" if densified else "native"


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    a, b = (t.to_dense() if t.layout != torch.strided or lacewing.is_sparse_tensor(t) else t for t in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
