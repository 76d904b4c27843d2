"""Answers that earlier systems got wrong, each by its name in the specification."""

from __future__ import annotations

import pytest
import torch

import lacewing
from lacewing import SparseProductInfo, sparse_product_info, sparse_product_infos, sparse_scale_infos
from products_support import OPS, Op, assert_close, make_case, oracle, random_values

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def operands(op: Op, rows1: int, rows2: int, device: str, batch: int = 2, channels: int = 2):
    """Random (N, M, ...) operands of a product."""
    x = random_values([batch, rows1, *(channels for _ in op.x)], torch.float64, 1, device)
    y = random_values([batch, rows2, *(channels for _ in op.y)], torch.float64, 2, device)
    return x, y


def test_smallest_output_index_above_zero_gives_leading_empty_segments() -> None:
    info = sparse_product_info([0, 1, 2], [0, 1, 2], [1, 1, 2], None, 3)

    assert info.seg_out.tolist() == [0, 0, 2, 3]


@each_op
def test_smallest_output_index_above_zero_leaves_row_zero_empty(op: Op, device: str) -> None:
    x, y = operands(op, 3, 3, device)
    info = sparse_product_info([0, 1, 2], [0, 1, 2], [1, 1, 2], None, 3).to(device)

    z = op.function(x, y, info)

    assert_close(z, oracle(op, x, y, None, [(0, 0, 0, 1), (1, 1, 1, 1), (2, 2, 2, 2)], 3).cpu(), 1e-12)
    assert z[:, 0].count_nonzero() == 0


@each_op
def test_out_size_absent_with_gaps_drops_no_terms(op: Op, device: str) -> None:
    x, y = operands(op, 3, 3, device)
    info = sparse_product_info([0, 1, 2], [2, 1, 0], [7, 2, 5]).to(device)

    z = op.function(x, y, info)

    assert_close(z, oracle(op, x, y, None, [(0, 0, 2, 7), (1, 1, 1, 2), (2, 2, 0, 5)], 8).cpu(), 1e-12)


@each_op
@pytest.mark.parametrize("out_size", [None, 0, 3])
def test_empty_lists_are_legal(op: Op, out_size: int | None, device: str) -> None:
    x, y = (t.requires_grad_() for t in operands(op, 2, 3, device))
    fwd, bwd1, bwd2 = (i.to(device) for i in sparse_product_infos([], [], [], [], out_size, 2, 3))

    z = op.function(x, y, fwd, bwd1, bwd2)
    z.sum().backward()

    assert z.shape[:2] == (2, out_size or 0)
    assert z.count_nonzero() == 0
    assert x.grad.count_nonzero() == 0
    assert x.grad.shape == x.shape
    assert y.grad.count_nonzero() == 0


def test_an_empty_list_is_not_an_absent_field() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing\.SparseProductInfo\] index2 has 2 entries"):
        SparseProductInfo(index1=[], index2=[0, 1])


@each_op
def test_an_output_without_paths_does_not_shift_later_outputs(op: Op, device: str) -> None:
    x, y = operands(op, 2, 2, device)
    info = SparseProductInfo(index1=[0, 1, 1], index2=[1, 0, 1], seg_out=[0, 1, 1, 3]).to(device)

    z = op.function(x, y, info)

    assert_close(z, oracle(op, x, y, None, [(0, 0, 1, 0), (1, 1, 0, 2), (2, 1, 1, 2)], 3).cpu(), 1e-12)


@each_op
@pytest.mark.parametrize("field", ["index1", "index2", "seg_out", "gather_index", "index_out"])
def test_identity_indices_behave_as_absent(op: Op, field: str, device: str) -> None:
    x, y = (t.requires_grad_() for t in operands(op, 4, 4, device))
    identity = {field: torch.arange(5 if field == "seg_out" else 4, device=device)}
    scale = random_values([4], torch.float64, 3, device)
    absent = SparseProductInfo(scale, out_size=4)
    given = SparseProductInfo(scale, **identity, out_size=4)

    z_absent, z_given = op.function(x, y, absent), op.function(x, y, given)

    assert torch.equal(z_absent, z_given)
    for one, other in zip(*(torch.autograd.grad(z.sum(), (x, y)) for z in (z_absent, z_given)), strict=True):
        assert torch.equal(one, other)


@each_op
@pytest.mark.parametrize("trainable", ["x", "y", "scale"])
def test_frozen_operands_do_not_break_the_gradient_of_the_others(op: Op, trainable: str, device: str) -> None:
    case = make_case(op, device=device)
    tensors = {"x": case.x, "y": case.y, "scale": case.scale}
    wanted = {name: tensor.cpu() for name, tensor in tensors.items()}
    wanted[trainable] = wanted[trainable].detach().requires_grad_()
    case.oracle(**wanted).square().sum().backward()

    tensors[trainable] = tensors[trainable].detach().requires_grad_()
    case.run(**tensors).square().sum().backward()

    assert_close(tensors[trainable].grad, wanted[trainable].grad, 1e-12)
    assert all(tensor.grad is None for name, tensor in tensors.items() if name != trainable)


