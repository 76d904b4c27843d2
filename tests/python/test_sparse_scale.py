"""Sparse scale: a constant sparse matrix along one dim, in its differentiable and its raw form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lacewing
from lacewing import SparseScaleInfo, indexed_scale_segment, sparse_scale, sparse_scale_infos
from products_support import ALL_DTYPES, GRADIENT_TOLERANCE, LAYOUTS, assert_close, random_values, wide_dtype

ROWS, COLUMNS = [0, 3, 3, 1, 3, 0], [2, 0, 4, 4, 0, 1]
OUT_SIZE, IN_SIZE = 5, 6
LEADING = [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)]


def matrix(scale: Tensor | None, rows=ROWS, columns=COLUMNS, shape=(OUT_SIZE, IN_SIZE), dtype=torch.float64) -> Tensor:
    """The matrix S, differentiable in its entries."""
    values = torch.ones(len(rows), dtype=dtype) if scale is None else scale
    return torch.zeros(shape, dtype=values.dtype).index_put((torch.tensor(rows), torch.tensor(columns)), values, True)


def scale_of(dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    return random_values([len(ROWS)], dtype, 5, device)


def norm(tensor: Tensor) -> Tensor:
    """The sum of squared absolute values, smooth at zero."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).square().sum()


def infos(scale: Tensor | None, device: str) -> tuple[SparseScaleInfo, SparseScaleInfo]:
    fwd, bwd = sparse_scale_infos(ROWS, COLUMNS, scale, OUT_SIZE, IN_SIZE)
    return fwd.to(device), bwd.to(device)


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("channels", [0, 1, 3, 70])
def test_value(leading: tuple[int, ...], dtype: torch.dtype, channels: int, device: str) -> None:
    x = random_values([*leading, IN_SIZE, channels], dtype, 1, device)
    scale = scale_of(dtype, device)
    want = matrix(scale.cpu().to(wide_dtype(dtype))) @ x.cpu().to(wide_dtype(dtype))

    out = sparse_scale(x, infos(scale, device)[0])

    assert out.dtype == dtype
    assert_close(out, want, GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["derived", "given"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["f64", "c128"])
def test_derivatives(leading: tuple[int, ...], given: bool, dtype: torch.dtype, device: str) -> None:
    x, scale = random_values([*leading, IN_SIZE, 4], dtype, 1, device), scale_of(dtype, device)
    fwd, bwd = infos(scale, device)

    def chain(function, x: Tensor, scale: Tensor) -> list[Tensor]:
        x, scale = x.detach().requires_grad_(), scale.detach().requires_grad_()
        first = torch.autograd.grad(norm(function(x, scale)), (x, scale), create_graph=True)
        second = torch.autograd.grad(sum(map(norm, first)), (x, scale), create_graph=True)
        third = torch.autograd.grad(sum(map(norm, second)), (x, scale))
        return [*first, *second, *third]

    want = chain(lambda x, s: matrix(s) @ x, x.cpu(), scale.cpu())

    got = chain(lambda x, s: sparse_scale(x, fwd.with_scale(s), bwd if given else None), x, scale)

    for one, other in zip(got, want, strict=True):
        assert_close(one, other.detach(), 1e-10)


def test_gradcheck(device: str) -> None:
    fwd, bwd = infos(None, device)
    x = random_values([2, IN_SIZE, 2], torch.float64, 1, device).requires_grad_()
    scale = scale_of(device=device).requires_grad_()
    function = lambda x, s: sparse_scale(x, fwd.with_scale(s), bwd)

    assert torch.autograd.gradcheck(function, (x, scale), atol=1e-6, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (x, scale), atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("shape", [(IN_SIZE, 5), (3, IN_SIZE, 5), (2, 3, IN_SIZE, 5)], ids=len)
def test_layouts_of_input_and_upstream(layout, shape: tuple[int, ...], device: str) -> None:
    x = layout(random_values(shape, torch.float64, 1, device)).requires_grad_()
    fwd, bwd = infos(scale_of(device=device), device)
    dense = matrix(scale_of())

    out = sparse_scale(x, fwd, bwd)
    upstream = layout(random_values(out.shape, torch.float64, 2, device))
    (grad,) = torch.autograd.grad(out, x, upstream)

    assert_close(out, dense @ x.detach().cpu(), 1e-12)
    assert_close(grad, dense.T @ upstream.cpu(), 1e-12)


def test_transpose_is_the_second_info(device: str) -> None:
    _, bwd = infos(scale_of(device=device), device)
    y = random_values([2, OUT_SIZE, 3], torch.float64, 1, device)

    out = sparse_scale(y, bwd)

    assert_close(out, matrix(scale_of()).T @ y.cpu(), 1e-12)


def test_wrong_backward_info_is_refused() -> None:
    fwd, _ = sparse_scale_infos([0, 1, 2], [1, 0, 0], None, 3, 3)
    other = sparse_scale_infos([0, 1, 2], [1, 1, 2], None, 3, 3)[1]

    with pytest.raises(RuntimeError, match=r"\[lacewing\.sparse_scale\] info_bwd does not hold the same terms"):
        sparse_scale(torch.ones(3, 1, requires_grad=True), fwd, other).sum().backward()


def test_forward_info_as_backward_info_is_refused() -> None:
    fwd, _ = sparse_scale_infos([0, 1, 2], [1, 0, 0], [1.0, 2.0, 3.0], 3, 3)

    with pytest.raises((RuntimeError, ValueError), match=r"\[lacewing\.sparse_scale\] info_bwd"):
        sparse_scale(torch.ones(3, 1, requires_grad=True), fwd, fwd).sum().backward()


@pytest.mark.parametrize("out_size", [None, 3, 5])
def test_info_without_fields_is_the_identity(out_size: int | None, device: str) -> None:
    x = random_values([2, 3, 4], torch.float64, 1, device).requires_grad_()
    dense = torch.eye(3 if out_size is None else out_size, 3, dtype=torch.float64)

    out = sparse_scale(x, SparseScaleInfo(out_size=out_size).to(device))
    (grad,) = torch.autograd.grad(out.square().sum(), x)

    assert_close(out, dense @ x.detach().cpu(), 1e-12)
    assert_close(grad, 2 * x.detach().cpu(), 1e-12)


@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("has_seg", [False, True])
def test_absent_fields(has_scale: bool, has_index: bool, has_seg: bool, device: str) -> None:
    index, seg = [3, 0, 3, 1], [0, 1, 1, 4]
    scale = random_values([4], torch.float64, 1, device) if has_scale else None
    x = random_values([2, 4, 3], torch.float64, 2, device).requires_grad_()
    columns = index if has_index else list(range(4))
    rows = [0, 2, 2, 2] if has_seg else list(range(4))
    dense = matrix(None if scale is None else scale.cpu(), rows, columns, (3 if has_seg else 4, 4))
    info = SparseScaleInfo(scale, index if has_index else None, seg if has_seg else None).to(device)

    out = sparse_scale(x, info)
    (grad,) = torch.autograd.grad(out.square().sum(), x)

    assert_close(out, dense @ x.detach().cpu(), 1e-12)
    assert_close(grad, 2 * dense.T @ (dense @ x.detach().cpu()), 1e-12)


@pytest.mark.parametrize(("index_out", "index_in"), [(None, [2, 0, 1]), ([2, 0, 1], None), (None, None)])
def test_builder_with_absent_indices(index_out, index_in, device: str) -> None:
    scale = random_values([3], torch.float64, 1, device)
    x = random_values([3, 2], torch.float64, 2, device)
    fwd, bwd = (i.to(device) for i in sparse_scale_infos(index_out, index_in, scale))
    dense = matrix(scale.cpu(), index_out or [0, 1, 2], index_in or [0, 1, 2], (3, 3))

    assert_close(sparse_scale(x, fwd, bwd), dense @ x.cpu(), 1e-12)


@pytest.mark.parametrize(("out_size", "in_size"), [(0, 0), (3, 0), (0, 3), (3, 4)])
def test_matrix_without_entries(out_size: int, in_size: int, device: str) -> None:
    fwd, bwd = (i.to(device) for i in sparse_scale_infos([], [], [], out_size, in_size))
    x = torch.ones(2, in_size, 3, device=device, requires_grad=True)

    out = sparse_scale(x, fwd, bwd)
    out.sum().backward()

    assert torch.equal(out, torch.zeros(2, out_size, 3, device=device))
    assert torch.equal(x.grad, torch.zeros_like(x))


def raw_arguments(device: str) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """input, scale, index and seg of a matrix with 3 rows and 4 columns."""
    x = random_values([2, 4, 3], torch.float32, 1, device)
    return x, random_values([4], torch.float32, 2, device), [3, 0, 3, 1], [0, 1, 1, 4]


def raw_oracle(x: Tensor, scale: Tensor) -> Tensor:
    return matrix(scale.cpu(), [0, 2, 2, 2], [3, 0, 3, 1], (3, 4)) @ x.cpu()


def test_raw_form(device: str) -> None:
    x, scale, index, seg = raw_arguments(device)

    out = indexed_scale_segment(x, scale, index, seg)

    assert_close(out, raw_oracle(x, scale), 1e-6)


@pytest.mark.parametrize("contiguous", [True, False])
def test_raw_form_overwrites_out(contiguous: bool, device: str) -> None:
    x, scale, index, seg = raw_arguments(device)
    out = torch.full((2, 3, 3), float("nan"), device=device)
    out = out if contiguous else out.transpose(0, 2).contiguous().transpose(0, 2)

    returned = indexed_scale_segment(x, scale, index, seg, out=out)

    assert returned is out
    assert_close(out, raw_oracle(x, scale), 1e-6)


@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 3), (2, 3, 2)], ids=str)
def test_raw_form_refuses_out_of_another_shape(shape: tuple[int, ...], device: str) -> None:
    x, scale, index, seg = raw_arguments(device)

    with pytest.raises(ValueError, match=r"\[lacewing\.indexed_scale_segment\] out must have shape \(2, 3, 3\)"):
        indexed_scale_segment(x, scale, index, seg, out=torch.empty(shape, device=device))


