"""Index sets for the sparse tensor workloads, and the operands that contenders take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TORCH_COO, TORCH_CSR, SCIPY, PYDATA = "torch COO", "torch CSR", "SciPy", "pydata/sparse"


def unique_columns(indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The distinct columns of (dims, entries), sorted."""
    keys = torch.zeros_like(indices[0])
    for row, size in zip(indices, shape, strict=True):
        keys = keys * size + row
    return torch.stack(torch.unravel_index(torch.unique(keys), shape))


CPU = torch.device("cpu")


def _generator(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def uniform(n: int, entries: int, seed: int, device: torch.device = CPU) -> Tensor:
    """Erdos-Renyi."""
    return torch.randint(n, (2, entries), generator=_generator(seed, device), device=device)


def rmat(n: int, entries: int, seed: int, device: torch.device = CPU) -> Tensor:
    """R-MAT with the usual quadrants 0.57, 0.19, 0.19, 0.05: hubs, and many duplicates."""
    generator = _generator(seed, device)
    indices = torch.zeros(2, entries, dtype=torch.int64, device=device)
    for _ in range((n - 1).bit_length()):
        draw = torch.rand(entries, generator=generator, device=device)
        down = draw >= 0.76
        right = ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
        indices = indices * 2 + torch.stack([down, right]).long()
    return indices % n


def stencil(n: int, entries: int, seed: int, device: torch.device = CPU) -> Tensor:
    """The 7-point stencil of a cube of about n points."""
    side = round(n ** (1 / 3))
    at = torch.stack(torch.meshgrid(*(torch.arange(side, device=device),) * 3, indexing="ij")).reshape(3, -1)
    found = []
    for axis, step in ((0, 0), (0, 1), (0, -1), (1, 1), (1, -1), (2, 1), (2, -1)):
        to = at.clone()
        to[axis] += step
        inside = ((to >= 0) & (to < side)).all(0)
        key = lambda p: (p[0] * side + p[1]) * side + p[2]
        found.append(torch.stack([key(at), key(to)])[:, inside])
    return torch.cat(found, 1)


def banded(n: int, entries: int, seed: int, device: torch.device = CPU) -> Tensor:
    """Random 3x3 blocks in a band of 64 blocks."""
    generator = _generator(seed, device)
    rows = n // 3
    row = torch.randint(rows, (entries // 9,), generator=generator, device=device)
    column = (row + torch.randint(-32, 33, row.shape, generator=generator, device=device)).clamp(0, rows - 1)
    inner = torch.stack(torch.meshgrid(*(torch.arange(3, device=device),) * 2, indexing="ij")).reshape(2, -1)
    return (3 * torch.stack([row, column]).unsqueeze(2) + inner.unsqueeze(1)).reshape(2, -1)


MATRICES: dict[str, Callable[[int, int, int, torch.device], Tensor]] = {
    "ER": uniform,
    "stencil": stencil,
    "banded": banded,
    "R-MAT": rmat,
}


def matrix(name: str, n: int, entries: int, seed: int = 0, device: torch.device = CPU) -> Tensor:
    """A coalesced pattern of the kind, drawn on a device."""
    return unique_columns(MATRICES[name](n, entries, seed, device), (n, n))


def find(module: str) -> Any | None:
    """An optional peer, or nothing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def torch_coo(indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool = True) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def torch_csr(indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch_coo(indices, values, shape).to_sparse_csr()


def scipy_csr(indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Any:
    """With 32-bit indices, SciPy's own choice at these sizes."""
    import scipy.sparse

    row, column = (i.int().numpy() for i in indices)
    return scipy.sparse.csr_matrix((values.numpy(), (row, column)), shape=shape)


def scipy_elements(matrix: Any) -> tuple[Tensor, ...]:
    """Indices and values of a SciPy matrix, in order."""
    coo = matrix.tocsr().sorted_indices().tocoo()
    row, column, data = (torch.from_numpy(a) for a in (coo.row, coo.col, coo.data))
    return (torch.stack([row, column]).double(), data.double())


def torch_elements(tensor: Tensor) -> tuple[Tensor, ...]:
    """Indices and values of a sparse tensor of torch, in order."""
    if tensor.layout != torch.sparse_coo:  # columns may be in any order, whatever it says of itself
        made = tensor.to_sparse_coo()
        tensor = torch_coo(made.indices(), made.values(), tuple(made.shape), coalesced=False)
    coo = tensor.coalesce()
    return (coo.indices().double(), coo.values().double())


def our_elements(tensor: Any) -> tuple[Tensor, ...]:
    """Indices and values of ours, in order."""
    coalesced = tensor.coalesce()
    return (coalesced.indices().double(), coalesced.values().double())


def pydata_elements(array: Any) -> tuple[Tensor, ...]:
    """Indices and values of an array of pydata/sparse, in order."""
    order = torch.from_numpy(array.linear_loc()).argsort()
    return (torch.from_numpy(array.coords)[:, order].double(), torch.from_numpy(array.data)[order].double())
