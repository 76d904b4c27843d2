"""Writes to sparse tensors: assignment by index, copies, in-place ops on leaves, and where gradients are."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

import lacewing

pytestmark = pytest.mark.filterwarnings("ignore")
COO = lacewing.sparse_coo_tensor


def matrix(**options: Any) -> lacewing.SparseTensor:
    return COO([[0, 1], [1, 0]], torch.tensor([2.0, 3.0]), (2, 2), **options)


def add(t: Any, index: Any, value: Any) -> None:
    t[index] += value


def assign(t: Any, index: Any, value: Any) -> None:
    t[index] = value


INDICES: dict[str, Any] = {
    "element": (0, 1),
    "row": 0,
    "negative": -1,
    "slice": slice(0, 1),
    "column": (slice(None), 1),
    "dots": ...,
    "empty": (),
    "numpy": (numpy.int64(0), 1),
    "list": [0],
    "array": numpy.array([1]),
    "tensor": torch.tensor([1]),
    "tensors": (torch.tensor([0, 1]), torch.tensor([1, 1])),
    "columns": (slice(None), torch.tensor([1])),
    "strided mask": torch.tensor([[True, False], [True, False]]),
}


@pytest.mark.parametrize("fill", [0.0, 1.0])
@pytest.mark.parametrize("write", [assign, add])
@pytest.mark.parametrize("name", INDICES)
def test_writes_are_those_of_strided_tensors(name: str, write: Any, fill: float) -> None:
    s = matrix(fill_value=fill)
    x = s.to_dense()

    write(s, INDICES[name], 7.0)
    write(x, INDICES[name], 7.0)

    assert torch.equal(s.to_dense(), x)


@pytest.mark.parametrize("write", [assign, add])
@pytest.mark.parametrize(
    "index", [(0, 1), (0, 1, 2), (slice(None), 0, 1), (..., 1), (1, slice(0, 2), slice(1, 3)), (0, ..., -1)]
)
def test_blocks_are_written_in_part(index: Any, write: Any) -> None:
    s = COO([[0, 2]], torch.arange(12.0).view(2, 2, 3), (3, 2, 3), fill_value=1.0)
    x = s.to_dense()
    value = torch.arange(float(x[index].numel())).view(x[index].shape)

    for t in (s, x):
        write(t, index, value)
        write(t, index, 2.0)

    assert torch.equal(s.to_dense(), x)


@pytest.mark.parametrize("fill", [0.0, 5.0])
def test_assignment_by_a_sparse_mask(fill: float) -> None:
    s = matrix(fill_value=fill)
    x = s.to_dense()

    s[s > 2.5] = 0.0
    x[x > 2.5] = 0.0

    assert torch.equal(s.to_dense(), x)


def test_masks_at_scale_stay_sparse() -> None:
    s = lacewing.random((10**6, 10**6, 10**3), nse=100)

    with lacewing.densify_policy("raise", 1 << 20):
        chosen = s[s > 0.5]
        s[s > 0.5] = 0.0

    assert chosen.numel() > 0
    assert s.max().item() <= 0.5


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(IndexError):
        _ = matrix()[torch.tensor([True])]


def test_a_changed_view_that_is_not_assigned_is_refused() -> None:
    s = matrix()
    row = s[0]
    row += 1

    with pytest.raises(RuntimeError, match="was written to in place, but it is a copy"):
        s.sum()

    assert torch.equal(s.to_dense(), matrix().to_dense())


def test_a_changed_view_assigned_elsewhere_is_refused() -> None:
    s = matrix()
    row = s[0]
    row += 1
    s_other = matrix()
    s_other[1] = row

    with pytest.raises(RuntimeError, match="was written to in place, but it is a copy"):
        s.sum()

    assert s_other.to_dense()[1].tolist() == [1.0, 3.0]


def test_rows_take_strided_and_sparse_values() -> None:
    s = matrix()
    s[0] += torch.tensor([1.0, 2.0])
    s[1] = COO([[0]], torch.tensor([9.0]), (2,))

    assert s.to_dense().tolist() == [[1.0, 4.0], [9.0, 0.0]]


def test_a_tensor_without_sparse_dims_is_written() -> None:
    s = COO(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([[1.0, 2.0]]), (2,))
    values = s.values().clone()
    piece = s[1]
    s[1] += 1
    s[0:1] = 5.0
    z = COO(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([2.5]), ())
    z[()] = 3.0
    z.add_(1)

    assert piece.item() == 2.0
    assert values.tolist() == [[1.0, 2.0]]
    assert s.to_dense().tolist() == [5.0, 3.0]
    assert z.item() == 4.0


def test_copies_replace_the_entries() -> None:
    s, other = matrix(), COO([[0], [0]], torch.tensor([1]), (2, 2), fill_value=2)

    s.copy_(other)
    from_strided = matrix().copy_(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))

    assert s.dtype == torch.float32
    assert torch.equal(s.to_dense(), other.to_dense().float())
    assert (from_strided.nse, from_strided.to_dense().tolist()) == (1, [[0.0, 0.0], [4.0, 0.0]])
    with pytest.raises(RuntimeError, match=r"\[lacewing.SparseTensor\] copy_ cannot bring a source of shape \(3,\)"):
        s.copy_(torch.ones(3))
    other.values().zero_()
    assert s.to_dense()[0, 0].item() == 1


def test_ops_in_place_return_the_tensor() -> None:
    s = matrix()

    assert s.add_(1) is s
    assert torch.relu_(s) is s


def test_leaves_are_not_written_in_place() -> None:
    s = matrix(requires_grad=True)

    for write in (lambda: s.mul_(2), lambda: assign(s, (0, 0), 1.0), lambda: s.zero_()):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
            write()

    assert torch.equal(s.to_dense(), matrix().to_dense())


def test_a_leaf_is_detached_in_place() -> None:
    s = matrix(requires_grad=True)

    s.detach_()

    assert not s.requires_grad
    assert s.mul_(2).to_dense().tolist() == [[0.0, 4.0], [6.0, 0.0]]


def test_leaves_stay_the_same_tensors_without_grad_mode() -> None:
    s = matrix(requires_grad=True)
    values = s.values()

    with torch.no_grad():
        s.mul_(2)
        s[0, 1] = 7.0

    assert s.values() is values or s.values().data_ptr() == values.data_ptr()
    assert values.tolist() == [7.0, 6.0]
    with torch.no_grad():
        s[0, 0] = 1.0
    assert s.requires_grad
    assert s.values().is_leaf
    s.sum().backward()
    assert s.values().grad is not None


def test_gradients_with_respect_to_a_sparse_tensor() -> None:
    s = matrix(requires_grad=True)
    x = torch.ones(2, requires_grad=True)

    of_s, of_x = torch.autograd.grad((s * s).sum() + x.sum(), [s, x], create_graph=True)

    assert isinstance(of_s, lacewing.SparseTensor)
    assert of_s.to_dense().tolist() == [[0.0, 4.0], [6.0, 0.0]]
    assert of_x.tolist() == [1.0, 1.0]
    (second,) = torch.autograd.grad(of_s.sum(), s.values())
    assert second.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="needs strided outputs"):
        torch.autograd.grad(s * 2, [s])


def test_backward_into_a_sparse_tensor_among_the_inputs() -> None:
    s, other = matrix(requires_grad=True), torch.ones((), requires_grad=True)

    (s.sum() * other).backward(inputs=[s])

    assert s.values().grad is not None
    assert s.values().grad.tolist() == [1.0, 1.0]
    assert other.grad is None


def test_hooks_are_refused() -> None:
    s = matrix(requires_grad=True)

    for register in (lambda: s.register_hook(print), s.retain_grad):
        with pytest.raises(RuntimeError, match=r"gradients reach: those of a sparse tensor reach its values\(\)"):
            register()


def test_format_strings() -> None:
    s = matrix()
    z = COO(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([2.5]), ())

    assert f"{s}" == repr(s)
    assert f"{z:.2f}" == "2.50"


@pytest.mark.parametrize("workers", [0, 1])
def test_default_collate_stacks(workers: int) -> None:
    (batch,) = DataLoader([matrix(), matrix()], batch_size=2, num_workers=workers)

    assert isinstance(batch, lacewing.SparseTensor)
    assert torch.equal(batch.to_dense(), torch.stack([matrix().to_dense()] * 2))


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: COO([[0]], [1.0], size=(3.5,)), TypeError, r"\[lacewing.sparse_coo_tensor\] size must be a sequence"),
        (lambda: COO([[0]], [1.0], size=(2**63,)), ValueError, "int64 cannot hold"),
        (lambda: matrix().to_gcs(0), TypeError, r"\[lacewing.to_gcs\] row_dims must be a sequence of integers, not 0"),
        (lambda: lacewing.to_sparse([1.0]), TypeError, r"\[lacewing.to_sparse\] a strided tensor is needed"),
        (
            lambda: lacewing.random((3,), nse=2.5),
            TypeError,
            r"\[lacewing.random\] \(nse,\) must be a sequence of integers, not \(2.5,\)",
        ),
    ],
)
def test_arguments_of_constructors(make: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence) as caught:
        make()

    assert "\n" not in str(caught.value)
