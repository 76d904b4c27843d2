"""Answers of sparse tensors that were wrong or crashed once, each by its input."""

from __future__ import annotations

import math
from pathlib import Path
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


def gcrs() -> lacewing.SparseTensor:
    arrays = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2])
    return lacewing.sparse_gcs_tensor(*arrays, torch.ones(3), (3, 3))


@pytest.mark.parametrize("bad", [10**9, -5])
def test_compressed_indices_that_were_written_to_are_looked_at_again(bad: int) -> None:
    ops = (
        lambda s: s @ torch.ones(3, 2),
        lambda s: s.to_dense(),
        lambda s: s.sum(1),
        lambda s: s + s,
        lambda s: s.is_coalesced(),
        lambda s: s.to_coo(),
        lambda s: s.to_gcs(compressed="columns"),
        lambda s: s.t() @ torch.ones(3, 2),
        lambda s: s.to_torch(torch.sparse_csr),
        lambda s: s.to_scipy(),
    )
    for op in ops:
        s = gcrs()
        s.compressed_indices()[1] = bad
        with pytest.raises(RuntimeError, match=rf"compressed_indices\[1\] = {bad} must lie between"):
            op(s)
        s.compressed_indices()[1] = 1
        op(s)

    csr = torch.eye(3).to_sparse_csr()
    shared = lacewing.from_torch(csr)
    csr.crow_indices()[1] = bad
    # torch counts writes to both arrays together.
    with pytest.raises(RuntimeError, match=r"compressed_indices\[1\]|the indices .* were written to"):
        shared.to_dense()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool], ids=str)
def test_reductions_of_dense_dims_have_the_dtype_asked_for(dtype: torch.dtype) -> None:
    s = COO([[1]], torch.tensor([[1, 2, 3]], dtype=torch.int32), (2, 3), fill_value=1)

    for t in (s, s.float()):
        for name, dim in (("sum", 1), ("sum", None), ("prod", 1)):
            result, expected = (getattr(x, name)(dim, dtype=dtype) for x in (t, t.to_dense()))
            assert result.dtype == dtype
            assert torch.equal(dense(result), expected)


def test_products_of_narrow_integers_keep_their_dtype() -> None:
    s = COO(torch.empty(0, 1, dtype=torch.int64), torch.tensor([[1, 2, 3]], dtype=torch.int8), (3,))
    x = s.to_dense()
    ops = (torch.dot, torch.matmul, torch.inner, functional.linear)

    assert [op(s, s).dtype for op in ops] == [torch.int8] * 4
    assert [dense(op(s, s)).item() for op in ops] == [op(x, x).item() for op in ops]
    a = COO([[0], [0]], torch.ones(1, 1, dtype=torch.uint8), (1, 2, 1))
    b = COO([[0]], torch.ones(1, 3, 2, dtype=torch.uint8), (1, 3, 2), fill_value=1)
    dims = ([1, 2], [2, 0])
    found, expected = torch.tensordot(a, b, dims), torch.tensordot(a.to_dense(), b.to_dense(), dims)
    assert found.dtype == torch.uint8
    assert torch.equal(dense(found), expected)


@pytest.mark.parametrize(
    "index", [torch.tensor([1.7]), torch.tensor([1j]), torch.tensor([1], dtype=torch.int8)], ids=str
)
def test_index_tensors_of_another_type_are_refused(index: torch.Tensor) -> None:
    s = lacewing.to_sparse(torch.eye(3))
    before = s.to_dense()

    for read in (lambda: s[index], lambda: s[:, index], lambda: s[index, index]):
        with pytest.raises(IndexError, match="tensors used as indices must be long, int, byte or bool"):
            read()
    for place in (index, (index, index)):
        with pytest.raises(IndexError, match="tensors used as indices must be long, int, byte or bool"):
            s[place] = 5.0
    assert torch.equal(s.to_dense(), before)
    s[[]] = 5.0
    assert torch.equal(s.to_dense(), before)


