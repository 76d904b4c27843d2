"""Reductions and products of float16 and bfloat16: accumulated in a wider type, as torch does it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lacewing

pytestmark = pytest.mark.filterwarnings("ignore")
HALVES = [torch.float16, torch.bfloat16]
REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "nansum": torch.nansum,
    "norm": torch.linalg.vector_norm,
    "norm1": lambda t: torch.linalg.vector_norm(t, 1),
    "norm3": lambda t: torch.linalg.vector_norm(t, 3),
    "var": torch.var,
    "std": torch.std,
    "var_mean": lambda t: torch.stack(torch.var_mean(t)),
    "logsumexp": lambda t: t.logsumexp(0),
    "squares": lambda t: (t * t).sum(),
    "amax": torch.amax,
    "to_double": lambda t: t.sum(dtype=torch.float64),
}


def dense(t: torch.Tensor) -> torch.Tensor:
    return t.to_dense() if lacewing.is_sparse_tensor(t) else t


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The rounding of the dtype, twice."""
    assert found.dtype == wanted.dtype
    tolerance = 4 * torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(dense(found), wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_more_elements_without_an_entry_than_half_can_count(name: str, dtype: torch.dtype, device: str) -> None:
    s = lacewing.sparse_coo_tensor([[0]], torch.tensor([1.0], dtype=dtype, device=device), (70000,))

    assert_same(REDUCTIONS[name](s), REDUCTIONS[name](s.to_dense()))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_squares_and_sums_beyond_the_largest_half(name: str, device: str) -> None:
    large = lacewing.sparse_coo_tensor([[0, 1]], torch.tensor([300.0, 200.0], dtype=torch.float16, device=device), (2,))
    sums = lacewing.sparse_coo_tensor([[0, 1, 2]], torch.full((3,), 4e4, dtype=torch.float16, device=device), (4,))

    assert_same(REDUCTIONS[name](large), REDUCTIONS[name](large.to_dense()))
    assert_same(REDUCTIONS[name](sums), REDUCTIONS[name](sums.to_dense()))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_variance_of_a_large_fill(dtype: torch.dtype, device: str) -> None:
    values = torch.tensor([1001.0], dtype=dtype, device=device)
    s = lacewing.sparse_coo_tensor([[0]], values, (300,), torch.tensor(1000.0, dtype=dtype, device=device))

    assert_same(s.var(), s.to_dense().var())
    assert_same(s.std(), s.to_dense().std())


def test_variance_of_floats_is_that_of_doubles(device: str) -> None:
    values = torch.tensor([10001.0], device=device)
    s = lacewing.sparse_coo_tensor([[0]], values, (10**6,), torch.tensor(1e4, device=device))

    assert torch.isclose(s.var(), s.to_dense().var(), rtol=1e-4)


def test_normalize_and_mse_loss_and_softmax(device: str) -> None:
    s = lacewing.sparse_coo_tensor([[0, 1]], torch.tensor([300.0, 200.0], dtype=torch.float16, device=device), (2,))
    long = lacewing.sparse_coo_tensor([[0]], torch.tensor([1.0], dtype=torch.float16, device=device), (70000,))

    assert_same(torch.nn.functional.normalize(s, dim=0), torch.nn.functional.normalize(s.to_dense(), dim=0))
    assert_same(long.softmax(0), long.to_dense().softmax(0))
    assert_same(
        torch.nn.functional.mse_loss(long, long * 2), torch.nn.functional.mse_loss(long.to_dense(), long.to_dense() * 2)
    )


def test_a_product_with_a_fill_over_many_columns(device: str) -> None:
    s = lacewing.sparse_coo_tensor(
        [[0], [0]], torch.tensor([1.0], dtype=torch.float16, device=device), (2, 70000), fill_value=0.001
    )
    x = torch.ones(70000, 1, dtype=torch.float16, device=device)

    assert_same(s @ x, (s.to_dense().float() @ x.float()).half())


def test_gradients_of_shared_extremes_count_more_than_half_can(device: str) -> None:
    values = torch.ones(1, dtype=torch.float16, device=device, requires_grad=True)
    s = lacewing.sparse_coo_tensor([[0]], values, (70000,), torch.tensor(1.0, dtype=torch.float16, device=device))

    s.amax().backward()

    assert values.grad is not None
    assert abs(values.grad.item() - 1 / 70000) < 1e-6


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_reductions_agree_over_many_elements_and_magnitudes(dtype: torch.dtype, data: st.DataObject) -> None:
    """Up to 10^5 elements, magnitudes up to 10^4, any fill; compared by the rounding of the dtype."""
    columns = data.draw(st.integers(1, 10**5))
    nse = data.draw(st.integers(0, 50))
    magnitude = 10.0 ** data.draw(st.integers(-2, 4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    values = (torch.rand(nse, generator=generator) * magnitude).to(dtype)
    fill = torch.tensor(data.draw(st.sampled_from([0.0, 0.5, 1.0])), dtype=dtype)
    indices = torch.randint(0, columns, (1, nse), generator=generator)
    s = lacewing.sparse_coo_tensor(indices, values, (columns,), fill).coalesce()
    name = data.draw(st.sampled_from([n for n in REDUCTIONS if n != "var_mean"]))
    if columns == 1 and name in ("var", "std"):
        return

    found, wanted = REDUCTIONS[name](s), REDUCTIONS[name](s.to_dense())

    x = s.to_dense()
    exact = (x * x).double().sum() if name == "squares" else REDUCTIONS[name](x.double())
    tolerance = 8 * torch.finfo(dtype).eps
    close = torch.isclose(found.double(), exact, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert close or torch.equal(found, wanted) or (exact.abs() > torch.finfo(dtype).max and found.isinf()), (
        name, found, wanted, exact,
    )  # fmt: skip
