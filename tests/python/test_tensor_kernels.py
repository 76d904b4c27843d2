"""The kernels of sparse tensors beyond one part: against strided tensors, the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lacewing


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def random(
    shape: tuple[int, ...], entries: int, seed: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> lacewing.SparseTensor:
    """Entries in random order, with duplicates."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(size, (entries,), generator=generator) for size in shape])
    values = torch.randint(-8, 9, (entries,), generator=generator).to(dtype)  # sums are exact
    return lacewing.sparse_coo_tensor(indices.to(device), values.to(device), shape)


WORK: dict[str, Callable[[Any, Any], Any]] = {
    "coalesce": lambda a, _: a.coalesce(),
    "permute": lambda a, _: a.permute(1, 2, 0).coalesce(),
    "union": lambda a, b: a + b,
    "intersection": lambda a, b: a * b,
    "maximum": lambda a, b: torch.maximum(a, b),
    "sum": lambda a, _: a.sum((0, 2)),
    "amax": lambda a, _: a.amax(1),
    "argmax": lambda a, _: a.argmax(1),
    "argmin": lambda a, _: a.argmin(0),
    "max": lambda a, _: a.max(2).values,
    "softmax": lambda a, _: torch.softmax(a, 1),
    "log_softmax": lambda a, _: torch.log_softmax(a, 2),
    "batches": lambda a, b: torch.bmm(a.narrow(1, 0, 40), b.narrow(1, 0, 40).transpose(1, 2)),
    "with a matrix": lambda a, _: torch.tensordot(a, a.sum(0).transpose(0, 1), dims=([2], [0])),
    "index_select": lambda a, _: a.index_select(1, torch.tensor([3, 3, 0, 39], device=a.device)),
    "matrix_power": lambda a, b: torch.linalg.matrix_power(a.narrow(0, 0, 40).narrow(1, 0, 40).sum(2), 3),
}