@pytest.mark.parametrize("fill", [0.0, 2 - 1j])
def test_parts_of_conjugates(fill: complex) -> None:
    s = COO([[0]], torch.tensor([1 + 2j]), (2,), fill_value=fill)

    assert torch.equal(dense(s.conj().imag), s.to_dense().conj().imag)
    assert torch.equal(dense(s.conj().real), s.to_dense().conj().real)
    assert torch.equal(dense(torch.view_as_real(s.conj())), torch.view_as_real(s.to_dense().conj().resolve_conj()))


UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_slices_of_wide_unsigned_integers(dtype: torch.dtype) -> None:
    s = lacewing.to_sparse(torch.eye(3).to(dtype) * 7)
    x = s.to_dense()

    for index in ((slice(None), slice(1, None)), (slice(1), slice(None, None, 2)), (slice(None), 1), slice(1, 2)):
        assert torch.equal(dense(s[index]), x[index])


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
@pytest.mark.parametrize(
    "index",
    [
        (0, 0),
        (slice(None), 1),
        (slice(1), slice(1, None)),
        torch.tensor([[True, False], [False, True]]),
        (torch.tensor([0, 1]), torch.tensor([1, 1])),
        slice(None),
        1,
    ],
    ids=str,
)
def test_assignment_of_wide_unsigned_integers(dtype: torch.dtype, index: Any) -> None:
    top = torch.iinfo(dtype).max
    signed = torch.eye(2).to(torch.int64)
    for value in (5, top):
        s = lacewing.to_sparse(torch.eye(2).to(dtype))
        s[index] = value
        expected = signed.clone()
        expected[index] = value if value < 2**63 else -1
        assert s.dtype == dtype
        assert torch.equal(s.to_dense().to(torch.int64), expected)


def test_empty_products_with_a_fill() -> None:
    e = COO(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (3, 3), fill_value=1.0)
    b = COO(torch.zeros(3, 0, dtype=torch.int64), torch.zeros(0), (2, 0, 3), fill_value=1.0)

    assert (e @ torch.ones(2, 3, 0)).shape == (2, 3, 0)
    assert (torch.ones(2, 0, 3) @ e).shape == (2, 0, 3)
    assert torch.bmm(b, torch.ones(2, 3, 0)).shape == (2, 0, 0)
    assert torch.bmm(torch.ones(2, 0, 3), b.transpose(1, 2)).shape == (2, 0, 0)
    assert torch.einsum("ij,bjk->bik", e, torch.ones(2, 3, 0)).shape == (2, 3, 0)


@pytest.mark.parametrize("alpha", [1, 0])
def test_index_add_of_booleans(alpha: int) -> None:
    x, place, source = torch.tensor([[True, False]]), torch.tensor([0, 0]), torch.tensor([[False, True], [True, True]])
    s = lacewing.to_sparse(x)
    expected = x.index_add(0, place, source, alpha=alpha)

    assert torch.equal(dense(s.index_add(0, place, source, alpha=alpha)), expected)
    s.index_add_(0, place, source, alpha=alpha)
    assert torch.equal(s.to_dense(), expected)


@pytest.mark.parametrize("op", [torch.softmax, torch.log_softmax])
def test_softmax_without_entries_is_sparse(op: Any) -> None:
    fill = torch.tensor(2.0, requires_grad=True)
    s = COO(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (10**6,), fill_value=fill)
    many = COO(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 3), (4, 5, 3), fill_value=torch.arange(3.0))

    with lacewing.densify_policy("raise", 1000):
        found = op(s, 0)
        each = op(many, 1)
    assert lacewing.is_sparse_tensor(found)
    assert found.nse == 0
    assert torch.allclose(found.fill_value, op(torch.full((10**6,), 2.0), 0)[0])
    assert torch.allclose(dense(each), op(many.to_dense(), 1))
    (slope,) = torch.autograd.grad(found.to_dense().sum(), fill)
    assert slope.item() == 0


