"""A sparse matrix by data: one pattern, values that learn."""

import pytest
import torch

import lacewing

SORTED = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
UNSORTED = SORTED[:, [2, 0, 3, 1]]


def matrix(indices: torch.Tensor, fill: float = 0.0) -> lacewing.SparseTensor:
    return lacewing.sparse_coo_tensor(
        indices, torch.ones(indices.shape[1], dtype=torch.double), (3, 3), fill_value=fill
    )


def test_values_are_kept_as_they_are_and_indices_are_shared() -> None:
    s = matrix(UNSORTED)
    w = torch.nn.Parameter(torch.arange(4.0, dtype=torch.double))

    t = s.with_values(w)

    assert t.values().data_ptr() == w.data_ptr()
    assert t.indices().data_ptr() == s.indices().data_ptr()
    assert t.requires_grad
    assert not s.requires_grad


@pytest.mark.parametrize("indices", [SORTED, UNSORTED], ids=["sorted", "unsorted"])
def test_values_learn_whatever_the_order_of_the_entries(indices: torch.Tensor) -> None:
    s = matrix(indices)
    w = torch.randn(4, dtype=torch.double, requires_grad=True)
    x = torch.randn(3, 2, dtype=torch.double)

    (s.with_values(w) @ x).square().sum().backward()

    dense = torch.zeros(3, 3, dtype=torch.double).index_put((indices[0], indices[1]), w)
    wanted = torch.autograd.grad((dense @ x).square().sum(), w)[0]
    assert w.grad is not None
    assert torch.allclose(w.grad, wanted)


def test_a_parameter_is_trained_by_an_optimizer() -> None:
    s = matrix(UNSORTED)
    w = torch.nn.Parameter(torch.zeros(4, dtype=torch.double))
    optimizer = torch.optim.SGD([w], lr=0.2)

    for _ in range(100):
        optimizer.zero_grad()
        (s.with_values(w).values() - 3).square().sum().backward()
        optimizer.step()

    assert torch.allclose(s.with_values(w).to_dense()[1, 2], torch.tensor(3.0, dtype=torch.double))


def test_the_format_and_the_fill_stay() -> None:
    s = matrix(SORTED, 2.0).to_gcs()

    t = s.with_values(torch.full((4,), 5.0, dtype=torch.float))

    assert t.format == s.format
    assert t.dtype == torch.float
    assert t.to_dense().tolist() == [[2.0, 5.0, 2.0], [5.0, 2.0, 5.0], [2.0, 5.0, 2.0]]


def test_values_of_repeated_entries_add_and_learn() -> None:
    s = matrix(SORTED[:, [0, 0, 1, 2]])
    w = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.double, requires_grad=True)

    t = s.with_values(w)
    t.to_dense()[0, 1].backward()

    assert t.to_dense()[0, 1] == 3.0
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
