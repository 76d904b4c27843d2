"""Convolution, batch norm, addition and ReLU in one: the same as one after the other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lacewing
from conv_support import cloud, random
from lacewing.conv import (
    ConvFinish,
    ConvolutionPlan,
    ConvUnit,
    InverseConv,
    PlanCache,
    SparseConv,
    SparseConvTranspose,
    SubmanifoldConv,
    VoxelBatchNorm,
    VoxelTensor,
    sparse_conv,
    sparse_conv_unit,
    sparse_conv_workspace,
)
from test_product_memory import peak_beyond

TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 2e-1, torch.float32: 1e-5, torch.float64: 1e-12}


def trained_norm(channels: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> VoxelBatchNorm:
    """In eval mode, with statistics and parameters that are not those of the start."""
    norm = VoxelBatchNorm(channels, device=device, dtype=dtype).eval()
    with torch.no_grad():
        for k, tensor in enumerate((norm.running_mean, norm.running_var, norm.weight, norm.bias)):
            tensor.copy_(random(channels, seed=20 + k, device=device).abs() + 0.5)
    return norm


def by_parts(conv: nn.Module, norm: nn.Module | None, relu: bool, x: VoxelTensor, residual: VoxelTensor | None):
    y = conv(x)
    y = y if norm is None else norm(y)
    y = y if residual is None else y + residual
    return y.map(torch.relu) if relu else y


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_is_its_parts(dtype: torch.dtype, algorithm: str, normed: bool, added: bool, relu: bool, device: str) -> None:
    voxels = cloud(300, 2, extent=12, device=device)
    x = VoxelTensor(random(300, 6, dtype=dtype, device=device), voxels, cache=PlanCache(algorithm))
    conv = SubmanifoldConv(6, 20, axes=2, device=device, dtype=dtype)
    norm = trained_norm(20, dtype, device) if normed else None
    residual = x.replace(random(300, 20, seed=5, dtype=dtype, device=device)) if added else None

    with torch.no_grad():
        found = ConvUnit(conv, norm, relu)(x, residual).features
        expected = by_parts(conv, norm, relu, x, residual).features

    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert not relu or found.min() >= 0


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_of_groups_and_of_every_layer(groups: int, device: str) -> None:
    x = VoxelTensor(random(200, 6, device=device), cloud(200, 2, extent=9, device=device))
    options = {"axes": 2, "groups": groups, "device": device, "dtype": torch.float64}
    down = ConvUnit(SparseConv(6, 12, 2, 2, **options), trained_norm(12, device=device))
    flat = ConvUnit(SubmanifoldConv(12, 12, **options), trained_norm(12, device=device))
    back = ConvUnit(InverseConv(12, 6, 2, 2, **options), trained_norm(6, device=device))
    wide = ConvUnit(SparseConvTranspose(12, 6, 2, 2, **options), trained_norm(6, device=device))

    with torch.no_grad():
        low = down(x)
        results = [low, flat(low, residual=low), back(low, residual=x), wide(low)]
        parts = [
            by_parts(down.conv, down.norm, True, x, None),
            by_parts(flat.conv, flat.norm, True, low, low),
            by_parts(back.conv, back.norm, True, low, x),
            by_parts(wide.conv, wide.norm, True, low, None),
        ]

    for found, expected in zip(results, parts, strict=True):
        assert found.stride == expected.stride
        assert torch.equal(found.coordinates, expected.coordinates)
        torch.testing.assert_close(found.features, expected.features)


def test_running_and_batch_statistics(device: str) -> None:
    x = VoxelTensor(random(150, 4, device=device), cloud(150, 3, device=device))
    unit = ConvUnit(
        SubmanifoldConv(4, 5, device=device, dtype=torch.float64), VoxelBatchNorm(5, device=device, dtype=torch.float64)
    )
    parts = copy.deepcopy(unit)

    for training in (True, True, False):
        unit.train(training)
        parts.train(training)
        torch.testing.assert_close(unit(x).features, by_parts(parts.conv, parts.norm, True, x, None).features)

    torch.testing.assert_close(unit.norm.running_var, parts.norm.running_var)
    without = ConvUnit(
        unit.conv, VoxelBatchNorm(5, track_running_stats=False, affine=False, device=device, dtype=torch.float64)
    )
    without.eval()
    with torch.no_grad():
        torch.testing.assert_close(without(x).features, by_parts(without.conv, without.norm, True, x, None).features)


def arguments(device: str, dtype: torch.dtype = torch.float64):
    plan = ConvolutionPlan.build(cloud(20, 2, extent=4, device=device), 3, 2, targets="strided")
    x = random(20, 4, seed=1, dtype=dtype, device=device)
    weight = random(9, 2, 2, 3, seed=2, dtype=dtype, device=device)
    bias = random(6, seed=3, dtype=dtype, device=device)
    statistics = [random(6, seed=k, dtype=dtype, device=device).abs() + 0.5 for k in range(4, 8)]
    residual = random(len(plan.target), 6, seed=9, dtype=dtype, device=device)
    return plan, [x, weight, bias], statistics, residual


def test_gradients_of_first_and_second_order(device: str) -> None:
    plan, operands, (mean, variance, gain, offset), residual = arguments(device)
    inputs = [t.requires_grad_() for t in (*operands, gain, offset, residual)]

    def unit(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, offset: Tensor, residual: Tensor) -> Tensor:
        return torch.ops.lacewing.sparse_conv_unit(
            x, w, b, plan._array, plan._sizes, mean, variance, gain, offset, 1e-3, residual, True
        )

    assert torch.autograd.gradcheck(unit, inputs)
    assert torch.autograd.gradgradcheck(unit, inputs)


def test_tangents_vmap_and_functorch(device: str) -> None:
    plan, (x, w, b), statistics, residual = arguments(device)

    def unit(x: Tensor) -> Tensor:
        return torch.ops.lacewing.sparse_conv_unit(
            x, w, b, plan._array, plan._sizes, *statistics, 1e-3, residual, False
        )

    with torch.no_grad():
        tangent = torch.func.jvp(unit, (x,), (x,))[1]
        torch.testing.assert_close(tangent, unit(2 * x) - unit(x))
        stacked = torch.func.vmap(unit)(torch.stack([x, -x]))
        torch.testing.assert_close(stacked[1], unit(-x))
    torch.testing.assert_close(
        torch.func.grad(lambda x: unit(x).sum())(x), torch.autograd.functional.jacobian(lambda x: unit(x).sum(), x)
    )


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool, device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan, operands, statistics, residual = arguments(device)
    x, w, b = (t.requires_grad_(grad) for t in operands)

    torch.library.opcheck(
        torch.ops.lacewing.sparse_conv_unit.default,
        (x, w, b, plan._array, plan._sizes, *statistics, 1e-3, residual, True),
    )


def test_compiles_as_one_graph(device: str) -> None:
    plan, (x, w, b), statistics, residual = arguments(device)
    unit = lambda x: (
        torch.ops.lacewing.sparse_conv_unit(x, w, b, plan._array, plan._sizes, *statistics, 1e-3, residual, True) + 1
    )

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(unit, backend="aot_eager", fullgraph=True)(x), unit(x))


def test_autocast(device: str) -> None:
    x = VoxelTensor(random(50, 4, dtype=torch.float32, device=device), cloud(50, 2, device=device))
    unit = ConvUnit(SubmanifoldConv(4, 4, axes=2, device=device), trained_norm(4, torch.float32, device))

    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        found, expected = unit(x).features, by_parts(unit.conv, unit.norm, True, x, None).features

    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_is_the_reference(device: str) -> None:
    plan, (x, w, b), statistics, residual = arguments(device)
    args = (x, w, b, plan._array, plan._sizes, *statistics, 1e-3, residual, True)

    found = torch.ops.lacewing.sparse_conv_unit(*args)
    with lacewing.backend("reference"):
        expected = torch.ops.lacewing.sparse_conv_unit(*args)

    torch.testing.assert_close(found, expected)


def test_nan_is_not_lost(device: str) -> None:
    plan, (x, w, b), _, residual = arguments(device)
    residual[0, 0] = float("nan")

    y = sparse_conv_unit(x, w, plan, b, ConvFinish(None, residual, True))

    assert y[0, 0].isnan()
    assert not y.flatten()[1:].isnan().any()


def test_the_same_bits_for_every_number_of_threads() -> None:
    voxels = cloud(3000, 3, extent=14)
    x = VoxelTensor(random(3000, 40, dtype=torch.float32), voxels)
    unit = ConvUnit(SubmanifoldConv(40, 70), trained_norm(70, torch.float32))
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(unit(x, residual=None).features)
    finally:
        torch.set_num_threads(before)

    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_strided_residual(device: str) -> None:
    plan, (x, w, b), _, residual = arguments(device)
    expected = sparse_conv_unit(x, w, plan, b, ConvFinish(None, residual, True))

    for view in (
        residual.t().contiguous().t(),
        torch.cat([residual, residual], 1)[:, :6],
        residual.flip(0).flip(0),
    ):
        assert torch.equal(sparse_conv_unit(x, w, plan, b, ConvFinish(None, view, True)), expected)
    constant = residual[:1].expand_as(residual)
    torch.testing.assert_close(
        sparse_conv_unit(x, w, plan, b, ConvFinish(None, constant, False)), sparse_conv(x, w, plan, b) + residual[:1]
    )


def test_allocates_the_output_and_the_workspace() -> None:
    voxels = cloud(4000, 3, extent=14)
    x = VoxelTensor(random(4000, 32, dtype=torch.float32), voxels)
    unit = ConvUnit(SubmanifoldConv(32, 64), trained_norm(64, torch.float32))
    residual = x.replace(random(4000, 64, dtype=torch.float32))
    plan = x.cache.plan(x.coordinates, unit.conv.geometry, "same")
    parameters = 16 * 64 * 4  # scale and shift, and what they are made of
    with torch.no_grad():
        unit(x, residual)
        bound = 4000 * 64 * 4 + sparse_conv_workspace(x.features, unit.conv.weight, plan) + parameters

        assert peak_beyond(lambda: unit(x, residual)) <= bound


def test_hooks_are_called() -> None:
    x = VoxelTensor(random(30, 2), cloud(30, 2))
    unit = ConvUnit(SubmanifoldConv(2, 2, axes=2, dtype=torch.float64), trained_norm(2))
    seen: list[Tensor] = []
    with torch.no_grad():
        expected = unit(x).features
        handle = unit.conv.register_forward_hook(lambda _, __, y: seen.append(y.features))
        torch.testing.assert_close(unit(x).features, expected)
        handle.remove()
        torch.testing.assert_close(seen[0], unit.conv(x).features)


def test_bad_input(device: str) -> None:
    x = VoxelTensor(random(30, 2, device=device), cloud(30, 2, device=device))
    conv = SubmanifoldConv(2, 3, axes=2, device=device, dtype=torch.float64)
    unit = ConvUnit(conv, trained_norm(3, device=device))

    def refused(error: type[Exception], sentence: str, f) -> None:
        with pytest.raises(error, match=sentence.replace("(", r"\(").replace(")", r"\)")):
            f()

    refused(TypeError, "conv must be a convolution of lacewing, not Linear", lambda: ConvUnit(nn.Linear(2, 2)))
    refused(TypeError, "norm must be a VoxelBatchNorm or None, not Linear", lambda: ConvUnit(conv, nn.Linear(2, 2)))
    refused(TypeError, "the input must be a VoxelTensor, not Tensor", lambda: unit(x.features))
    refused(TypeError, "the input must be a VoxelTensor, not Tensor", lambda: unit(x, residual=x.features))
    other = VoxelTensor(random(29, 3, device=device), cloud(29, 2, seed=4, device=device))
    refused(ValueError, "the two tensors lie on different voxels (30 and 29 of them)", lambda: unit(x, residual=other))
    refused(ValueError, "the residual has 2 channels, but there are 3 output channels", lambda: unit(x, residual=x))
    with torch.no_grad():
        half = x.replace(random(30, 3, dtype=torch.float16, device=device))
        sentence = "the residual has dtype torch.float16 but features have torch.float64"
        refused(ValueError, sentence, lambda: unit(x, half))
        wrong = ConvUnit(conv, trained_norm(4, device=device))
        refused(RuntimeError, "the mean of the norm has shape (4,), but there are 3 output channels", lambda: wrong(x))
    plan, (f, w, b), (mean, variance, gain, _), _ = arguments(device)
    call = lambda *norm: torch.ops.lacewing.sparse_conv_unit(f, w, b, plan._array, plan._sizes, *norm, 0.0, None, False)
    refused(RuntimeError, "needs a running mean and a running variance", lambda: call(mean, None, None, None))
    refused(RuntimeError, "needs a running mean and a running variance", lambda: call(None, None, gain, None))
    refused(RuntimeError, "must be real floating point, not int64", lambda: call(mean.long(), variance, None, None))
    refused(
        ValueError,
        "the norm has no running statistics",
        lambda: sparse_conv_unit(
            f, w, plan, b, ConvFinish(VoxelBatchNorm(6, track_running_stats=False, device=device), None, False)
        ),
    )