def test_numbers_assigned_by_a_mask() -> None:
    for mask in (torch.tensor(True), torch.tensor(False)):
        s, x = scalar(), torch.tensor(2.5)
        s[mask] = 5.0
        x[mask] = 5.0
        assert torch.equal(s.to_dense(), x)
    s = scalar()
    s[s > 0] = 0.0
    assert s.to_dense().item() == 0
    s[s > 0] += 1.0
    assert s.to_dense().item() == 0


def test_an_undefined_fill_is_not_asked_for_where_it_is_not_needed() -> None:
    s = matrix(fill_value=lacewing.undefined)

    assert torch.equal(functional.dropout(s, 0.5, False).values(), s.values())
    assert torch.equal(functional.dropout(s, 0.0, True).values(), s.values())
    s[1, 1] = 9.0
    s[0] = torch.tensor([7.0, 8.0])
    assert s.fill_kind == "undefined"
    assert torch.equal(s.to_dense(fill=-1.0), torch.tensor([[7.0, 8.0], [3.0, 9.0]]))
    with pytest.raises(RuntimeError, match="fill is undefined"):
        s.index_put_((torch.tensor([0]), torch.tensor([0])), torch.tensor([1.0]), accumulate=True)


def test_out_says_what_does_not_fit() -> None:
    a, b = matrix(), matrix()

    with pytest.raises(
        RuntimeError, match=r"aten::cumsum cannot write its result to a sparse out=: it is strided here"
    ):
        torch.cumsum(b, 0, out=a)
    with pytest.raises(RuntimeError, match=r"sparse out= of dtype Long: it is Float"):
        torch.add(b, b, out=a.long())
    z = scalar()
    torch.cos(scalar(), out=z)
    assert z.to_dense().item() == pytest.approx(math.cos(2.5))
    with pytest.raises(RuntimeError, match=r"in place gives Float, which cannot be cast to Long"):
        scalar(torch.int64).add_(1.5)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (2**70, torch.float32),
        (2**70, torch.int64),
        (2**63, torch.int64),
        (300, torch.uint8),
        (-1, torch.uint8),
        (-1, torch.uint64),
        (1e300, torch.float32),
        (-1e300, torch.float32),
        (65520.0, torch.float16),
        (1e300 + 1j, torch.complex64),
    ],
    ids=str,
)
def test_fills_that_do_not_fit_are_refused(number: complex, dtype: torch.dtype) -> None:
    values = torch.ones(1).to(dtype)

    with pytest.raises(TypeError, match=r"\[lacewing.sparse_coo_tensor\] the fill .* does not fit into the values'"):
        COO([[0]], values, (2,), fill_value=number)
    with pytest.raises(TypeError, match=r"\[lacewing.with_fill\] the fill .* does not fit into the values'"):
        COO([[0]], values, (2,)).with_fill(number)
    with pytest.raises(TypeError, match=r"\[lacewing.to_dense\] the fill .* does not fit into the values'"):
        COO([[0]], values, (2,), fill_value=lacewing.undefined).to_dense(fill=number)


@pytest.mark.parametrize(
    ("fill", "dtype"),
    [
        ([-1, 0], torch.uint8),
        ([300, 0], torch.uint8),
        ([-1, 0], torch.uint64),
        ([1e300, 0.0], torch.float16),
    ],
    ids=str,
)
def test_lists_as_fills_that_do_not_fit_are_refused(fill: list[float], dtype: torch.dtype) -> None:
    values = torch.ones(1, 2).to(dtype)

    with pytest.raises(TypeError, match=r"\[lacewing.sparse_coo_tensor\] the fill \[.* does not fit into the values'"):
        COO([[0]], values, (2, 2), fill_value=fill)
    assert COO([[0]], values, (2, 2), fill_value=[3, 255]).fill_value.tolist() == [3, 255]


