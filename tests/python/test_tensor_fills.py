"""Fills in gradients, products and powers: where a 0 meets an infinity, or digits could be lost."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import lacewing

pytestmark = pytest.mark.filterwarnings("ignore")
COO = lacewing.sparse_coo_tensor
INF = math.inf


def dense(t: Tensor) -> Tensor:
    return t.to_dense() if lacewing.is_sparse_tensor(t) else t


def diagonal(fill: float | Tensor = 0.0) -> lacewing.SparseTensor:
    return COO([[0, 1], [0, 1]], torch.tensor([2.0, 4.0]), (2, 2), fill_value=fill)


@pytest.mark.parametrize(
    "op",
    [
        lambda x, s: x / s,
        lambda x, s: x * s.reciprocal(),
        lambda x, s: x * torch.log(s),
        lambda x, s: x * s.rsqrt(),
        lambda x, s: torch.addcdiv(x, x, s),
        lambda x, s: x[0] / s,
        lambda x, s: x * (s - INF),
    ],
)
def test_the_gradient_of_a_strided_operand_is_finite_where_there_are_entries(
    op: Callable[[Tensor, Tensor], Tensor],
) -> None:
    ours, theirs = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    where = torch.eye(2)

    (dense(op(ours, diagonal())) * where).diagonal().sum().backward()
    (op(theirs, diagonal().to_dense())).diagonal().sum().backward()

    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(ours.grad.isnan(), theirs.grad.isnan())
    assert torch.equal(ours.grad.nan_to_num(), theirs.grad.nan_to_num())


@pytest.mark.parametrize("fill", [INF, -INF, math.nan])
@pytest.mark.parametrize("places", [[0, 2], [0, 1, 2]])
def test_a_fill_that_is_not_finite_leaves_the_gradient_at_entries(fill: float, places: list[int]) -> None:
    values = torch.arange(1.0, len(places) + 1)
    s = COO([places], values, (3,), fill_value=fill)
    x = torch.ones(3, requires_grad=True)

    dense(s * x).sum().backward()

    assert x.grad is not None
    assert torch.equal(x.grad.nan_to_num(), s.to_dense().nan_to_num())


def test_the_gradient_of_a_learnable_fill_comes_from_elements_that_have_it() -> None:
    f = torch.tensor(0.5, requires_grad=True)
    x = torch.tensor([[INF, 1.0], [2.0, 1.0]])  # infinite where there is an entry

    result = dense(torch.atan2(x, diagonal(f)))
    (result[0, 1] + result[1, 0]).backward()

    assert f.grad is not None
    torch.testing.assert_close(f.grad, torch.tensor(-1 / 1.25 - 2 / 4.25))


@pytest.mark.parametrize(
    ("shape", "op"),
    [
        ((3,), lambda s: torch.ones(3) / s),
        ((3,), torch.sqrt),
        ((1,), torch.var),
        ((3, 0), torch.sqrt),
        ((0,), torch.var),
        ((0,), torch.std),
        ((0, 3), lambda s: torch.softmax(s, 0)),
        ((3,), lambda s: s.prod(0)),
    ],
)
def test_a_fill_that_no_element_has_gets_the_gradient_zero(
    shape: tuple[int, ...], op: Callable[[Tensor], Tensor]
) -> None:
    f = torch.tensor(0.0, requires_grad=True)
    places = torch.ones(shape).nonzero().t()
    v = torch.arange(1.0, places.shape[1] + 1).requires_grad_()
    s = COO(places, v, shape, fill_value=f)

    (grad,) = torch.autograd.grad(dense(op(s)).sum(), f, allow_unused=True)

    assert grad is None or grad == 0


def test_the_second_gradient_of_a_product_over_a_full_tensor() -> None:
    f = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    v = torch.tensor([-0.5, 2.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    s = COO([[0, 1, 2, 1]], v, (3,), fill_value=f)
    first = torch.autograd.grad(s.prod(0), [v, f], create_graph=True)

    second = torch.autograd.grad(sum((g * g).sum() for g in first), [v, f])

    assert torch.equal(second[0], torch.tensor([-11.0, 7.5, 19.0, 7.5], dtype=torch.float64))
    assert second[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_the_sign_of_a_product_over_many_fills(dtype: torch.dtype) -> None:
    for size in (2**24 + 1, 2**24 + 2, 2**40 + 1):
        s = COO(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, dtype=dtype), (size,), fill_value=-1.0)
        assert s.prod() == (-1.0 if size % 2 else 1.0)


def test_a_product_keeps_the_digits_of_entries_below_a_large_fill() -> None:
    m = COO([[0, 0], [0, 1]], torch.tensor([1e-3, 2e-3]), (2, 8), fill_value=1e6)
    y = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0], requires_grad=True)

    for product in (m @ y, dense(m @ lacewing.to_sparse(y.detach().unsqueeze(1))).squeeze(1)):
        torch.testing.assert_close(product, m.to_dense() @ y)
    (grad,) = torch.autograd.grad((m @ y)[0], y)
    torch.testing.assert_close(grad, m.to_dense()[0])


@pytest.mark.parametrize("op", [torch.matmul, lambda a, b: torch.tensordot(a, b, 1), lambda a, b: torch.mv(a, b)])
def test_a_fill_times_an_infinity_is_what_it_is(op: Callable[[Tensor, Tensor], Tensor]) -> None:
    s = COO([[0], [0]], torch.tensor([1.0]), (2, 2), fill_value=-1.0)
    for x in (torch.tensor([INF, 1.0]), torch.tensor([math.nan, 1.0])):
        assert torch.equal(op(s, x).nan_to_num(), op(s.to_dense(), x).nan_to_num())


@pytest.mark.parametrize("op", [torch.norm, lambda t: torch.linalg.vector_norm(t, dim=0).sum()])
def test_the_second_gradient_of_the_norm_at_zeros(op: Callable[[Tensor], Tensor]) -> None:
    v = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(op(COO([[0, 1, 1], [0, 0, 1]], v, (2, 2))), v, create_graph=True)
    (other,) = torch.autograd.grad(op(w), w, create_graph=True)

    (ours,) = torch.autograd.grad((first * torch.tensor([1.0, 2.0, 3.0])).sum(), v)
    (theirs,) = torch.autograd.grad((other * torch.tensor([[1.0, 0.0], [2.0, 3.0]])).sum(), w)

    torch.testing.assert_close(ours, theirs[[0, 1, 1], [0, 0, 1]])


def test_the_norm_that_counts_has_the_gradient_zero() -> None:
    v = torch.tensor([2.0, INF], requires_grad=True)
    norm = COO([[0, 1]], v, (3,)).norm(0)
    norm.backward()
    assert norm == 2
    assert v.grad is not None
    assert torch.equal(v.grad, torch.zeros(2))


def test_shapes_are_those_of_torch() -> None:
    s = diagonal()
    assert type(s.shape) is torch.Size
    assert type(s.size()) is torch.Size
    assert s.shape.numel() == 4


@pytest.mark.parametrize(
    "op",
    [
        lambda a, x: torch.mm(a, x),
        lambda a, x: torch.mm(a.bfloat16(), x),
        lambda a, x: torch.bmm(a.unsqueeze(0), x.unsqueeze(0)),
        lambda a, x: torch.addmm(x, a, x),
        lambda a, x: torch.einsum("ij,jk->ik", a, x),
        lambda a, x: torch.inner(a, x),
        lambda a, x: functional.linear(a, x),
        lambda a, x: a.bfloat16().prod(),
        lambda a, x: functional.mse_loss(a.bfloat16(), x.bfloat16()),
        lambda a, x: torch.sin(a),
    ],
)
def test_autocast_is_that_of_the_strided_program(op: Callable[[Tensor, Tensor], Tensor]) -> None:
    s, x = diagonal(), torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = dense(op(s, x)), op(s.to_dense(), x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "op",
    [
        lambda s: s @ torch.arange(40.0).view(10, 4),
        lambda s: s @ torch.arange(10.0),
        lambda s: torch.tensordot(s, torch.arange(40.0).view(10, 4), 1),
        lambda s: torch.einsum("ijk,k->ij", s, torch.arange(10.0)),
        lambda s: torch.einsum("ijk,i->jk", s, torch.arange(1000.0)),
        lambda s: functional.linear(s, torch.arange(40.0).view(4, 10)),
    ],
)
def test_products_with_nearly_all_rows_empty_stay_sparse(op: Callable[[Tensor], Tensor]) -> None:
    places = torch.tensor([[5, 5, 5, 999], [7, 7, 3, 0], [1, 9, 2, 4]])
    v = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    w = v.detach().clone().requires_grad_()
    s = COO(places, v, (1000, 1000, 10))

    result = op(s)

    with lacewing.densify_policy("allow"):
        expected = op(COO(places, w, (1000, 1000, 10)).to_dense())
        assert lacewing.is_sparse_tensor(result) or result.shape == (1000, 10)
        torch.testing.assert_close(dense(result), expected)
    dense(result).square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(v.grad, w.grad)


def test_a_strided_tensor_that_does_not_fit_is_named() -> None:
    s = COO([[0], [5]], torch.ones(1), (10**9, 10**9))
    with pytest.raises(RuntimeError, match=r"\[lacewing.to_dense\] there is no memory .*\(1000000000, 1000000000\)"):
        s.to_dense()