def test_raw_form_refuses_out_of_another_dtype(device: str) -> None:
    x, scale, index, seg = raw_arguments(device)

    with pytest.raises(ValueError, match=r"\[lacewing\.indexed_scale_segment\] out must have .*dtype float"):
        indexed_scale_segment(x, scale, index, seg, out=torch.empty(2, 3, 3, dtype=torch.float64, device=device))


@pytest.mark.parametrize("overlap", ["whole", "part"])
def test_raw_form_refuses_out_that_aliases_the_input(overlap: str, device: str) -> None:
    memory = random_values([40], torch.float32, 1, device)
    before = memory.clone()
    x = memory[:24].view(2, 4, 3)
    out = memory[0 if overlap == "whole" else 20 :][:18].view(2, 3, 3)

    with pytest.raises(ValueError, match=r"\[lacewing\.indexed_scale_segment\] out must not share memory"):
        indexed_scale_segment(x, None, [3, 0, 3, 1], [0, 1, 1, 4], out=out)

    assert torch.equal(memory, before)


def test_raw_form_accepts_out_beside_the_input_in_one_storage(device: str) -> None:
    """Two views of one storage that do not overlap share no memory."""
    memory = torch.cat([random_values([24], torch.float32, 1, device), torch.zeros(18, device=device)])
    x, out = memory[:24].view(2, 4, 3), memory[24:].view(2, 3, 3)

    indexed_scale_segment(x, None, [3, 0, 3, 1], [0, 1, 1, 4], out=out)

    assert_close(out, raw_oracle(x, torch.ones(4)), 1e-6)


