"""Answers of sparse tensors that were wrong or crashed once, each by its input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

import lacewing

pytestmark = pytest.mark.filterwarnings("ignore")
COO = lacewing.sparse_coo_tensor


def matrix(**options: Any) -> lacewing.SparseTensor:
    return COO([[0, 1], [1, 0]], torch.tensor([2.0, 3.0]), (2, 2), **options)


def scalar(dtype: torch.dtype = torch.float32) -> lacewing.SparseTensor:
    return COO(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([2.5]).to(dtype), ())


def dense(t: torch.Tensor) -> torch.Tensor:
    return t.to_dense() if lacewing.is_sparse_tensor(t) else t


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_slices_and_unbind_of_no_dims_are_refused(dtype: torch.dtype) -> None:
    z = scalar(dtype)

    for op in (lambda: z[:1], lambda: z.unbind(), lambda: torch.ops.aten.slice(z, 0, 0, 1), lambda: z.select(0, 0)):
        with pytest.raises(IndexError, match=r"0-dim tensor|has no dimensions"):
            op()


def test_data_of_another_kind_is_refused() -> None:
    s, x = matrix(), torch.ones(2, 2)

    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        s.data = x
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = s._inner
    s.data = matrix() * 2

    assert torch.equal(s.to_dense(), matrix().to_dense() * 2)
    assert torch.equal(x, torch.ones(2, 2))


def test_a_broadcast_index_is_guarded() -> None:
    s = COO([[0], [0], [0]], torch.ones(1), (10**6, 10**6, 10**3))

    with lacewing.densify_policy("raise", 16 << 20):
        with pytest.raises(RuntimeError, match=r"\[lacewing.densify\].*\(1000000, 1000000, 1\)"):
            s.take_along_dim(torch.zeros(1, 1, 1, dtype=torch.int64), 2)
        with pytest.raises(RuntimeError, match=r"\[lacewing.densify\]"):
            s.take_along_dim(torch.zeros(1, 1, 1, dtype=torch.int64), 0)


@pytest.mark.parametrize("dim", [0, 1])
def test_cat_and_stack_promote(dim: int) -> None:
    a, b = matrix(), COO([[0], [0]], torch.tensor([5]), (2, 2))
    hybrid = COO([[1]], torch.tensor([[1, 2]]), (2, 2))

    for left, right in ((a, b), (b, a.double()), (a, hybrid)):
        for op in (torch.cat, torch.stack):
            found = op([left, right], dim)
            wanted = op([left.to_dense(), right.to_dense()], dim)
            assert found.dtype == wanted.dtype
            assert torch.equal(dense(found), wanted)


def test_padding_blocks_of_duplicates() -> None:
    s = COO([[0, 0]], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (1, 2), fill_value=5.0)

    assert functional.pad(s, (1, 0), value=5.0).to_dense().tolist() == [[5.0, 4.0, 6.0]]


@pytest.mark.parametrize("loss", [functional.smooth_l1_loss, functional.huber_loss])
def test_second_gradient_of_smooth_losses_at_equal_elements(loss: Any) -> None:
    v = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    b = COO([[0]], torch.zeros(1, dtype=torch.float64), (3,))

    (g,) = torch.autograd.grad(loss(COO([[0, 1]], v, (3,)), b), v, create_graph=True)
    (second,) = torch.autograd.grad(g[0], v)

    torch.testing.assert_close(second, torch.tensor([1 / 3, 0.0], dtype=torch.float64))


def test_products_do_not_lose_digits_to_a_large_fill() -> None:
    one = COO([[0], [0]], torch.tensor([1.0]), (1, 1), fill_value=1e8)
    # Row 0 is full, row 1 has three of four, row 2 one, row 3 none.
    places = [[0, 0, 0, 0, 1, 1, 1, 2], [0, 1, 2, 3, 0, 2, 3, 1]]
    some = COO(places, torch.arange(1.0, 9.0), (4, 4), fill_value=1e6)
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0], [2.0, 2.0]])

    assert (one @ torch.ones(1, 1)).item() == 1
    assert (one @ one).item() == 1
    torch.testing.assert_close(some @ x, some.to_dense() @ x)
    torch.testing.assert_close(x.T @ some, x.T @ some.to_dense())
    torch.testing.assert_close((some @ x)[0], some.to_dense()[0] @ x, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.stack([some, some * 2]) @ x, torch.stack([some.to_dense(), some.to_dense() * 2]) @ x
    )
    torch.testing.assert_close(torch.tensordot(some, x, ([1], [0])), some.to_dense() @ x)


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_of_products_with_full_rows(side: str) -> None:
    places = [[0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 2, 1]]
    v = torch.arange(1.0, 7.0, dtype=torch.float64, requires_grad=True)
    f = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def product(v: torch.Tensor, f: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        s = COO(places, v, (3, 3), f)
        return s @ x if side == "left" else x @ s

    assert torch.autograd.gradcheck(product, (v, f, x))
    assert torch.autograd.gradgradcheck(product, (v, f, x))


@pytest.mark.parametrize("fill", [-math.inf, math.inf, math.nan])
def test_products_with_a_fill_that_is_not_finite(fill: float) -> None:
    s = COO([[0, 0], [0, 1]], torch.tensor([1.0, 2.0]), (2, 2), fill_value=fill)
    x = torch.ones(2, 1)

    torch.testing.assert_close(s @ x, s.to_dense() @ x, equal_nan=True)
    assert (s @ x)[0].item() == 3
    torch.testing.assert_close(x.T @ s, x.T @ s.to_dense(), equal_nan=True)


def test_infinite_complex_duplicates_add() -> None:
    s = COO([[0, 0]], torch.tensor([[complex(math.inf, 0)] * 3, [1 + 0j] * 3]), (1, 3))

    assert s.to_dense().tolist() == [[complex(math.inf, 0)] * 3]


@pytest.mark.parametrize("strided", [False, True])
def test_products_of_integers_keep_their_dtype(strided: bool) -> None:
    a = COO([[0, 2]], torch.tensor([2, 3], dtype=torch.int32), (3,))
    m = COO([[0, 1], [1, 0]], torch.tensor([2, 3], dtype=torch.int32), (2, 2))
    other = (lambda t: t.to_dense()) if strided else (lambda t: t)
    batch = torch.stack([m, m])
    ops: list[Any] = [
        lambda a, b, m, n, p, q: torch.dot(a, b),
        lambda a, b, m, n, p, q: torch.vdot(a, b),
        lambda a, b, m, n, p, q: torch.inner(a, b),
        lambda a, b, m, n, p, q: torch.inner(m, n),
        lambda a, b, m, n, p, q: torch.tensordot(m, n),
        lambda a, b, m, n, p, q: torch.tensordot(m, n, 1),
        lambda a, b, m, n, p, q: torch.addbmm(n, p, q),
        lambda a, b, m, n, p, q: torch.addmm(n, m, n),
    ]

    for op in ops:
        found = op(a, other(a), m, other(m), batch, other(batch))
        d, e, f = (t.to_dense() for t in (a, m, batch))
        wanted = op(d, d, e, e, f, f)
        assert found.dtype == wanted.dtype
        assert torch.equal(dense(found), wanted)


def test_integer_division_looks_at_elements_only() -> None:
    full = COO([[0]], torch.tensor([3]), (1,))
    part = COO([[0]], torch.tensor([3]), (2,))

    assert (full // full).to_dense().tolist() == [1]
    assert (6 % full).to_dense().tolist() == [0]
    assert torch.fmod(full, full).to_dense().tolist() == [0]
    assert torch.div(full, full, rounding_mode="trunc").to_dense().tolist() == [1]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        _ = part // part


def test_array_fill_of_another_dtype_is_refused() -> None:
    values = torch.tensor([[1, 2]])

    for fill in ([1.5, 2.5], torch.tensor([1.5, 2.5])):
        with pytest.raises(TypeError):
            COO([[0]], values, (2, 2), fill_value=fill)
    with pytest.raises(TypeError, match="the fill is Double"):
        COO([[0]], values.float(), (2, 2), fill_value=torch.ones(2).double().numpy())
    with pytest.raises(TypeError, match="cannot be cast"):
        COO([[0]], values, (2, 2), fill_value=lacewing.undefined).to_dense(torch.tensor(1.5))
    assert COO([[0]], values.float(), (2, 2), fill_value=[1, 2]).to_dense()[1].tolist() == [1.0, 2.0]


def test_a_tensor_without_dims_where_torch_wants_a_number() -> None:
    z = scalar()

    assert torch.full((2,), z).tolist() == [2.5, 2.5]
    assert torch.arange(z).tolist() == [0.0, 1.0, 2.0]
    assert torch.clamp(torch.ones(2), z, 3.0).tolist() == [2.5, 2.5]
    assert matrix().new_tensor([1, 2]).dtype == torch.float32


def test_torch_sparse_tensors_as_operands() -> None:
    s, eye = matrix(), torch.eye(2)

    for other in (eye.to_sparse(), eye.to_sparse_csr()):
        assert torch.equal((s + other).to_dense(), s.to_dense() + eye)
        assert torch.equal(dense(s @ other), s.to_dense())
        assert torch.equal(torch.cat([s, other]).to_dense(), torch.cat([s.to_dense(), eye]))
    with pytest.raises(RuntimeError, match="values must be strided"):
        COO([[0, 1]], torch.eye(2).to_sparse(), (2, 2))


def test_products_and_repeated_entries_at_scale_are_guarded() -> None:
    s = lacewing.random((10**6, 10**6, 10**3), nse=1000)
    filled = COO(s.indices(), s.values(), s.shape, fill_value=1.0)

    with lacewing.densify_policy("raise", 16 << 20):
        with pytest.raises(RuntimeError, match=r"\[lacewing.densify\]"):
            _ = filled @ torch.ones(10**3, 2)
        with pytest.raises(RuntimeError, match=r"\[lacewing.densify\]"):
            functional.normalize(lacewing.random((10**6, 10**6, 10**3), nse=10**5), dim=2)
