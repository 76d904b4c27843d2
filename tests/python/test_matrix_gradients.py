"""Both gradients of a sparse matrix times dense rows: one pass on CUDA has the bits of two."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lacewing import SparseProductInfo, sparse_product_info, sparse_scavec, sparse_vecsca
from products_support import assert_close, random_values

ROWS, COLUMNS, HUB = 61, 37, 1300
KINDS = {
    "scavec": lambda values, x, info: sparse_scavec(values, x, info),
    "vecsca": lambda values, x, info: sparse_vecsca(x, values, info),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str
)


def sorted_matrix(device: str) -> tuple[Tensor, Tensor]:
    """Rows and columns of sorted entries: an empty row and column, and a column longer than several chunks."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(1, ROWS, (HUB + 400,), generator=generator).sort()[0]
    column = torch.randint(COLUMNS - 1, (HUB + 400,), generator=generator)
    column[torch.randperm(HUB + 400, generator=generator)[:HUB]] = 5
    return row.to(device), column.to(device)


def info_of(kind: object, row: Tensor, column: Tensor) -> SparseProductInfo:
    first, second = (None, column) if kind is KINDS["scavec"] else (column, None)
    return sparse_product_info(first, second, row, out_size=ROWS)


@each_kind
@each_dtype
@pytest.mark.parametrize("channels", [1, 3, 8, 20, 64, 130, 600])
def test_gradients_together_have_the_bits_of_each_alone(kind, dtype: torch.dtype, channels: int, device: str) -> None:
    row, column = sorted_matrix(device)
    info = info_of(kind, row, column)
    values = random_values([row.numel()], dtype, 1, device).requires_grad_()
    x = random_values([COLUMNS, channels], dtype, 2, device).requires_grad_()
    z = kind(values, x, info)
    upstream = random_values(z.shape, dtype, 3, device)

    of_values, of_x = torch.autograd.grad(z, (values, x), upstream, retain_graph=True)

    assert torch.equal(of_values, torch.autograd.grad(z, values, upstream, retain_graph=True)[0])
    assert torch.equal(of_x, torch.autograd.grad(z, x, upstream)[0])


@each_kind
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded", "padded", "unaligned"])
def test_gradients_against_dense_matrices(kind, layout: str, device: str) -> None:
    row, column = sorted_matrix(device)
    info = info_of(kind, row, column)
    values = random_values([row.numel()], torch.float64, 1, device).requires_grad_()
    x = random_values([COLUMNS, 12], torch.float64, 2, device).requires_grad_()
    upstream = random_values([ROWS, 12], torch.float64, 3, device)
    laid_out = {
        "contiguous": upstream,
        "transposed": upstream.T.contiguous().T,
        "expanded": upstream[:, :1].expand(ROWS, 12),
        "padded": torch.nn.functional.pad(upstream, (0, 5))[:, :12],
        "unaligned": torch.nn.functional.pad(upstream, (1, 3))[:, 1:13],
    }[layout]

    got = torch.autograd.grad(kind(values, x, info), (values, x), laid_out)

    matrix = torch.zeros(ROWS, COLUMNS, dtype=torch.float64, device=device)
    dense = matrix.index_put((row, column), values, accumulate=True) @ x
    for one, other, name in zip(got, torch.autograd.grad(dense, (values, x), laid_out), ("values", "x"), strict=True):
        assert_close(one, other.cpu(), 1e-12, name)


@each_kind
def test_second_derivatives_of_both_gradients(kind, device: str) -> None:
    row, column = sorted_matrix(device)
    row, column = row[::60], column[::60]
    info = info_of(kind, row, column)
    values = random_values([row.numel()], torch.float64, 1, device).requires_grad_()
    x = random_values([COLUMNS, 3], torch.float64, 2, device).requires_grad_()

    assert torch.autograd.gradgradcheck(lambda v, y: kind(v, y, info), (values, x))


def test_values_of_unsorted_or_repeated_entries(device: str) -> None:
    column = torch.tensor([2, 0, 1, 2, 2], device=device)
    row = torch.tensor([3, 0, 1, 0, 3], device=device)
    entry = torch.tensor([1, 1, 0, 2, 0], device=device)
    x = random_values([3, 8], torch.float64, 2, device).requires_grad_()
    unsorted = random_values([5], torch.float64, 1, device).requires_grad_()
    shared = random_values([4], torch.float64, 1, device).requires_grad_()
    for values, index in ((unsorted, None), (shared, entry)):
        info = sparse_product_info(index, column, row, out_size=4)
        used = values if index is None else values[index]
        dense = torch.zeros(4, 8, dtype=torch.float64, device=device).index_add(0, row, used[:, None] * x[column])
        upstream = random_values([4, 8], torch.float64, 3, device)

        got = torch.autograd.grad(sparse_scavec(values, x, info), (values, x), upstream)

        for one, other in zip(got, torch.autograd.grad(dense, (values, x), upstream), strict=True):
            assert_close(one, other.cpu(), 1e-12)