def test_fills_at_the_ends_of_their_types_fit() -> None:
    ends = [(255, torch.uint8), (2**64 - 1, torch.uint64), (-(2**63), torch.int64), (math.inf, torch.float16)]
    for number, dtype in [*ends, (65504.0, torch.float16), (0.1, torch.float64), (True, torch.bool)]:
        assert COO([[0]], torch.ones(1).to(dtype), (2,), fill_value=number).fill_value.item() == number


def test_sentences_of_constructors() -> None:
    with pytest.raises(RuntimeError, match=r"uint64 that int64 cannot hold, 9223372036854775809"):
        COO(torch.tensor([[1, 2**63 + 1]], dtype=torch.uint64), torch.ones(2), (2,))
    with pytest.raises(ValueError, match=r"\[lacewing.eye\] rows and columns must not be negative, not \(-1, -1\)"):
        lacewing.eye(-1)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(TypeError, match=rf"\[lacewing.to_scipy\] SciPy has no sparse arrays of {dtype}"):
            matrix().to(dtype).to_scipy()


@pytest.mark.parametrize("by_scan", [True, False])
@pytest.mark.parametrize("write", ["given", "asked for"])
def test_indices_that_were_written_to_are_refused(write: str, by_scan: bool) -> None:
    ops = (
        lambda s: s @ torch.ones(4, 2),
        lambda s: s.to_dense(),
        lambda s: s.sum(1),
        lambda s: s * s,
        lambda s: s[1],
        lambda s: s.coalesce(),
        lambda s: s.T.coalesce(),
        lambda s: s.to_sparse_csr(),
        lambda s: s.indices(),
        lambda s: s.is_coalesced(),
    )
    for op in ops:
        indices = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]])
        s = COO(indices if by_scan else indices.flip(1), torch.ones(4), (3, 4))
        turned = s.T
        if by_scan:
            op(s)  # what is kept does not hide the write
        (indices if write == "given" and by_scan else s.indices()).sub_(1)
        for t in (s, turned):
            with pytest.raises(RuntimeError, match=r"\[lacewing.SparseTensor\] the indices .* were written to"):
                op(t) if t is s else t.coalesce()


def test_plain_indices_that_were_written_to_are_refused() -> None:
    plain = torch.tensor([0, 1, 2])
    s = lacewing.sparse_gcs_tensor([0, 1, 2, 3], plain, torch.ones(3), (3, 3))

    plain[0] = 5

    for op in (lambda s: s.to_dense(), lambda s: s @ torch.ones(3, 1), lambda s: s.to_coo(), lambda s: s.T.to_dense()):
        with pytest.raises(RuntimeError, match=r"\[lacewing.SparseTensor\] the indices .* were written to"):
            op(s)


def test_indices_that_leave_no_size_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"indices have 9223372036854775807 in dim 0: int64 cannot hold a size"):
        COO([[0, 2**63 - 1]], [1.0, 2.0])


def test_numbers_that_no_text_file_holds_are_refused(tmp_path: Path) -> None:
    s = COO([[0], [0]], torch.tensor([2**64 - 1], dtype=torch.uint64), (1, 1))

    for write in (lacewing.write_mtx, lacewing.write_tns):
        with pytest.raises(RuntimeError, match=r"a number of uint64 above 2\^63 - 1 does not fit"):
            write(s, tmp_path / "x")
        with pytest.raises(TypeError, match=r"the tensor must be a SparseTensor, not Tensor"):
            write(torch.eye(2), tmp_path / "x")


@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_products_of_dtypes_without_sums(dtype: torch.dtype) -> None:
    a = COO([[0, 2]], torch.tensor([1.0, 2.0]).to(dtype), (3,))
    b = COO([[0], [2]], torch.tensor([3.0]).to(dtype), (2, 3))
    try:
        expected = a.to_dense() * b.to_dense()
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch does not multiply them either")

    found = (a * b).to_dense()
    as_reals = torch.view_as_real if dtype.is_complex else torch.Tensor.float
    assert torch.equal(as_reals(found), as_reals(expected))
