"""What users asked for (lines 91 to 93 of the specification of sparse tensors) and its hazards (lines 95 and 96).

Every test runs in each storage format and cites its line.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lacewing

FORMATS: dict[str, Callable[[lacewing.SparseTensor], lacewing.SparseTensor]] = {
    "coo": lambda s: s,
    "gcrs": lambda s: s.to_gcs(),
    "gccs": lambda s: s.to_gcs(compressed="columns"),
}
formats = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())
Form = Callable[[lacewing.SparseTensor], lacewing.SparseTensor]


def matrix(rows: int, columns: int, seed: int = 0, device: str = "cpu") -> lacewing.SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    nse = rows * columns // 3
    s = lacewing.random((rows, columns), nse=nse, dtype=torch.float64, generator=generator)
    return lacewing.sparse_coo_tensor(s.indices().to(device), s.values().to(device), s.shape, requires_grad=True)


def agree(loss: Callable[[Tensor], Tensor], s: lacewing.SparseTensor, *leaves: Tensor, form: Form) -> None:
    """The value and the gradients of values and leaves are those of the strided tensor."""
    found, expected = loss(form(s)), loss(s.to_dense())
    assert torch.allclose(found, expected)
    wanted = (s.values(), *leaves)
    for mine, theirs in zip(torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted), strict=True):
        assert torch.allclose(mine, theirs)


@formats
def test_line_91_sparse_inputs_to_linear_layers_with_a_backward(device: str, form: Form) -> None:
    s = matrix(8, 5, device=device)
    layer = torch.nn.Linear(5, 3).double().to(device)

    agree(lambda x: layer(x).sin().sum(), s, layer.weight, layer.bias, form=form)


@formats
def test_line_91_sparse_inputs_to_embedding_layers_with_a_backward(device: str, form: Form) -> None:
    """A sparse table, and a bag of words as the product of sparse counts with a table."""
    table, counts = matrix(8, 5, device=device), matrix(6, 8, 1, device=device)
    words = torch.tensor([[0, 7, 7], [3, 1, 0]], device=device)
    layer = torch.nn.Embedding(8, 4).double().to(device)

    agree(lambda t: torch.nn.functional.embedding(words, t).sin().sum(), table, form=form)
    agree(lambda c: (c @ layer.weight).sin().sum(), counts, layer.weight, form=form)


@formats
def test_line_91_masked_mm_with_a_gradient_on_the_pattern(device: str, form: Form) -> None:
    """mask * (A @ B): only the entries of the pattern count."""
    s = matrix(6, 7, device=device)
    a = torch.randn(6, 3, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(3, 7, dtype=torch.float64, device=device, requires_grad=True)

    assert lacewing.is_sparse_tensor(form(s) * (a @ b))
    agree(lambda m: (m * (a @ b)).sum(1).sin().sum(), s, a, b, form=form)


@formats
@pytest.mark.parametrize("dim", [0, 1])
def test_line_92_max_along_a_sparse_dim(device: str, form: Form, dim: int) -> None:
    s = matrix(6, 7, device=device)

    agree(lambda m: m.amax(dim).sin().sum(), s, form=form)
    values, places = form(s).max(dim)
    expected = s.to_dense().max(dim)
    dense = lambda t: t.to_dense() if lacewing.is_sparse_tensor(t) else t
    assert torch.equal(dense(values), expected.values)
    assert torch.equal(dense(places), expected.indices)


@formats
def test_line_92_outer_product(device: str, form: Form) -> None:
    s = matrix(6, 7, device=device)
    x = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
    vector = lambda m: m[0]

    agree(lambda m: torch.outer(vector(m), x).sin().sum(), s, x, form=form)
    assert torch.outer(vector(form(s)), vector(form(s))).to_dense().equal(torch.outer(*[s.to_dense()[0]] * 2))


@formats
def test_line_92_vector_times_matrix(device: str, form: Form) -> None:
    s = matrix(6, 7, device=device)
    x = torch.randn(6, dtype=torch.float64, device=device, requires_grad=True)

    agree(lambda m: (x @ m).sin().sum(), s, x, form=form)


@formats
def test_line_92_batches_of_sparse_matrices(device: str, form: Form) -> None:
    """Stacked, multiplied as a batch, and taken apart again."""
    s, other = matrix(6, 7, device=device), matrix(6, 7, 1, device=device)
    x = torch.randn(2, 7, 3, dtype=torch.float64, device=device, requires_grad=True)

    def loss(m: Tensor) -> Tensor:
        second = form(other) if lacewing.is_sparse_tensor(m) else other.to_dense()
        batch = torch.stack([m, second])
        assert lacewing.is_sparse_tensor(batch) == lacewing.is_sparse_tensor(m)
        return (torch.bmm(batch, x).sum() + torch.cat(batch.unbind()).sum(0).mul(2).sum()).sin()

    agree(loss, s, other.values(), x, form=form)


@formats
def test_line_92_row_indexing_densifies_one_batch_at_a_time(device: str, form: Form) -> None:
    s = form(matrix(64, 7, device=device))
    batch = torch.tensor([3, 60, 3, 0], device=device)

    with lacewing.densify_policy("raise", 0), lacewing.record_densified() as densified:
        chosen = s[batch]

    assert densified == []
    assert torch.equal(chosen.to_dense(), s.to_dense()[batch])
    assert torch.equal(s[8:12].to_dense(), s.to_dense()[8:12])


@formats
def test_line_93_matmul_speed_no_product_densifies_or_copies_the_dense_operand(device: str, form: Form) -> None:
    """Speed is in benchmarks/; here: products of a shape that no strided matrix could have."""
    s = lacewing.sparse_coo_tensor([[0, 10**9], [5, 10**8]], [2.0, 3.0], (10**9 + 1, 10**8 + 1)).to(device)

    with lacewing.densify_policy("raise", 1 << 20):
        product = (s if form is FORMATS["coo"] else s.to_gcs((1,) if form is FORMATS["gccs"] else (0,))).T @ s

    assert product.nse == 2
    assert product.values().tolist() == [4.0, 9.0]


def test_line_95_nse_beyond_2_to_the_31() -> None:
    """Indices of one stored column: as many entries as wanted, and no memory. No op that reads the entries runs."""
    nse = 2**31 + 11
    indices, values = torch.zeros(1, 1, dtype=torch.int64).expand(1, nse), torch.ones(1).expand(nse)

    s = lacewing.sparse_coo_tensor(indices, values, (3,))

    assert s.nse == nse
    assert repr(s) == f"<SparseTensor coo: shape=(3,), nse={nse}, dtype=torch.float32, device=cpu, fill=0>"
    assert s.with_fill(2.0).nse == nse
    assert s.detach().nse == nse


@formats
@pytest.mark.parametrize("function", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_line_95_stored_zeros_under_argmax(
    device: str, form: Form, function: Callable[..., Tensor], dim: int | None
) -> None:
    """A stored 0 and an element without an entry are equal: the first of them wins, as in a strided tensor."""
    s = lacewing.sparse_coo_tensor([[0, 0, 1, 2], [2, 1, 1, 0]], [-1.0, 0.0, -2.0, 0.0], (3, 3)).to(device)

    found = function(form(s), dim)

    found = found.to_dense() if lacewing.is_sparse_tensor(found) else found
    assert torch.equal(found, function(s.to_dense(), dim))


@formats
def test_line_95_squares_of_uncoalesced_input(device: str, form: Form) -> None:
    s = lacewing.sparse_coo_tensor([[1, 1, 0], [0, 0, 1]], [2.0, 3.0, 1.0], (2, 2), requires_grad=True).to(device)
    strided = s.to_dense()

    for square in (lambda t: t * t, lambda t: t**2, torch.square, lambda t: t.mul(t)):
        assert torch.equal(square(form(s)).to_dense(), square(strided))
    uncoalesced = lacewing.sparse_gcs_tensor([0, 1, 3], [1, 0, 0], [1.0, 2.0, 3.0], (2, 2))
    assert torch.equal((uncoalesced * uncoalesced).to_dense(), (strided * strided).cpu())


@formats
@pytest.mark.parametrize("fill", [0.0, -float("inf"), 2.5])
@pytest.mark.parametrize("dim", [0, 1])
def test_line_95_fibres_with_nothing_specified(device: str, form: Form, fill: float, dim: int) -> None:
    s = lacewing.sparse_coo_tensor([[1], [2]], torch.tensor([3.0], dtype=torch.float64), (3, 4), fill).to(device)
    ops: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda t: torch.softmax(t, dim),
        lambda t: torch.log_softmax(t, dim),
        lambda t: torch.logsumexp(t, dim),
        lambda t: t.sum(dim),
        lambda t: t.amax(dim),
        lambda t: t.prod(dim),
        lambda t: t.mean(dim),
    )

    for op in ops:
        found = op(form(s))
        found = found.to_dense() if lacewing.is_sparse_tensor(found) else found
        assert torch.allclose(found, op(s.to_dense()), equal_nan=True)


@formats
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (1, 3, 0)])
def test_line_95_zero_size_dims(device: str, form: Form, shape: tuple[int, ...]) -> None:
    indices = torch.zeros(len(shape), 0, dtype=torch.int64, device=device)
    s = form(lacewing.sparse_coo_tensor(indices, torch.zeros(0, device=device), shape, 1.0))
    strided = s.to_dense()

    assert strided.shape == shape
    for op in (
        torch.cos,
        lambda t: t + t,
        lambda t: t.sum(0),
        lambda t: t.transpose(0, 1),
        lambda t: t.flip(0),
        lambda t: torch.cat([t, t], 1),
        lambda t: t.unsqueeze(1),
        lambda t: t.prod(1),
        lambda t: t[:0],
    ):
        found = op(s)
        assert torch.equal(found.to_dense() if lacewing.is_sparse_tensor(found) else found, op(strided))
    assert s.to_coo().nse == 0


@formats
def test_line_96_duplicate_heavy_input(device: str, form: Form) -> None:
    """All entries at one index."""
    nse = 20_000
    indices = torch.tensor([[2], [1]], device=device).expand(2, nse)
    values = torch.ones(nse, dtype=torch.float64, device=device, requires_grad=True)
    s = lacewing.sparse_coo_tensor(indices, values, (4, 3))

    product = (form(s) @ torch.ones(3, 2, dtype=torch.float64, device=device)).square().sum()

    assert s.coalesce().nse == 1
    assert form(s).to_dense()[2, 1] == nse
    assert product == 2 * nse**2
    assert torch.equal(torch.autograd.grad(product, values)[0], torch.full_like(values, 4.0 * nse))


def test_line_96_a_sparse_part_of_no_dims(device: str) -> None:
    """One block, with or without an entry; with several their sum."""
    block = torch.tensor([[1.0, 2.0]], device=device, requires_grad=True)
    empty = torch.zeros(0, 1, dtype=torch.int64, device=device)

    s = lacewing.sparse_coo_tensor(empty, block, (2,))
    none = lacewing.sparse_coo_tensor(empty[:, :0], block[:0], (2,), 5.0)
    twice = lacewing.sparse_coo_tensor(empty.expand(0, 2), torch.cat([block, block]), (2,))

    assert [t.to_dense().tolist() for t in (s, none, twice)] == [[1.0, 2.0], [5.0, 5.0], [2.0, 4.0]]
    assert s.to_gcs().format == "coo"
    assert torch.autograd.grad((twice * twice).sum(), block)[0].tolist() == [[8.0, 16.0]]
    number = lacewing.sparse_coo_tensor(empty, torch.tensor([3.0], device=device), ())
    assert (number * 2).item() == 6.0


def test_optimizers_are_told_to_take_the_values() -> None:
    s = matrix(3, 4)
    optimizer = torch.optim.SGD([s], lr=0.1)

    with pytest.raises(RuntimeError, match=r"has no grad of its own: .* give values\(\) to the optimizer"):
        optimizer.step()

    s.sum().backward()
    before = s.to_dense().detach()
    torch.optim.SGD([s.values()], lr=0.1).step()
    assert torch.allclose(s.to_dense(), before - 0.1 * (before != 0))
