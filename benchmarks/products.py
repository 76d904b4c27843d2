"""What the product workloads share: structures, inputs, and our own contender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.clebsch_gordan import product_terms
from benchmarks.costs import shapes
from benchmarks.peers.torch_products import ProductInputs, Rows, Triples, with_gradients

LMAX = 3
TERMS = 611
FORWARD = "forward"
BACKWARD = "forward+backward"
MODES = (FORWARD, BACKWARD)


def clebsch_gordan_triples(device: torch.device, dtype: torch.dtype = torch.float32) -> Triples:
    """All paths of degrees 0..3: 34 paths, 611 terms, 16 rows on every side."""
    terms = product_terms(LMAX)
    if len(terms) != TERMS:
        raise ArithmeticError(f"expected {TERMS} Clebsch-Gordan terms, found {len(terms)}")
    index1, index2, index = (torch.from_numpy(i).to(device) for i in (terms.index1, terms.index2, terms.index))
    scale = torch.from_numpy(terms.scale).to(device, dtype)
    return Triples(index1, index2, index, scale, (terms.size,) * 3)


def random_triples(terms: int, rows: Rows, device: torch.device, seed: int = 0) -> Triples:
    """Uniformly random terms, in random order."""
    generator = torch.Generator(device).manual_seed(seed)
    index1, index2, index = (torch.randint(m, (terms,), generator=generator, device=device) for m in rows)
    return Triples(index1, index2, index, torch.randn(terms, generator=generator, device=device), rows)


def input_maker(
    op: str, n: int, c: int, rows: Rows, device: torch.device, backward: bool
) -> Callable[[int], ProductInputs]:
    """Fresh operands for a seed."""
    x_shape, y_shape, z_shape = shapes(op, n, rows, c)

    def make(seed: int) -> ProductInputs:
        generator = torch.Generator(device).manual_seed(seed)
        x, y, upstream = (
            torch.randn(shape, generator=generator, device=device) for shape in (x_shape, y_shape, z_shape)
        )
        return ProductInputs(x.requires_grad_(backward), y.requires_grad_(backward), upstream)

    return make


def build_infos(triples: Triples) -> tuple[Any, Any, Any]:
    """Lacewing's three sorted views."""
    import lacewing

    rows1, rows2, rows_out = triples.rows
    infos: tuple[Any, Any, Any] = lacewing.sparse_product_infos(
        triples.index1, triples.index2, triples.index, triples.scale, rows_out, rows1, rows2
    )
    return infos


def ours(op: str, infos: tuple[Any, Any, Any]) -> Callable[[ProductInputs], tuple[Tensor, ...]]:
    """Lacewing's product as a contender."""
    import lacewing

    function = getattr(lacewing, f"sparse_{op}")
    return lambda inputs: with_gradients(lambda x, y: function(x, y, *infos), inputs)
