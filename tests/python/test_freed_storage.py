"""Parameters whose storage was freed behind their shape (as FSDP does after a forward pass) get a sentence."""

from pathlib import Path

import pytest
import torch

import lacewing
from lacewing.conv import ConvolutionPlan, max_pool, sparse_conv


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def line(voxels: int = 10) -> ConvolutionPlan:
    coordinates = torch.stack([torch.zeros(voxels), torch.arange(voxels)], 1).int()
    return ConvolutionPlan.build(coordinates, 3)


def test_the_backward_pass_of_a_convolution_says_so() -> None:
    x = torch.ones(10, 4, requires_grad=True)
    weight = torch.ones(3, 1, 4, 2, requires_grad=True)
    loss = sparse_conv(x, weight, line()).sum()
    freed(weight)

    with pytest.raises(RuntimeError, match=r"\[lacewing.sparse_conv\] weight of shape \(3, 1, 4, 2\) has no memory"):
        loss.backward()


def test_the_backward_pass_of_a_product_does_not_take_it_for_absent() -> None:
    index = torch.arange(3)
    infos = lacewing.sparse_product_infos(index, index, index, None, 3, 3, 3)
    x = torch.full((2, 3), 2.0, requires_grad=True)
    y = torch.ones(2, 3, 4, requires_grad=True)
    loss = lacewing.sparse_scavec(x, y, *infos).sum()
    freed(x)

    with pytest.raises(RuntimeError, match=r"\[lacewing.\w+\] input\d of shape \(2, 3\) has no memory: .* \(FSDP"):
        loss.backward()


def test_a_scale_without_memory_is_not_one() -> None:
    scale = torch.full((3,), 5.0)
    info = lacewing.sparse_product_info([0, 1, 2], [0, 1, 2], [0, 1, 2], scale, 3)
    freed(scale)

    with pytest.raises(RuntimeError, match=r"\[lacewing.sparse_mul\] scale of shape \(3,\) has no memory"):
        lacewing.sparse_mul(torch.ones(2, 3, 4), torch.ones(2, 3, 4), info)


def test_an_operand_of_the_formula_says_so() -> None:
    plan = lacewing.product_plan("a,a->a", index=([0, 1], [1, 0]), out=[0, 1], rows=(2, 2), out_rows=2)
    x = freed(torch.ones(5, 2, 3))

    with pytest.raises(RuntimeError, match=r"\[lacewing.product\] operands\[0\] of shape \(5, 2, 3\) has no memory"):
        lacewing.product(plan, (x, torch.ones(5, 2, 3)))


def test_pooling_says_so() -> None:
    x = freed(torch.ones(10, 4))

    with pytest.raises(RuntimeError, match=r"features of shape .* has no memory: its storage was freed"):
        max_pool(x, line())


def test_rows_say_so() -> None:
    rows = freed(torch.ones(4, 3))

    with pytest.raises(RuntimeError, match="holds 0 of its 48 bytes"):
        torch.ops.lacewing.gather_rows(rows, torch.arange(4))


def test_tensors_without_elements_need_no_memory() -> None:
    rows = freed(torch.ones(0, 3))

    result = torch.ops.lacewing.gather_rows(rows, torch.arange(0))

    assert result.shape == (0, 3)


def sparse(freed_values: bool = True) -> lacewing.SparseTensor:
    indices = torch.tensor([[0, 0, 1, 2], [0, 3, 1, 0]])
    s = lacewing.sparse_coo_tensor(indices, torch.ones(4), (3, 4))
    if freed_values:
        freed(s.values())
    return s


SPARSE_OPS = {
    "sum": lambda s: s.sum(1),
    "matmul": lambda s: s @ torch.ones(4),
    "a sparse product": lambda s: s @ sparse(False).T,
    "a product": lambda s: s * sparse(False),
    "a sum": lambda s: sparse(False) + s,
    "where": lambda s: torch.where(s > 0, s, sparse(False)),
    "cat": lambda s: torch.cat([s, sparse(False)]),
    "relu": lambda s: s.relu(),
    "softmax": lambda s: s.softmax(1),
    "log_softmax": lambda s: s.log_softmax(1),
    "logsumexp": lambda s: s.logsumexp(1),
    "amax": lambda s: s.amax(1),
    "to_dense": lambda s: s.to_dense(),
    "clone": lambda s: s.clone(),
    "to": lambda s: s.double(),
    "in place": lambda s: s.mul_(2),
    "an element": lambda s: s[0, 3],
    "prune": lambda s: s.prune(),
    "to_torch": lambda s: s.to_torch(),
    "to_gcs": lambda s: s.to_gcs(),
    "transposed": lambda s: s.T @ torch.ones(3),
}


@pytest.mark.parametrize("op", SPARSE_OPS)
def test_ops_of_a_sparse_tensor_say_so(op: str) -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.\w+\] .* has no memory: its storage was freed"):
        SPARSE_OPS[op](sparse())


@pytest.mark.parametrize("op", ["write_mtx", "write_tns", "save_npz"])
def test_files_of_a_sparse_tensor_say_so(op: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="has no memory: its storage was freed"):
        getattr(lacewing, op)(sparse(), tmp_path / "file")


def test_a_dense_operand_of_a_sparse_tensor_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.mul\] an operand of shape \(4,\) has no memory"):
        sparse(False) * freed(torch.ones(4))


def test_a_dense_tensor_that_becomes_sparse_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.to_sparse\] dense of shape \(2, 3\) has no memory"):
        lacewing.to_sparse(freed(torch.ones(2, 3)))


def test_what_reads_no_element_needs_no_memory() -> None:
    s = sparse()

    assert s.shape == (3, 4)
    assert s.nse == 4
    assert "nse=4" in repr(s)
    assert s.detach().values().shape == (4,)
    assert s.with_values(torch.full((4,), 2.0)).sum() == 8
