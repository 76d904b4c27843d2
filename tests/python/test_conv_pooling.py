"""Pooling over plans against loops, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

import lacewing
from conv_support import Kernel, cloud, kernel, pairs, random
from lacewing.conv import (
    ConvolutionPlan,
    avg_pool,
    global_pool,
    max_pool,
    max_pool_with_indices,
    max_unpool,
    pool,
    reduce_voxels,
    sum_pool,
    unpool,
)

KERNELS = [kernel(3, 2, axes=1), kernel(2, 2, axes=3), kernel(3, axes=2), kernel((3, 2), (2, 1))]
MODES = ["sum", "avg", "max"]


def make(k: Kernel, voxels: int, device: str, targets="strided"):
    coordinates = cloud(voxels, len(k.size), extent=30 if len(k.size) == 1 else 4, device=device)
    return ConvolutionPlan.build(coordinates, k.size, k.stride, k.dilation, targets)


def expected(x, plan: ConvolutionPlan, mode: str):
    members: list[list[int]] = [[] for _ in range(len(plan.target))]
    for fine, coarse in pairs(plan.source, plan.target, Kernel(plan.kernel_size, plan.stride, plan.dilation)):
        for f, c in zip(fine, coarse, strict=True):
            members[c].append(f)
    reduce = {"sum": lambda r: r.sum(0), "avg": lambda r: r.mean(0), "max": lambda r: r.amax(0)}[mode]
    return torch.stack([reduce(x[m]) if m else x.new_zeros(x.shape[1]) for m in members])


@pytest.mark.parametrize("k", KERNELS, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["automatic", "reference"])
def test_pooling(k: Kernel, mode: str, dtype: torch.dtype, backend: str, device: str) -> None:
    plan = make(k, 40, device)
    x = random(40, 5, dtype=dtype, device=device)

    with lacewing.backend(backend):
        out = pool(x, plan, mode)

    wanted = expected(x.double(), plan, mode)
    torch.testing.assert_close(out.double(), wanted, atol=1e-12 if dtype == torch.float64 else 2e-2, rtol=1e-2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", KERNELS[:2], ids=str)
def test_gradients(mode: str, k: Kernel, device: str) -> None:
    plan = make(k, 8, device)
    x = random(8, 2, device=device).requires_grad_()
    run = lambda x: pool(x, plan, mode)

    assert gradcheck(run, x, check_forward_ad=True)
    assert gradgradcheck(run, x)


def test_opcheck(device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan = make(KERNELS[0], 9, device)
    x = random(9, 2, device=device).requires_grad_()
    _, arg = max_pool_with_indices(x, plan)
    grad = random(*arg.shape, device=device).requires_grad_()

    torch.library.opcheck(torch.ops.lacewing.sparse_max_pool.default, (x, plan._array, plan._sizes))
    torch.library.opcheck(torch.ops.lacewing.sparse_max_pool_grad.default, (grad, arg, plan._array, plan._sizes))
    for mode in MODES:
        torch.library.opcheck(torch.ops.lacewing.sparse_pool.default, (x, plan._array, plan._sizes, mode))


@pytest.mark.parametrize("mode", MODES)
def test_compiles_as_one_graph(mode: str, device: str) -> None:
    plan = make(KERNELS[0], 9, device)
    x = random(9, 2, device=device).requires_grad_()
    run = lambda x, plan: pool(x, plan, mode).square().sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)

    torch.testing.assert_close(torch.autograd.grad(compiled(x, plan), x), torch.autograd.grad(run(x, plan), x))


def test_the_same_bits_for_every_number_of_threads() -> None:
    plan = ConvolutionPlan.build(cloud(2000, 3, extent=10), 3, 2, targets="strided")
    x = random(2000, 20, dtype=torch.float32).requires_grad_()
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            out = [pool(x, plan, mode) for mode in MODES]
            results.append([*out, *(torch.autograd.grad(o.square().sum(), x)[0] for o in out)])
    finally:
        torch.set_num_threads(threads)

    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_targets_without_voxels_are_zero(device: str) -> None:
    source = torch.tensor([[0, 0]], dtype=torch.int32, device=device)
    target = torch.tensor([[0, 0], [0, 50]], dtype=torch.int32, device=device)
    plan = ConvolutionPlan.build(source, 3, targets=target)
    x = torch.full((1, 1), -2.0, device=device)

    for mode in MODES:
        assert pool(x, plan, mode).tolist() == [[-2.0], [0.0]]
    assert max_pool_with_indices(x, plan)[1].tolist() == [[0], [-1]]


def test_the_first_of_equals_and_nan_win(device: str) -> None:
    source = torch.tensor([[0, 0], [0, 1], [0, 2], [0, 3]], dtype=torch.int32, device=device)
    plan = ConvolutionPlan.build(source, 2, 2, targets="strided")
    x = torch.tensor([[1.0], [1.0], [float("nan")], [5.0]], device=device)

    values, rows = max_pool_with_indices(x, plan)

    assert rows.tolist() == [[0], [2]]
    assert values[1].isnan().all()


def test_unpooling(device: str) -> None:
    plan = make(kernel(2, 2, axes=2), 30, device)
    x = random(30, 3, device=device)

    coarse, rows = max_pool_with_indices(x, plan)
    back = max_unpool(coarse, rows, plan)

    assert torch.equal(back[back != 0], x[back != 0])
    assert torch.equal(max_pool(back, plan).where(coarse > 0, 0), coarse.where(coarse > 0, 0))
    torch.testing.assert_close(sum_pool(unpool(coarse, plan), plan) / sum_pool(torch.ones_like(x), plan), coarse)
    torch.testing.assert_close(avg_pool(unpool(coarse, plan), plan), coarse)


@pytest.mark.parametrize("mode", MODES)
def test_global_pooling(mode: str, device: str) -> None:
    batch = torch.tensor([0, 2, 0, 2, 2], device=device)
    x = random(5, 3, device=device).requires_grad_()

    out = global_pool(x, batch, 4, mode)

    reduce = {"sum": lambda r: r.sum(0), "avg": lambda r: r.mean(0), "max": lambda r: r.amax(0)}[mode]
    rows = [reduce(x[batch == b]) if (batch == b).any() else x.new_zeros(3) for b in range(4)]
    torch.testing.assert_close(out, torch.stack(rows))
    assert gradcheck(lambda x: global_pool(x, batch, 4, mode), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_means_of_half_types_do_not_overflow(dtype: torch.dtype, device: str) -> None:
    grid = torch.cartesian_prod(torch.arange(1), *[torch.arange(5)] * 3).int().to(device)
    plan = ConvolutionPlan.build(grid, 3)
    big = torch.full((125, 2), 5000.0, dtype=dtype, device=device)
    ones = torch.ones(70000, 1, dtype=dtype, device=device)

    for out in (avg_pool(big, plan), unpool(big, plan)):
        torch.testing.assert_close(out, big, rtol=0, atol=0)
    zeros = torch.zeros(70000, 2, dtype=torch.int32, device=device)
    assert torch.equal(global_pool(ones, zeros[:, 0], 1, "avg"), ones[:1])
    thousands = ones[:100] * 1000
    assert torch.equal(reduce_voxels(thousands, zeros[:100], "mean")[0], thousands[:1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_pools_keep_their_dtype_under_autocast(mode: str, low: torch.dtype, device: str) -> None:
    plan = make(KERNELS[1], 60, device)
    x = 200.7 + random(60, 3, dtype=torch.float32, device=device)
    batch = plan.source[:, 0]

    def results():
        merged, _, _ = reduce_voxels(x, plan.source, "mean" if mode == "avg" else "sum")
        return pool(x, plan, mode), unpool(pool(x, plan, mode), plan), global_pool(x, batch, 2, mode), merged

    with torch.autocast(device, low):
        found = results()

    torch.testing.assert_close(found, results(), rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_vmap_of_pools(mode: str, device: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Values and gradients, without torch's fallback, which says so on the standard error."""
    plan = make(KERNELS[1], 60, device)
    x = random(3, 60, 2, device=device)

    for f in (lambda f: pool(f, plan, mode), grad(lambda f: pool(f, plan, mode).sin().sum())):
        torch.testing.assert_close(vmap(f)(x), torch.stack([f(one) for one in x]))
    assert "There is a performance drop" not in capfd.readouterr().err