@each_op
def test_forces_from_a_frozen_model_have_derivatives(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    def force_gradient(function, x, y, scale):
        x = x.detach().requires_grad_()
        force = torch.autograd.grad(function(x, y, scale).square().sum(), x, create_graph=True)[0]
        return torch.autograd.grad(force.square().sum(), x)[0]

    want = force_gradient(case.oracle, case.x.cpu(), case.y.cpu(), case.scale.cpu())

    assert_close(force_gradient(case.run, case.x, case.y, case.scale), want, 1e-11)


@each_op
def test_more_than_65535_segments(op: Op, device: str) -> None:
    count = 70_001
    x, y = operands(op, 5, count, device, batch=1, channels=1)
    index = torch.arange(count, device=device)
    info = sparse_product_info(index % 5, None, index.flip(0), None, count)
    x_terms, y_terms = x[:, index % 5].reshape(-1), y.reshape(-1)

    z = op.function(x.requires_grad_(), y, info)
    z.sum().backward()

    assert torch.equal(z.detach().reshape(-1), (x_terms * y_terms).flip(0).detach())
    want = torch.zeros(5, dtype=torch.float64, device=device).index_add(0, index % 5, y_terms)
    assert_close(x.grad.reshape(-1), want.cpu(), 1e-10)


@each_op
@pytest.mark.parametrize("accumulated", [False, True])
def test_more_than_65535_batch_entries(op: Op, accumulated: bool, device: str) -> None:
    batch = 70_001
    x, y = operands(op, 1, 1, device, batch=batch, channels=1)
    info = SparseProductInfo([3.0], [0], [0]).to(device)
    want = 3 * x.reshape(-1) * y.reshape(-1)

    z = op.function(x, y, info, out_accumulated=accumulated)

    assert_close(z.reshape(-1), (want.sum().reshape(1) if accumulated else want).cpu(), 1e-10)


def test_more_than_65535_rows_of_sparse_scale(device: str) -> None:
    count = 70_001
    fwd, bwd = (i.to(device) for i in sparse_scale_infos(torch.arange(count).flip(0), None, None, count, count))
    x = random_values([count, 1], torch.float64, 0, device)

    assert torch.equal(lacewing.sparse_scale(x, fwd, bwd), x.flip(0))


@each_op
@pytest.mark.parametrize("dim", ["batch", "rows", "last"])
def test_strides_beyond_two_to_the_31(op: Op, dim: str, device: str) -> None:
    """The memory between the elements is reserved and never touched."""
    case = make_case(op, ("index_out",), dtype=torch.float16, device=device, batch=2, a=2, b=2, rows=2)
    shape = list(case.x.shape)
    shape[{"batch": 0, "rows": 1, "last": -1}[dim]] = 2
    narrow = case.x[tuple(slice(size) for size in shape)]
    strides = list(torch.empty(shape).stride())
    strides[{"batch": 0, "rows": 1, "last": -1}[dim]] = 2**31 + 64
    far = torch.empty(2**31 + 256, dtype=torch.float16, device=device).as_strided(shape, strides).copy_(narrow)
    want = op.function(narrow.clone(), case.y, case.info)

    z = op.function(far, case.y, case.info)

    assert torch.equal(z, want)


@each_op
def test_gradients_with_strides_beyond_two_to_the_31(op: Op, device: str) -> None:
    case = make_case(op, dtype=torch.float16, device=device, batch=2, a=2, b=2)
    x, y = case.x.requires_grad_(), case.y.requires_grad_()
    z = case.run(x, y, case.scale)
    upstream = random_values(z.shape, torch.float16, 8, device)
    strides = [2**31 + 64, *upstream.stride()[1:]]
    base = torch.empty(2**31 + 64 + upstream.numel(), dtype=torch.float16, device=device)
    far = base.as_strided(upstream.shape, strides).copy_(upstream)
    want = torch.autograd.grad(z, (x, y), upstream, retain_graph=True)

    got = torch.autograd.grad(z, (x, y), far)

    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@each_op
@pytest.mark.parametrize("batches", [(1, 3), (3, 1), (2, 3), (0, 2)])
def test_batch_of_one_beside_a_larger_batch_is_an_error(op: Op, batches: tuple[int, int], device: str) -> None:
    x, y = (t[:1].expand(batch, *t.shape[1:]) for t, batch in zip(operands(op, 2, 2, device), batches, strict=True))
    info = SparseProductInfo(index1=[0, 1], index2=[1, 0]).to(device)

    with pytest.raises(RuntimeError, match=rf"\[lacewing\.sparse_{op.name}\] input1 of shape .* must agree in N"):
        op.function(x, y, info)
