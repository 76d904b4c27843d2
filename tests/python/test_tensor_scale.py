"""Every operation at a shape that no memory holds, and with bounded memory beside inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import lacewing
from tensor_ops import ops

SHAPE = (10**6, 10**6, 10**3)
# What has no sparse form along a sparse dim: every element of the result differs, or would have to be ordered.
REFUSED = {"softmax", "log_softmax", "cumsum", "cumprod", "sort", "topk"}


@pytest.fixture(scope="module")
def huge() -> lacewing.SparseTensor:
    generator = torch.Generator().manual_seed(0)
    indices = torch.stack([torch.randint(size, (10**5,), generator=generator) for size in SHAPE])
    indices[0, ::3] = 0  # a slice with many entries
    return lacewing.sparse_coo_tensor(indices, torch.rand(10**5, generator=generator) + 0.1, SHAPE).coalesce()


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    with lacewing.densify_policy("raise", 16 << 20):
        yield


def test_at_most_ten_operations_are_refused() -> None:
    assert len(REFUSED) <= 10
    assert set(ops()) >= REFUSED


@pytest.mark.parametrize("name", ops())
def test_it_runs_where_no_memory_holds_the_shape(name: str, huge: lacewing.SparseTensor) -> None:
    if name in REFUSED:
        with pytest.raises(RuntimeError, match=r"\[lacewing.densify\]"):
            ops()[name](huge)
    else:
        ops()[name](huge)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda s: s.sum(),
        lambda s: (s * s).sum(),
        lambda s: s.mean(),
        lambda s: torch.cos(s).sum(2).norm(),
        lambda s: s.norm(),
        lambda s: s.amax(),
        lambda s: s.max(2).values.sum(),
        lambda s: (s.flatten(0, 1) * s.flatten(0, 1)).sum(),
    ],
)
def test_backward_never_materialises_the_shape(reduce: object, huge: lacewing.SparseTensor) -> None:
    values = huge.values().detach().clone().requires_grad_()
    fill = torch.zeros((), requires_grad=True)
    s = lacewing.sparse_coo_tensor(huge.indices(), values, SHAPE, fill)

    reduce(s).backward()  # type: ignore[operator]

    assert values.grad is not None
    assert values.grad.shape == values.shape


def test_the_sum_has_the_right_gradients_there(huge: lacewing.SparseTensor) -> None:
    values = huge.values().detach().double().requires_grad_()
    fill = torch.zeros((), dtype=torch.float64, requires_grad=True)

    lacewing.sparse_coo_tensor(huge.indices(), values, SHAPE, fill).sum().backward()

    assert torch.equal(values.grad, torch.ones_like(values))  # type: ignore[arg-type]
    assert fill.grad == 10**15 - huge.nse