@pytest.mark.parametrize("name", WORK)
def test_it_gives_what_the_strided_tensor_gives(name: str, device: str) -> None:
    a = random((40, 40, 30), 60_000, 0, device=device)
    b = random((40, 40, 30), 30_000, 1, device=device)
    dense = lambda t: t.to_dense() if isinstance(t, lacewing.SparseTensor) else t
    work = WORK[name] if name != "coalesce" and name != "permute" else None

    found = WORK[name](a, b)
    if work is None:
        expected = a.to_dense() if name == "coalesce" else a.to_dense().permute(1, 2, 0)
    else:
        expected = work(a.to_dense(), b.to_dense())

    assert torch.allclose(dense(found), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize(
    "index",
    [
        (slice(3, 30), slice(None), slice(1, 25, 3)),
        (slice(-5, None), slice(2, -2)),
        (slice(10, 5), slice(0, 3)),
        (slice(None), slice(None), slice(7, 100)),
        (slice(1, None, 7), slice(0, 40, 2), slice(0, 30, 29)),
    ],
)
def test_slices_of_several_dims(index: tuple[slice, ...], coalesce: bool, device: str) -> None:
    s = random((40, 40, 30), 20_000, 0, device=device)
    s = s.coalesce() if coalesce else s

    found = s[index]

    assert isinstance(found, lacewing.SparseTensor)
    assert torch.equal(found.to_dense(), s.to_dense()[index])


def test_slices_are_copies_that_cannot_be_written_to(device: str) -> None:
    s = random((40, 40, 30), 100, 0, device=device)

    with pytest.raises(RuntimeError, match="in place on a view of a sparse tensor"):
        s[1:3, 2:5].zero_()


@pytest.mark.parametrize(
    ("left", "right"), [([1, 2], [0, 1]), ([2, 1], [1, 0]), ([-1], [1]), ([0], [2]), ([0, 1, 2], [2, 0, 1])]
)
@pytest.mark.parametrize("fill", [0.0, 0.5])
@pytest.mark.parametrize("format", ["coo", "gcrs"])
def test_contractions_with_a_strided_tensor(
    left: list[int], right: list[int], fill: float, format: str, device: str
) -> None:
    s = random((5, 4, 3), 30, 0, device=device).with_fill(fill)
    s = s if format == "coo" else s.to_gcs(row_dims=(2, 0))
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    dims = (left, right)

    found, turned = torch.tensordot(s, x, dims), torch.tensordot(x, s, dims[::-1])

    assert torch.allclose(found, torch.tensordot(s.to_dense(), x, dims))
    assert torch.allclose(turned, torch.tensordot(x, s.to_dense(), dims[::-1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex128])
def test_sparse_times_sparse_of_every_dtype(dtype: torch.dtype, device: str) -> None:
    a = random((70, 90), 300, 0, dtype, device)
    b = random((90, 50), 300, 1, dtype, device)

    found = a @ b

    assert lacewing.is_sparse_tensor(found)
    expected = (a.to_dense().to(torch.complex128) @ b.to_dense().to(torch.complex128)).to(dtype)
    assert torch.allclose(found.to_dense(), expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(300, 200, 400), (30, 50, 5000), (5, 4, 60_000)])
def test_sparse_times_sparse_has_the_bits_of_the_reference(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    a = random(shape[:2], 2000, 0, dtype).coalesce()
    b = random(shape[1:], 2000, 1, dtype).coalesce()
    a.values().div_(3)  # sums round

    found = a @ b
    with lacewing.backend("reference"):
        expected = a @ b

    assert torch.equal(found.indices(), expected.indices())
    assert torch.equal(found.values(), expected.values())


def test_sparse_times_sparse_with_few_of_very_many_columns(device: str) -> None:
    a = random((10**9, 50), 200, 0, device=device)
    b = random((50, 10**9), 200, 1, device=device)

    found = (a @ b).coalesce()

    small_a, rows = compact(a, 0)
    small_b, columns = compact(b, 1)
    expected = lacewing.to_sparse(small_a @ small_b)
    assert torch.equal(
        found.prune().indices(), torch.stack([rows, columns])[torch.arange(2).unsqueeze(1), expected.indices()]
    )
    assert torch.equal(found.prune().values(), expected.values())


def compact(s: lacewing.SparseTensor, dim: int) -> tuple[Tensor, Tensor]:
    """The strided matrix of the rows or columns that have entries, and which they are."""
    used, place = torch.unique(s.indices()[dim], return_inverse=True)
    indices = s.indices().clone()
    indices[dim] = place
    shape = [*s.shape]
    shape[dim] = len(used)
    return lacewing.sparse_coo_tensor(indices, s.values(), shape).to_dense(), used


@pytest.mark.parametrize("shape", [((0, 5), (5, 3)), ((4, 0), (0, 3)), ((4, 5), (5, 0))])
def test_sparse_times_sparse_without_entries(shape: tuple[tuple[int, int], tuple[int, int]], device: str) -> None:
    a, b = (lacewing.to_sparse(torch.zeros(s, device=device)) for s in shape)

    found = a @ b

    assert found.shape == (shape[0][0], shape[1][1])
    assert found.nse == 0


def test_gradients_of_sparse_times_sparse_need_the_pairs(device: str) -> None:
    a, b = random((30, 40), 200, 0, device=device).coalesce(), random((40, 20), 200, 1, device=device).coalesce()
    values = [s.values().clone().requires_grad_() for s in (a, b)]
    make = lambda u, v: (
        lacewing.sparse_coo_tensor(a.indices(), u, a.shape),
        lacewing.sparse_coo_tensor(b.indices(), v, b.shape),
    )

    def sparse(u: Tensor, v: Tensor) -> Tensor:
        left, right = make(u, v)
        return (left @ right).to_dense()

    assert torch.equal(sparse(*values).detach(), (a @ b).to_dense())
    assert torch.autograd.gradcheck(sparse, values)
    assert torch.autograd.gradgradcheck(sparse, values)


@pytest.mark.parametrize("name", WORK)
def test_the_bits_do_not_depend_on_the_threads(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (random((300, 200, 100), 300_000 if name in ("coalesce", "sum") else 40_000, seed) for seed in (0, 1))
    a.values().copy_(torch.randn(a.nse, generator=generator, dtype=torch.float64))

    def bits(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        s, t = (lacewing.sparse_coo_tensor(x.indices(), x.values().float(), x.shape) for x in (a, b))
        result = WORK[name](s, t)
        return [result.indices(), result.values()] if isinstance(result, lacewing.SparseTensor) else [result]

    one = bits(1)

    for threads in (2, 4):
        for x, y in zip(one, bits(threads), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize(
    "equation",
    [
        *("ijk,k->ij", "ijk,i->kj", "ijk,jl->lik", "ijk,kj->i", "ijk,kjl", "iJk, kJ"),
        *("ijk,l->iljk", "ijk,j->ijk", "ijk,kl->i"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_einsum_with_a_strided_tensor(equation: str, first: bool, device: torch.device) -> None:
    sizes = {"i": 3, "j": 4, "J": 4, "k": 5, "l": 2}
    s = lacewing.random((3, 4, 5), nse=9, dtype=torch.float64, device=device)
    operands, _, out = equation.partition("->")
    left, right = operands.split(",")
    x = torch.randn([sizes[c] for c in right.strip()], dtype=torch.float64, device=device, requires_grad=True)
    given = equation if first else f"{right},{left}" + (f"->{out}" if out else "")

    ours = torch.einsum(given, *((s, x) if first else (x, s)))
    dense = ours.to_dense() if lacewing.is_sparse_tensor(ours) else ours
    theirs = torch.einsum(given, *((s.to_dense(), x) if first else (x, s.to_dense())))

    torch.testing.assert_close(dense, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(dense.square().sum(), x), torch.autograd.grad(theirs.square().sum(), x)
    )
