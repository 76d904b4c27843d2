"""Sparse tensors in other forms: conversions and their arguments, copies, shapes, and what must not densify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lacewing

COO = lacewing.sparse_coo_tensor
INDICES = torch.tensor([[0, 1, 2], [1, 0, 2]])


def matrix(**options: Any) -> lacewing.SparseTensor:
    return COO(INDICES, torch.tensor([1.0, 2.0, 3.0]), (3, 4), **options)


# strided


def test_strided_reads_the_elements_of_its_values() -> None:
    values = torch.arange(12.0)[::2]

    found = lacewing.strided((3, 1), values, (2, 3))

    assert found.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert found.data_ptr() == values.data_ptr()


@pytest.mark.parametrize(
    ("strides", "values", "shape", "said"),
    [
        ((1,), torch.arange(9.0)[:3], (5,), r"shape \(5,\) with strides \(1,\) has an element at 4, but values have 3"),
        ((1 << 62, 1 << 62), torch.ones(3), (3, 3), "has an element beyond int64, but values have 3"),
        ((-1,), torch.ones(3), (2,), r"strides \(-1,\) must not be negative"),
        ((1,), torch.ones(3), (2, 2), r"a shape \(2, 2\) needs as many strides, not \(1,\)"),
        (
            (1,),
            torch.ones(3, 4).t(),
            (2,),
            r"must be contiguous or a vector, not of shape \(4, 3\) with strides \(1, 4\)",
        ),
    ],
)
def test_strided_refuses_what_lies_outside_of_its_values(
    strides: tuple[int, ...], values: Tensor, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.strided\] .*" + said):
        lacewing.strided(strides, values, shape)


def test_strided_gives_gradients_to_its_values() -> None:
    values = torch.arange(12.0, requires_grad=True)

    lacewing.strided((1, 1), values[::2], (3, 2)).sum().backward()

    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 0.0, 2.0, 0.0, 2.0, 0.0, 1.0] + [0.0] * 5


# Arguments of conversions


def test_requires_grad_is_set_for_values_beside_a_fill_that_learns() -> None:
    s = matrix(fill_value=torch.tensor(0.5, requires_grad=True))

    s.requires_grad_()

    assert s.values().requires_grad


def test_to_dense_casts() -> None:
    s = COO(INDICES, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), (3, 4))
    u = s.with_fill(lacewing.undefined)

    assert s.to_dense(dtype=torch.float32).dtype == torch.float32
    assert s.to_dense(torch.float32).dtype == torch.float32
    assert u.to_dense(fill=1.0, dtype=torch.float32).dtype == torch.float32


def test_to_dense_takes_no_other_argument() -> None:
    with pytest.raises(TypeError, match="fil"):
        matrix().to_dense(fil=9)  # type: ignore[call-arg]


@pytest.mark.parametrize("masked", [True, False])
def test_a_masked_gradient_does_not_reach_the_fill(masked: bool) -> None:
    values, fill = torch.ones(3, requires_grad=True), torch.tensor(0.5, requires_grad=True)

    COO(INDICES, values, (3, 4), fill_value=fill).to_dense(masked_grad=masked).sum().backward()

    assert values.grad is not None
    assert values.grad.tolist() == [1.0] * 3
    assert (0.0 if fill.grad is None else fill.grad) == (0.0 if masked else 9.0)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("form", ["coo", "gcrs", "hybrid", "block"])
def test_conversions_to_other_dims_keep_the_elements(count: int, form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    dims = {"hybrid": 2, "block": 1}.get(form, 3)
    fill = torch.full((4, 3), 0.5) if form == "block" else torch.tensor(0.5)
    s = lacewing.random((5, 4, 3), nse=3, sparse_dims=dims, fill_value=fill.requires_grad_(), generator=generator)
    s = (s.to_gcs() if form == "gcrs" else s).requires_grad_()
    weights = torch.randn(5, 4, 3, generator=generator)
    leaves = [s.values(), fill]

    found = s.to_sparse(count)
    same = s.to_sparse(dense_dim=3 - count)

    assert isinstance(found, lacewing.SparseTensor)
    assert len(found.indices()) == len(same.indices()) == count
    assert torch.equal(found.to_dense(), s.to_dense())
    gradients = [torch.autograd.grad((t * weights).sum(), leaves, allow_unused=True) for t in (found, s)]
    for mine, theirs, leaf in zip(*gradients, leaves, strict=True):
        torch.testing.assert_close(torch.zeros_like(leaf) if mine is None else mine, theirs)


def test_blocks_form_no_tensor_of_the_whole_shape() -> None:
    s = COO([[5, 5, 90000], [1, 2, 0]], torch.tensor([1.0, 2.0, 3.0]), (10**5, 10**5))

    with lacewing.densify_policy("raise", 1 << 20):
        found = s.to_sparse(1)

    assert found.values().shape == (2, 10**5)
    assert found.values().count_nonzero() == 3


def test_conversions_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"\[lacewing.to_sparse\] a tensor of shape \(3, 4\) cannot have 3 sparse dims"
    ):
        matrix().to_sparse(3)
    with pytest.raises(RuntimeError, match=r"aten::to_sparse_csr needs two sparse dims, but dense_dim leaves 1"):
        matrix().to_sparse_csr(dense_dim=1)
    with pytest.raises(RuntimeError, match="blocks of 1 dims would have elements that are undefined"):
        matrix(fill_value=lacewing.undefined).to_sparse(1)


def test_a_blocksize_without_blocks_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"has no blocks, but blocksize is \(2, 2\)"):
        matrix().to_sparse(layout=torch.sparse_csr, blocksize=(2, 2))


def test_conversions_to_the_same_dims_are_taken() -> None:
    s = matrix()

    assert s.to_sparse(2).format == "coo"
    assert s.to_sparse(layout=torch.sparse_csc, dense_dim=0).format == "gccs"


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc], ids=str)
def test_matrices_of_blocks_are_made_of_the_entries(layout: torch.layout) -> None:
    s = COO([[0, 1, 3], [1, 0, 2]], torch.tensor([1.0, 2.0, 3.0]), (4, 4))

    with lacewing.record_densified() as densified:
        found = s.to_sparse(layout=layout, blocksize=(2, 2))
        same = s.to_sparse_bsr((2, 2)) if layout == torch.sparse_bsr else s.to_sparse_bsc((2, 2))

    assert densified == []
    assert found.layout == same.layout == layout
    assert torch.equal(found.to_dense(), s.to_dense())


# Views and copies


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "cast": lambda s: s.to(torch.float64),
    "double": lambda s: s.double(),
    "copy": lambda s: s.to(torch.float32, copy=True),
    "transposed": lambda s: s.t().contiguous(),
    "permuted": lambda s: s.permute(1, 0).contiguous(),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_can_be_written_to(how: str) -> None:
    s = matrix()
    before = s.to_dense()

    found = COPIES[how](s)
    found.mul_(2)

    assert torch.equal(found.to_dense(), COPIES[how](before) * 2)
    assert torch.equal(s.to_dense(), before)


@pytest.mark.parametrize("how", ["slice", "twice transposed", "identity"])
def test_views_that_are_contiguous_stay_views(how: str) -> None:
    s = matrix()
    view = {"slice": s[:2], "twice transposed": s.t().t(), "identity": s.permute(0, 1)}[how]

    with pytest.raises(RuntimeError, match="in place on a view of a sparse tensor"):
        view.contiguous().mul_(2)


RESHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda t: t.view(-1),
    "reshape": lambda t: t.reshape(2, 6),
    "flatten": lambda t: t.flatten(),
    "unsqueeze": lambda t: t.unsqueeze(1),
}


@pytest.mark.parametrize("how", RESHAPED)
@pytest.mark.parametrize("form", ["coo", "gcrs"])
def test_writes_to_a_view_in_another_shape_reach_the_tensor(how: str, form: str) -> None:
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    s = COO(INDICES, values, (3, 4)) * 2
    s = s.to_gcs() if form == "gcrs" else s
    x = s.to_dense().clone()

    for t in (s, x):
        RESHAPED[how](t).mul_(3)
        view = RESHAPED[how](t)
        view[1:2] = 5.0
        view[:1] += 1.0

    assert isinstance(s, lacewing.SparseTensor)
    assert s.format == form
    assert torch.equal(s.to_dense(), x)
    assert torch.equal(*(torch.autograd.grad(t.sum(), values, retain_graph=True)[0] for t in (s, x)))


def test_a_write_to_one_of_two_views_is_refused() -> None:
    s = matrix()
    flat, other = s.view(-1), s.t()

    with pytest.raises(RuntimeError, match="in place on a view of a sparse tensor"):
        flat.mul_(3)
    del other
    flat.mul_(3)

    assert s.values().tolist() == [3.0, 6.0, 9.0]


@pytest.mark.parametrize("inference", [False, True])
def test_a_write_to_a_view_of_what_was_written_to_is_refused(inference: bool) -> None:
    with torch.inference_mode(inference):
        s = matrix()
        flat = s.view(-1)

        s.mul_(2)
        with pytest.raises(RuntimeError, match="in place on a view of a sparse tensor"):
            flat.mul_(3)

        assert s.values().tolist() == [2.0, 4.0, 6.0]


def test_what_is_contiguous_is_the_tensor_itself() -> None:
    s = matrix()

    s.contiguous().mul_(2)

    assert s.values().tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("shape", [(3, 0), (0,), (0, 5, 2), (2, 0)])
def test_no_elements_in_another_shape_stay_sparse(shape: tuple[int, ...]) -> None:
    s = COO(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, requires_grad=True), (0, 3), fill_value=5.0)

    found = s.reshape(shape)

    assert isinstance(found, lacewing.SparseTensor)
    assert (found.shape, found.fill_value, found.requires_grad) == (torch.Size(shape), 5.0, True)


@pytest.mark.parametrize("nse", [0, 1, 2])
def test_a_number_in_another_shape_stays_sparse(nse: int) -> None:
    s = COO(torch.zeros(0, nse, dtype=torch.int64), torch.full((nse,), 2.0), (), fill_value=5.0)

    found = s.reshape(1, 1)

    assert isinstance(found, lacewing.SparseTensor)
    assert found.fill_value == 5.0
    assert found.to_dense().tolist() == [[2.0 * nse if nse else 5.0]]


@pytest.mark.parametrize("index", [slice(0, 2), (slice(0, 2), slice(None)), (slice(0, 2), 1)], ids=str)
def test_leading_dims_of_size_1_of_what_is_assigned_do_not_count(index: Any) -> None:
    s = matrix()
    x = s.to_dense()
    value = torch.arange(float(x[index].numel())).reshape(1, 1, *x[index].shape)

    s[index] = value
    x[index] = value

    assert torch.equal(s.to_dense(), x)


def test_an_emptied_module_keeps_its_places() -> None:
    module = nn.Module()
    module.register_buffer("sparse", matrix())

    module.to_empty(device="cpu")

    assert isinstance(module.sparse, lacewing.SparseTensor)
    assert (module.sparse.nse, module.sparse.shape) == (3, (3, 4))
    assert torch.equal(module.sparse.indices(), INDICES)


# Elements that are not finite, and fills that are nothing


@pytest.mark.parametrize("number", [float("-inf"), float("nan")])
@pytest.mark.parametrize("op", [torch.cov, lambda t: torch.matrix_power(t, 3)], ids=["cov", "matrix_power"])
def test_elements_that_are_not_finite_count_everywhere(op: Callable[[Tensor], Tensor], number: float) -> None:
    s = COO(torch.tensor([[0, 1, 3], [1, 0, 2]]), torch.tensor([number, 2.0, 1.0]), (4, 4))

    torch.testing.assert_close(op(s).to_dense(), op(s.to_dense()), equal_nan=True)


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda t: nn.functional.dropout(t, 0.5),
    "rrelu": lambda t: nn.functional.rrelu(t, training=True),
}


@pytest.mark.parametrize("how", RANDOM)
@pytest.mark.parametrize("fill", ["undefined", "zero"])
def test_random_ops_leave_what_has_no_entry(how: str, fill: str) -> None:
    values = torch.linspace(-2, 2, 40).view(10, 4)[:, :3].flatten()
    s = COO(
        torch.arange(30).unsqueeze(0), values, (10**9,), fill_value=lacewing.undefined if fill == "undefined" else 0
    )

    found = RANDOM[how](s)

    assert isinstance(found, lacewing.SparseTensor)
    assert found.fill_kind == s.fill_kind
    ratio = found.values()[values < 0] / values[values < 0]
    allowed = (ratio == 0) | (ratio == 2) if how == "dropout" else (ratio >= 1 / 8) & (ratio <= 1 / 3)
    assert bool(allowed.all())


@pytest.mark.parametrize("op", [nn.functional.dropout, nn.functional.alpha_dropout], ids=["dropout", "alpha_dropout"])
def test_dropout_in_place_is_that_of_the_tensor(op: Callable[..., Tensor]) -> None:
    s, t = matrix(), matrix()

    kept = op(s, 0.0, training=True, inplace=True)
    torch.manual_seed(0)
    op(t, 0.5, training=True, inplace=True)
    torch.manual_seed(0)
    wanted = op(matrix(), 0.5, training=True)

    assert kept is s
    assert torch.equal(s.to_dense(), matrix().to_dense())
    assert torch.equal(t.to_dense(), wanted.to_dense())


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_rrelu_that_is_not_trained_has_one_slope(fill: float) -> None:
    s = matrix(fill_value=fill) - 2

    found = nn.functional.rrelu(s)

    assert isinstance(found, lacewing.SparseTensor)
    assert torch.equal(found.to_dense(), nn.functional.rrelu(s.to_dense()))


def test_softmax_of_rows_without_an_entry_names_them() -> None:
    s = COO([[0], [0]], torch.ones(1), (10**5, 10**5), fill_value=float("-inf"))

    with pytest.raises(
        RuntimeError, match=r"fill -inf, which makes rows without a finite entry nan .*lacewing.undefined"
    ):
        torch.softmax(s, 1)

    assert torch.softmax(s.with_fill(lacewing.undefined), 1).values() == 1


# Ops that need not densify


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_few_strided_elements_join_sparse_tensors(dim: int, fill: float) -> None:
    s = COO([[0, 3], [1, 50]], torch.tensor([1.0, 2.0]), (60, 60), fill_value=fill)
    ones = torch.ones(60, 1, requires_grad=True)
    ones_ = ones if dim else ones.t()

    with lacewing.record_densified() as densified:
        found = torch.cat([s, ones_, s], dim)
    (found * found).sum().backward()

    assert densified == []
    assert isinstance(found, lacewing.SparseTensor)
    assert torch.equal(found.to_dense(), torch.cat([s.to_dense(), ones_, s.to_dense()], dim))
    assert ones.grad is not None
    assert torch.equal(ones.grad, torch.full((60, 1), 2.0))


def test_strided_elements_join_blocks_and_an_undefined_fill() -> None:
    s = COO([[0, 2]], torch.ones(2, 4), (3, 4), fill_value=lacewing.undefined)
    x = torch.arange(8.0).view(2, 4)

    found = torch.cat([s, x])

    assert (found.shape, found.fill_kind) == ((5, 4), "undefined")
    assert torch.equal(found.values(), torch.cat([s.values(), x]))


def test_a_chain_of_products_stays_sparse() -> None:
    n = 10**5
    s = COO([[0, 5], [5, 7]], torch.tensor([3.0, -2.0]), (n, n))

    with lacewing.densify_policy("raise", 16 << 20):
        found = torch.chain_matmul(s, s, torch.ones(n, 2))

    assert found[0].tolist() == [-6.0, -6.0]
    assert found.count_nonzero() == 2


def test_a_tensor_of_a_sparse_tensor_is_a_copy_without_its_gradient() -> None:
    s = COO(INDICES, torch.tensor([1.0, 2.0, 3.0], requires_grad=True), (3, 4))

    found = torch.tensor(s)
    double = torch.tensor(s, dtype=torch.float64)
    found.mul_(2)

    assert isinstance(found, lacewing.SparseTensor)
    assert not found.requires_grad
    assert torch.equal(found.to_dense(), 2 * s.to_dense())
    assert torch.equal(double.to_dense(), s.to_dense().double())


def test_gumbel_softmax_draws_for_every_element() -> None:
    values = torch.tensor([1.0, 2.0, 30.0], requires_grad=True)
    s = COO(INDICES, values, (3, 4))

    torch.manual_seed(0)
    found = nn.functional.gumbel_softmax(s, dim=1)
    found.to_dense()[1].square().sum().backward()

    assert torch.allclose(found.sum(1).to_dense(), torch.ones(3))
    assert len(found.to_dense()[0].unique()) == 4
    assert found.to_dense()[2].argmax() == 2
    assert values.grad is not None
    assert values.grad[1] != 0


def test_cosine_similarity_stays_sparse() -> None:
    n = 10**5
    s = COO([[0, 0, 5], [1, 7, 2]], torch.tensor([3.0, 4.0, -2.0]), (n, n))
    t = COO([[0, 5, 9], [1, 2, 3]], torch.tensor([1.0, 1.0, 1.0], requires_grad=True), (n, n))
    rows, columns = [0, 5, 9], [1, 2, 3, 7]

    with lacewing.densify_policy("raise", 16 << 20):
        found = nn.functional.cosine_similarity(s, t, dim=1)
    small = [u.detach()[rows][:, columns].to_dense().requires_grad_() for u in (s, t)]
    wanted = nn.functional.cosine_similarity(*small, dim=1)
    found.sum().backward()
    wanted.sum().backward()

    torch.testing.assert_close(found.to_dense()[rows], wanted)
    assert t.values().grad is not None
    torch.testing.assert_close(t.values().grad, torch.stack([small[1].grad[i, i] for i in range(3)]))


def test_truth_of_all_reads_entries_alone() -> None:
    s = COO([[5], [7]], torch.tensor([False]), (10**5, 10**5), fill_value=True)

    with lacewing.densify_policy("raise", 16 << 20):
        found = torch.ops.aten._is_all_true(s), torch.ops.aten._is_any_true(s)

    assert [bool(f) for f in found] == [False, True]


# Predicates, factories


def test_predicates_of_form_read_no_elements() -> None:
    s = matrix()

    with lacewing.record_densified() as densified:
        answers = s.is_same_size(s.detach()), s.is_same_size(torch.ones(4, 3)), s.is_set_to(s), s.is_set_to(s * 1)

    assert densified == []
    assert answers == (True, False, True, False)


def test_bits_as_another_type_stay_sparse() -> None:
    s = COO(torch.tensor([[0, 0, 2], [1, 1, 2]]), torch.tensor([1.0, 2.0, 3.0]), (3, 4), fill_value=-1.0)

    with lacewing.record_densified() as densified:
        found = s.view(torch.int32)

    assert densified == []
    assert torch.equal(found.to_dense(), s.to_dense().view(torch.int32))


FACTORIES: dict[str, Callable[[Tensor], Tensor]] = {
    "new_zeros": lambda s: s.new_zeros(10**7, 10**7),
    "new_ones": lambda s: s.new_ones(10**7, 10**7),
    "new_full": lambda s: s.new_full((10**7, 10**7), 2.0),
    "new_empty": lambda s: s.new_empty(10**7, 10**7),
}


@pytest.mark.parametrize("how", FACTORIES)
def test_factories_ask_the_densify_policy(how: str) -> None:
    with pytest.raises(RuntimeError, match=rf"\[lacewing.densify\] aten::{how} .*363.8 TiB"):
        FACTORIES[how](matrix())
