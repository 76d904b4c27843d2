"""Sparse tensors under ops of every registration: what torch has on one device only, what other libraries define."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import lacewing


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("lacewing_dispatch_test", "DEF") as made:
        yield made


@pytest.fixture
def s(device: str) -> Tensor:
    values = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, device=device)
    return lacewing.sparse_coo_tensor(torch.tensor([[0, 1, 2], [1, 0, 3]], device=device), values, size=(3, 4))


def dense_kernel(device: str) -> str:
    return {"cpu": "CPU", "cuda": "CUDA"}[device]


def test_a_composite_with_a_kernel_of_the_device_is_decomposed(
    library: torch.library.Library, s: Tensor, device: str
) -> None:
    def kernel(x: Tensor) -> Tensor:
        raise AssertionError(f"a kernel got {x.data_ptr()}")

    library.define("fused(Tensor x) -> Tensor")
    library.impl("fused", lambda x: torch.cos(x) * 2, "CompositeImplicitAutograd")
    library.impl("fused", kernel, dense_kernel(device))

    found = torch.ops.lacewing_dispatch_test.fused(s)

    assert lacewing.is_sparse_tensor(found)
    assert torch.equal(found.to_dense(), torch.cos(s.to_dense()) * 2)


@pytest.mark.parametrize("other", ["none", "strided", "row"])
def test_a_result_that_is_kept_aside_is_given_as_it_is(
    library: torch.library.Library, s: Tensor, device: str, other: str
) -> None:
    library.define("with_buffer(Tensor x, Tensor? y) -> (Tensor, Tensor)", tags=(torch.Tag.pointwise,))
    library.impl(
        "with_buffer", lambda x, y: (x * 2 if y is None else x + y, x.new_empty(0)), "CompositeExplicitAutograd"
    )
    x = s.to_dense()
    y = {"none": None, "strided": torch.ones_like(x), "row": torch.arange(4, dtype=x.dtype, device=device)}[other]

    value, buffer = torch.ops.lacewing_dispatch_test.with_buffer(s, y)

    assert torch.equal(value.to_dense(), x * 2 if y is None else x + y)
    assert not lacewing.is_sparse_tensor(buffer)
    assert buffer.shape == (0,)


@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1)])
def test_operands_of_a_pointwise_op_meet_at_one_shape(
    library: torch.library.Library, s: Tensor, device: str, shape: tuple[int, ...]
) -> None:
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        assert x.shape == y.shape
        return x.isnan().logical_and_(y.isnan()).logical_or_(x == y)

    library.define("same(Tensor x, Tensor y) -> Tensor", tags=(torch.Tag.pointwise,))
    library.impl("same", kernel, "CompositeExplicitAutograd")
    y = torch.zeros(shape, dtype=s.dtype, device=device)

    found = torch.ops.lacewing_dispatch_test.same(s, y)
    swapped = torch.ops.lacewing_dispatch_test.same(y, s)

    assert torch.equal(found.to_dense(), s.to_dense() == y)
    assert torch.equal(swapped.to_dense(), s.to_dense() == y)


def test_code_that_reads_memory_gets_a_sentence(s: Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.SparseTensor\] a sparse tensor has no memory of its own"):
        s.data_ptr()


def test_index_tensors_of_the_host_are_taken(s: Tensor) -> None:
    x = s.to_dense()
    rows, columns = torch.tensor([2, 0, 2]), torch.tensor([3, 3, 0])
    mask = torch.tensor([True, False, True])

    assert torch.equal(s[rows].to_dense(), x[rows])
    assert torch.equal(s[rows, columns], x[rows, columns])
    assert torch.equal(s[mask].to_dense(), x[mask])
    s[rows, columns] = torch.tensor(7.0, dtype=x.dtype)
    x[rows, columns] = 7.0
    assert torch.equal(s.to_dense(), x)