@pytest.mark.parametrize("mode", MODES)
def test_vmap_of_pooling_by_index(mode: str, device: str, capfd: pytest.CaptureFixture[str]) -> None:
    batch = torch.tensor([0, 1, 0, 1, 1], device=device)
    voxels = torch.stack([batch, batch], 1).int()
    x = random(3, 5, 2, device=device)
    reduction = {"sum": "sum", "avg": "mean", "max": "first"}[mode]

    for f in (lambda f: global_pool(f, batch, 2, mode), lambda f: reduce_voxels(f, voxels, reduction)[0]):
        torch.testing.assert_close(vmap(f)(x), torch.stack([f(one) for one in x]))
    assert "There is a performance drop" not in capfd.readouterr().err


def test_rows_out_of_range_are_refused(device: str) -> None:
    plan = make(KERNELS[0], 9, device)
    values, rows = max_pool_with_indices(random(9, 2, device=device), plan)

    for row in (-2, 9):
        rows[0, 1] = row
        with pytest.raises(ValueError, match=rf"row {row} is out of range: the plan's source has 9 voxels"):
            max_unpool(values, rows, plan)


def test_bad_input(device: str) -> None:
    plan = make(KERNELS[0], 9, device)

    with pytest.raises(RuntimeError, match=r"features of shape \(8, 2\) do not belong to this plan: its source coord"):
        max_pool(random(8, 2, device=device), plan)
    with pytest.raises(ValueError, match="mode must be 'sum', 'avg' or 'max', not 'min'"):
        pool(random(9, 2, device=device), plan, "min")
    with pytest.raises(ValueError, match=r"5 rows of features have batch indices of shape \(4,\)"):
        global_pool(random(5, 2), torch.zeros(4, dtype=torch.long), 1)
    with pytest.raises(ValueError, match="batch must have dtype int32 or int64, not float32"):
        global_pool(random(5, 2), torch.zeros(5), 1)
    with pytest.raises(ValueError, match="batch index 3 is out of range: there are 2 batch items"):
        global_pool(random(2, 2), torch.tensor([0, 3]), 2)
    with pytest.raises(ValueError, match="batch index -1 is out of range"):
        global_pool(random(2, 2), torch.tensor([0, -1]), 2)
    arg = torch.zeros(len(plan.target), 2, device=device)
    with pytest.raises(ValueError, match="rows must be int64 of two dimensions, not float32"):
        max_unpool(random(len(plan.target), 2, device=device), arg, plan)
