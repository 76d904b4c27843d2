"""The seven products in plain torch: gather + op + scatter, and a dense contraction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Rows = tuple[int, int, int]


class ProductInputs(NamedTuple):
    """Operands, and the gradient of the output; operands that require grad ask for the backward pass as well."""

    x: Tensor
    y: Tensor
    upstream: Tensor


@dataclass(frozen=True)
class Triples:
    """The structure as tensors on the device of the run; `rows` are those of x, y and z."""

    index1: Tensor
    index2: Tensor
    index: Tensor
    scale: Tensor
    rows: Rows


# The scale goes onto the smallest of the three factors, as a careful user would write it.
_TERM: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mul": lambda x, y, s: x * s[:, None] * y,
    "outer": lambda x, y, s: (x * s[:, None]).unsqueeze(-1) * y.unsqueeze(-2),
    "inner": lambda x, y, s: (x * y).sum(-1) * s,
    "vecmat": lambda x, y, s: torch.matmul((x * s[:, None]).unsqueeze(-2), y).squeeze(-2),
    "vecsca": lambda x, y, s: x * (y * s).unsqueeze(-1),
    "scavec": lambda x, y, s: (x * s).unsqueeze(-1) * y,
    "mat_t_vec": lambda x, y, s: torch.matmul((y * s[:, None]).unsqueeze(-2), x).squeeze(-2),
}

# Contract the coefficients (i, j, k) with one operand first, then with the other.
_DENSE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mul": lambda x, y, k: torch.einsum("nic,nikc->nkc", x, torch.einsum("ijk,njc->nikc", k, y)),
    "outer": lambda x, y, k: torch.einsum("nkaj,njb->nkab", torch.einsum("ijk,nia->nkaj", k, x), y),
    "inner": lambda x, y, k: torch.einsum("ijk,nij->nk", k, torch.einsum("nic,njc->nij", x, y)),
    "vecmat": lambda x, y, k: torch.einsum("nkja,njab->nkb", torch.einsum("ijk,nia->nkja", k, x), y),
    "vecsca": lambda x, y, k: torch.einsum("nik,nic->nkc", torch.einsum("ijk,nj->nik", k, y), x),
    "scavec": lambda x, y, k: torch.einsum("njk,njc->nkc", torch.einsum("ijk,ni->njk", k, x), y),
    "mat_t_vec": lambda x, y, k: torch.einsum("nkia,niab->nkb", torch.einsum("ijk,nja->nkia", k, y), x),
}


def composition(op: str, x: Tensor, y: Tensor, triples: Triples) -> Tensor:
    """index_select + op + index_add."""
    terms = _TERM[op](x.index_select(1, triples.index1), y.index_select(1, triples.index2), triples.scale)
    z = terms.new_zeros(terms.shape[0], triples.rows[2], *terms.shape[2:])
    return z.index_add_(1, triples.index, terms)


def dense_coefficients(triples: Triples, dtype: torch.dtype) -> Tensor:
    """The structure as a dense tensor over (i, j, k)."""
    dense = torch.zeros(triples.rows, dtype=dtype, device=triples.scale.device)
    where = (triples.index1, triples.index2, triples.index)
    return dense.index_put_(where, triples.scale.to(dtype), accumulate=True)


def dense_product(op: str, x: Tensor, y: Tensor, coefficients: Tensor) -> Tensor:
    """The product through the dense coefficient tensor: two einsums."""
    return _DENSE[op](x, y, coefficients)


def with_gradients(product: Callable[[Tensor, Tensor], Tensor], inputs: ProductInputs) -> tuple[Tensor, ...]:
    """(z,), or (z, gradient of x, gradient of y) where the operands require grad."""
    if not inputs.x.requires_grad:
        with torch.no_grad():
            return (product(inputs.x, inputs.y),)
    z = product(inputs.x, inputs.y)
    return (z.detach(), *torch.autograd.grad(z, (inputs.x, inputs.y), inputs.upstream))


def in_chunks(product: Callable[[Tensor, Tensor], Tensor], inputs: ProductInputs, chunk: int) -> tuple[Tensor, ...]:
    """The same over slices of n, so that the intermediates of one slice are alive at a time."""
    n = inputs.x.shape[0]
    if chunk >= n:
        return with_gradients(product, inputs)
    x, y, upstream = inputs.x, inputs.y, inputs.upstream
    outs = [torch.empty_like(upstream)]
    if x.requires_grad:
        outs += [torch.empty_like(x), torch.empty_like(y)]
    for start in range(0, n, chunk):
        part = slice(start, start + chunk)
        leaves = [t.detach()[part].requires_grad_(t.requires_grad) for t in (x, y)]
        results = with_gradients(product, ProductInputs(leaves[0], leaves[1], upstream[part]))
        for out, result in zip(outs, results, strict=True):
            out.detach()[part] = result
    return tuple(out.detach() for out in outs)


def fp64_oracle(op: str, inputs: ProductInputs, coefficients: Tensor) -> Sequence[Tensor]:
    """Value and gradients through the dense contraction in fp64."""
    needs = inputs.x.requires_grad
    x, y = (t.detach().double().requires_grad_(needs) for t in (inputs.x, inputs.y))
    wide = ProductInputs(x, y, inputs.upstream.double())
    return with_gradients(lambda a, b: dense_product(op, a, b, coefficients), wide)