def test_raw_form_refuses_fewer_segments_than_out_size(device: str) -> None:
    x, scale, index, seg = raw_arguments(device)

    with pytest.raises(
        ValueError, match=r"\[lacewing\.indexed_scale_segment\] seg_out has 3 segments but out_size is 5"
    ):
        indexed_scale_segment(x, scale, index, seg, out_size=5)


@pytest.mark.parametrize("argument", ["input", "scale", "out"])
def test_raw_form_refuses_tensors_that_require_grad(argument: str, device: str) -> None:
    x, scale, index, seg = raw_arguments(device)
    arguments = {"input": x, "scale": scale, "out": torch.empty(2, 3, 3, device=device)}
    arguments[argument].requires_grad_()

    with pytest.raises(ValueError, match=rf"\[lacewing\.indexed_scale_segment\] {argument} requires grad"):
        indexed_scale_segment(arguments["input"], arguments["scale"], index, seg, out=arguments["out"])


def test_alias_class_is_the_function() -> None:
    assert lacewing.SparseScale.apply is sparse_scale


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_same_bits_for_every_number_of_threads(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randint(0, 500, (9_000,), generator=generator) for _ in range(2))
    scale = random_values([9_000], torch.float32, 1)
    fwd, _ = sparse_scale_infos(rows, columns, scale, 500, 500)
    x = random_values([3, 500, 33], torch.float32, 2)
    before = torch.get_num_threads()
    want = sparse_scale(x, fwd)

    try:
        torch.set_num_threads(threads)
        got = sparse_scale(x, fwd)
    finally:
        torch.set_num_threads(before)

    assert torch.equal(got, want)
