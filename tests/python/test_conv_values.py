"""Sparse convolution against dictionaries and dense convolution, in 1 to 4 dimensions: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import lacewing
from conv_support import Kernel, cloud, dense, kernel, oracle, pairs, random
from lacewing.conv import ConvolutionPlan, sparse_conv, weight_from_user, weight_to_user

KERNELS = [
    kernel(3, axes=1),
    kernel(4, 2, axes=1),
    kernel(5, 3, 2, axes=1),
    kernel((3, 3)),
    kernel((2, 3), (2, 1)),
    kernel((3, 2), 1, (2, 3)),
    kernel(3, axes=3),
    kernel(2, 2, axes=3),
    kernel(3, 2, axes=3),
    kernel((1, 3, 2), (1, 2, 3), (1, 2, 1)),
    kernel(3, 1, 2, axes=3),
    kernel(2, axes=3),
    kernel(3, axes=4),
    kernel((2, 1, 3, 2), (2, 1, 1, 2), (1, 1, 2, 1)),
]
each_kernel = pytest.mark.parametrize("k", KERNELS, ids=lambda k: f"k{k.size}s{k.stride}d{k.dilation}".replace(" ", ""))
each_targets = pytest.mark.parametrize("targets", ["same", "strided", "reachable", "given"])


def build(k: Kernel, targets: str, voxels: int = 60, device: str = "cpu") -> ConvolutionPlan:
    axes = len(k.size)
    coordinates = cloud(voxels, axes, extent={1: 40, 2: 6, 3: 3, 4: 2}[axes], device=device)
    given = cloud(voxels // 2, axes, extent=4, seed=9, device=device)
    return ConvolutionPlan.build(coordinates, k.size, k.stride, k.dilation, given if targets == "given" else targets)


def skip_unless_possible(k: Kernel, targets: str) -> None:
    if targets == "same" and set(k.stride) != {1}:
        pytest.skip("a submanifold convolution has stride 1")


def operands(plan: ConvolutionPlan, groups: int = 1, cin: int = 3, cout: int = 2, dtype=torch.float64):
    device = str(plan.device)
    x = random(len(plan.source), groups * cin, seed=1, dtype=dtype, device=device)
    weight = random(plan.taps, groups, cin, cout, seed=2, dtype=dtype, device=device)
    bias = random(groups * cout, seed=3, dtype=dtype, device=device)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def assert_same(run, expected, inputs) -> None:
    """Values and gradients of a random functional."""
    torch.testing.assert_close(run, expected)
    upstream = random(*expected.shape, seed=7, dtype=expected.dtype, device=str(expected.device))
    mine = torch.autograd.grad(run, inputs, upstream)
    theirs = torch.autograd.grad(expected, inputs, upstream)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@each_kernel
@each_targets
@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
def test_values_and_gradients(k: Kernel, targets: str, algorithm: str, device: str) -> None:
    skip_unless_possible(k, targets)
    plan = build(k, targets, device=device).with_algorithm(algorithm)
    x, weight, bias = operands(plan)

    out = sparse_conv(x, weight, plan, bias)

    assert_same(out, oracle(x, weight, plan, bias), (x, weight, bias))


@each_kernel
@each_targets
def test_transposed_plan(k: Kernel, targets: str, device: str) -> None:
    skip_unless_possible(k, targets)
    plan = build(k, targets, device=device).transposed()
    x, weight, bias = operands(plan)

    out = sparse_conv(x, weight, plan, bias)

    assert plan.is_transposed
    assert_same(out, oracle(x, weight, plan, bias), (x, weight, bias))


@each_kernel
@each_targets
def test_dense_convolution(k: Kernel, targets: str, device: str) -> None:
    skip_unless_possible(k, targets)
    plan = build(k, targets, device=device)
    x, _, _ = operands(plan, 2)
    user = random(4, 3, *k.size, seed=5, device=device).requires_grad_()

    out = sparse_conv(x, user, plan, layout="user", groups=2)

    assert_same(out, dense(x, user, plan, 2), (x, user))


@each_kernel
@each_targets
def test_pairs_of_each_tap(k: Kernel, targets: str) -> None:
    skip_unless_possible(k, targets)
    plan = build(k, targets)

    for tap, (fine, coarse) in enumerate(pairs(plan.source, plan.target, k)):
        source, target = plan.pairs(tap)
        assert set(zip(source.tolist(), target.tolist(), strict=True)) == set(zip(fine, coarse, strict=True))
        assert len(set(source.tolist())) == len(source)


@each_kernel
def test_generative_targets_are_all_reachable(k: Kernel) -> None:
    coarse = cloud(20, len(k.size), extent=4)

    plan = ConvolutionPlan.build_transposed(coarse, k.size, k.stride, k.dilation)

    expected = {
        (b, *(s * c + o for s, c, o in zip(k.stride, voxel, offset, strict=True)))
        for b, *voxel in coarse.tolist()
        for offset in k.offsets()
    }
    assert [tuple(v) for v in plan.target.tolist()] == sorted(expected)
    assert plan.pair_count == len(coarse) * plan.taps


@each_kernel
def test_reachable_targets_have_a_pair_each(k: Kernel) -> None:
    plan = build(k, "reachable")

    reached = torch.cat([plan.pairs(tap)[1] for tap in range(plan.taps)])
    every = {
        (b, *((c - o) // s for s, c, o in zip(k.stride, voxel, offset, strict=True)))
        for b, *voxel in plan.source.tolist()
        for offset in k.offsets()
        if all((c - o) % s == 0 for s, c, o in zip(k.stride, voxel, offset, strict=True))
    }

    assert sorted(set(reached.tolist())) == list(range(len(plan.target)))
    assert [tuple(v) for v in plan.target.tolist()] == sorted(every)


def test_strided_targets_are_floored() -> None:
    coordinates = torch.tensor([[0, -1], [0, -2], [0, -3], [0, 0], [0, 3], [1, 3]], dtype=torch.int32)

    plan = ConvolutionPlan.build(coordinates, 2, 2, targets="strided")

    assert plan.target.tolist() == [[0, -2], [0, -1], [0, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_adjoint(axes: int, device: str) -> None:
    plan = build(kernel(3, 2, axes=axes), "strided", device=device)
    x, weight, _ = operands(plan)
    y = random(len(plan.target), 2, seed=8, device=device)

    forward = (sparse_conv(x, weight, plan) * y).sum()
    back = (x * sparse_conv(y, weight.transpose(2, 3).contiguous(), plan.transposed())).sum()

    torch.testing.assert_close(forward, back)


def test_transposition_is_exact_and_shares_memory() -> None:
    plan = build(kernel(3, 2, axes=3), "strided")

    back = plan.transposed()

    assert back._array is plan._array
    assert back.source is plan.target
    assert back.target is plan.source
    assert back.transposed()._sizes == plan._sizes
    for tap in range(plan.taps):
        assert [p.tolist() for p in back.pairs(tap)] == [p.tolist() for p in reversed(plan.pairs(tap))]


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize(("cin", "cout"), [(1, 1), (1, 3), (3, 1), (4, 32), (16, 16), (17, 23), (40, 70), (64, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_channels_groups_and_dtypes(groups: int, cin: int, cout: int, dtype: torch.dtype, device: str) -> None:
    plan = build(kernel(3, axes=2), "same", 100, device)
    x, weight, bias = operands(plan, groups, cin, cout, dtype)
    upstream = random(len(plan.target), groups * cout, seed=4, dtype=dtype, device=device)
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]

    out = sparse_conv(x, weight, plan, bias)
    grads = torch.autograd.grad(out, (x, weight, bias), upstream)
    expected = oracle(wide[0], wide[1], plan, wide[2])
    expected_grads = torch.autograd.grad(expected, wide, upstream.double())

    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    for mine, theirs in zip((out, *grads[:2]), (expected, *expected_grads[:2]), strict=True):
        assert mine.dtype == dtype
        error = (mine.double() - theirs).abs().max() / theirs.abs().max()
        assert error < tolerance


@pytest.mark.parametrize(
    ("k", "targets"),
    [
        (kernel(3, axes=1), "same"),
        (kernel((2, 3), (2, 1)), "strided"),
        (kernel(2, 2, axes=3), "strided"),
        (kernel((2, 1, 2, 3), (1, 2, 1, 1)), "strided"),
        (kernel((1, 3, 1, 3)), "same"),
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
def test_gradcheck(k: Kernel, targets: str, algorithm: str, device: str) -> None:
    plan = build(k, targets, 6, device).with_algorithm(algorithm)
    inputs = operands(plan, 2, 2, 1)
    run = lambda x, w, b: sparse_conv(x, w, plan, b)

    assert gradcheck(run, inputs, check_forward_ad=True)
    assert gradgradcheck(run, inputs)
    assert gradgradcheck(run, inputs, check_fwd_over_rev=True, check_rev_over_rev=False, check_undefined_grad=False)


def test_equal_counts_are_not_equal_coordinates(device: str) -> None:
    """The middle tap is a plain product only where source and target are the same voxels."""
    source = cloud(40, 2, extent=4, device=device)
    target = cloud(40, 2, extent=4, seed=3, device=device)
    plan = ConvolutionPlan.build(source, 3, targets=target).with_algorithm("gather_gemm_scatter")
    x, weight, _ = operands(plan)

    out = sparse_conv(x, weight, plan)

    assert len(source) == len(target)
    torch.testing.assert_close(out, oracle(x, weight, plan))


def test_voxels_on_the_limits_of_int32(device: str) -> None:
    """Neighbours beyond the limits do not exist, and nothing wraps around."""
    low, high = -(2**31), 2**31 - 1
    rows = [[0, low], [0, low + 1], [0, high - 1], [0, high], [1, high]]
    coordinates = torch.tensor(rows, dtype=torch.int32, device=device)
    same = ConvolutionPlan.build(coordinates, 3)
    coarse = ConvolutionPlan.build(coordinates, 2, 2, targets="strided")
    x, weight, _ = operands(same)

    out = sparse_conv(x, weight, same)

    torch.testing.assert_close(out, oracle(x, weight, same))
    assert [len(same.pairs(tap)[0]) for tap in range(3)] == [2, 5, 2]
    assert coarse.target.tolist() == [[0, low // 2], [0, high // 2], [1, high // 2]]
    assert coarse.pair_count == 5


@pytest.mark.parametrize("voxels", [0, 1])
@pytest.mark.parametrize("targets", ["same", "strided", "reachable"])
@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
def test_empty_and_single(voxels: int, targets: str, algorithm: str, device: str) -> None:
    coordinates = torch.full((voxels, 4), -7, dtype=torch.int32, device=device)
    coordinates[:, 0] = 0
    plan = ConvolutionPlan.build(coordinates, 3, targets=targets).with_algorithm(algorithm)
    x, weight, bias = operands(plan)

    out = sparse_conv(x, weight, plan, bias)

    assert out.shape == (len(plan.target), 2)
    assert_same(out, oracle(x, weight, plan, bias), (x, weight, bias))


def test_reference_backend(device: str) -> None:
    plan = build(kernel(3, 2, axes=3), "strided", device=device)
    x, weight, bias = operands(plan, 2, 5, 7)
    with lacewing.backend("reference"):
        out = sparse_conv(x, weight, plan, bias)
        assert_same(out, oracle(x, weight, plan, bias), (x, weight, bias))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_layouts_are_inverse(groups: int, transposed: bool) -> None:
    user = random(4, 6 // groups, 3, 1, 2)

    internal = weight_from_user(user, groups, transposed)

    assert internal.shape == (6, groups, *((4 // groups, 6 // groups) if transposed else (6 // groups, 4 // groups)))
    assert torch.equal(weight_to_user(internal, (3, 1, 2), transposed), user)


def test_transposed_layout_is_torchs(device: str) -> None:
    coarse = cloud(8, 2, extent=3, batch=1, device=device)
    plan = ConvolutionPlan.build_transposed(coarse, 2, 2)
    x = random(len(coarse), 3, device=device)
    user = random(3, 4, 2, 2, seed=2, device=device)
    grid = x.new_zeros(1, 6, 6, 3).index_put((coarse[:, 0].long(), *(coarse[:, 1:].long() + 3).unbind(1)), x)

    out = sparse_conv(x, user, plan, layout="user")

    expected = torch.nn.functional.conv_transpose2d(grid.movedim(-1, 1), user, stride=2)
    at = plan.target.long()[:, 1:] + 6
    torch.testing.assert_close(out, expected.movedim(1, -1)[0, at[:, 0], at[:, 1]])
