"""Convolution of half types on the tensor cores of a CUDA device."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn

import lacewing
from conv_support import cloud, random
from lacewing.conv import (
    ConvolutionPlan,
    ConvUnit,
    SubmanifoldConv,
    VoxelBatchNorm,
    VoxelTensor,
    sparse_conv,
    sparse_conv_workspace,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

HALVES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Tolerance of a result's norm."""
CHANNELS = [(4, 32), (16, 16), (32, 32), (24, 8), (64, 64), (96, 96), (64, 128), (256, 256), (128, 320)]


def plan_of(kind: str, n: int = 3000) -> ConvolutionPlan:
    voxels = cloud(n, 3, extent=14, device="cuda")
    plans = {
        "submanifold": lambda: ConvolutionPlan.build(voxels, 3),
        "five": lambda: ConvolutionPlan.build(voxels, 5),
        "strided": lambda: ConvolutionPlan.build(voxels, 3, stride=2, targets="strided"),
        "transposed": lambda: ConvolutionPlan.build(voxels, 2, stride=2, targets="strided").transposed(),
        "reachable": lambda: ConvolutionPlan.build(voxels, 2, targets="reachable"),
    }
    return plans[kind]()


def layer(plan: ConvolutionPlan, c_in: int, c_out: int, dtype: torch.dtype, groups: int = 1) -> tuple[Tensor, Tensor]:
    x = random(plan.source.shape[0], groups * c_in, dtype=dtype, device="cuda")
    return x, random(plan.taps, groups, c_in, c_out, seed=1, dtype=dtype, device="cuda")


def distance(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("c_in", "c_out"), CHANNELS)
@pytest.mark.parametrize("kind", ["submanifold", "five", "strided", "transposed", "reachable"])
def test_values_and_gradients(kind: str, c_in: int, c_out: int, dtype: torch.dtype) -> None:
    plan = plan_of(kind)
    x, weight = (tensor.requires_grad_() for tensor in layer(plan, c_in, c_out, dtype))
    bias = random(c_out, seed=2, dtype=dtype, device="cuda").requires_grad_()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]

    out = sparse_conv(x, weight, plan, bias)
    g = random(*out.shape, seed=3, dtype=dtype, device="cuda")
    out.backward(g)

    expected = sparse_conv(exact[0], exact[1], plan, exact[2])
    expected.backward(g.double())
    assert distance(out, expected) < HALVES[dtype]
    for found, wanted in zip((x, weight, bias), exact, strict=True):
        assert distance(found.grad, wanted.grad) < HALVES[dtype]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("c_in", "c_out"), [(8, 16), (64, 40)])
def test_groups(c_in: int, c_out: int, dtype: torch.dtype) -> None:
    plan = plan_of("submanifold")
    x, weight = layer(plan, c_in, c_out, dtype, groups=3)

    out = sparse_conv(x, weight, plan)

    assert distance(out, sparse_conv(x.double(), weight.double(), plan)) < HALVES[dtype]


@pytest.mark.parametrize("columns", [slice(0, 64), slice(8, 72)])
def test_rows_of_a_wider_matrix_are_read_in_place(columns: slice) -> None:
    plan = plan_of("submanifold")
    wide = random(3000, 80, dtype=torch.float16, device="cuda")
    weight = random(27, 1, 64, 64, seed=1, dtype=torch.float16, device="cuda")

    out = sparse_conv(wide[:, columns], weight, plan)

    assert out.equal(sparse_conv(wide[:, columns].contiguous(), weight, plan))


@pytest.mark.parametrize("offset", [1, 4])
def test_rows_that_are_no_vectors_take_another_way(offset: int) -> None:
    plan = plan_of("submanifold")
    wide = random(3000, 70, dtype=torch.float16, device="cuda")
    weight = random(27, 1, 64, 64, seed=1, dtype=torch.float16, device="cuda")

    out = sparse_conv(wide[:, offset : offset + 64], weight, plan)

    assert distance(out, sparse_conv(wide[:, offset : offset + 64].double(), weight.double(), plan)) < 2e-3


@pytest.mark.parametrize(("c_in", "c_out"), CHANNELS)
def test_a_row_alone_is_the_row_in_the_crowd(c_in: int, c_out: int) -> None:
    voxels = cloud(3000, 3, extent=12, device="cuda")
    plan = ConvolutionPlan.build(voxels, 3)
    x, weight = layer(plan, c_in, c_out, torch.float16)
    crowd = sparse_conv(x, weight, plan)

    for row in (0, 17, 2999):
        alone = sparse_conv(x, weight, ConvolutionPlan.build(voxels, 3, targets=voxels[row : row + 1]))
        assert alone.equal(crowd[row : row + 1])


def test_the_same_bits_in_every_run() -> None:
    plan = plan_of("submanifold", 20000)
    x, weight = layer(plan, 128, 128, torch.bfloat16)

    runs = []
    for _ in range(3):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        out = sparse_conv(*leaves, plan)
        out.backward(out.detach())
        runs.append([out.detach(), *(leaf.grad for leaf in leaves)])

    assert all(first.equal(other) for run in runs[1:] for first, other in zip(runs[0], run, strict=True))


def digests() -> list[str]:
    """Of layers' results and gradients."""
    plan = plan_of("submanifold", 20000)
    found = []
    for c_in, c_out in CHANNELS:
        leaves = [tensor.requires_grad_() for tensor in layer(plan, c_in, c_out, torch.float16)]
        out = sparse_conv(*leaves, plan)
        out.backward(out.detach())
        found += [
            str(tensor.view(torch.int16).long().sum().item()) for tensor in (out.detach(), *(x.grad for x in leaves))
        ]
    return found


@pytest.mark.parametrize("blocks", ["1", "33"])
def test_the_same_bits_on_few_blocks(blocks: str) -> None:
    here = str(pathlib.Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_conv_tensor_cores as t; print(*t.digests())"
    environment = os.environ | {"LACEWING_MAX_BLOCKS": blocks}

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert run.stdout.split() == digests()


@pytest.mark.parametrize("channels", [16, 64, 256])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_a_unit_is_its_parts_rounded_once(channels: int, normed: bool, added: bool) -> None:
    voxels = cloud(3000, 3, extent=12, device="cuda")
    x = VoxelTensor(random(3000, channels, dtype=torch.float16, device="cuda"), voxels)
    residual = x.replace(random(3000, channels, seed=4, dtype=torch.float16, device="cuda")) if added else None
    conv = SubmanifoldConv(channels, channels, device="cuda", dtype=torch.float16)
    norm = VoxelBatchNorm(channels, device="cuda", dtype=torch.float16).eval() if normed else None
    if norm is not None:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)

    with torch.no_grad():
        found = ConvUnit(conv, norm, True)(x, residual).features
        exact = conv.double()(x.to(torch.float64)).features
        if norm is not None:
            exact = norm.double()(x.replace(exact)).features
        exact = (exact if residual is None else exact + residual.features).relu()

    assert distance(found, exact) < 2e-3


@pytest.mark.parametrize(("c_in", "c_out"), [(4, 32), (32, 32), (64, 64), (256, 256)])
def test_workspace_is_what_is_told(c_in: int, c_out: int) -> None:
    plan = plan_of("submanifold")
    x, weight = layer(plan, c_in, c_out, torch.float16)
    sparse_conv(x, weight, plan)  # the plan's tables
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    out = sparse_conv(x, weight, plan)

    rounding = 4 * 512
    told = out.nbytes + sparse_conv_workspace(x, weight, plan)
    assert told <= torch.cuda.max_memory_allocated() - before <= told + rounding


def test_tables_live_as_long_as_their_plan() -> None:
    other = plan_of("strided")
    operands = layer(other, 64, 64, torch.float16)
    sparse_conv(*operands, other)  # a call looks for the tables of dead plans
    before = torch.cuda.memory_allocated()

    plan = plan_of("submanifold")
    out = sparse_conv(*layer(plan, 64, 64, torch.float16), plan)
    known = out.nbytes + plan._array.nbytes + plan.source.nbytes
    assert torch.cuda.memory_allocated() > before + known + 4 * 27 * len(plan.target)

    del plan, out
    sparse_conv(*operands, other)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("channels", [16, 64, 256])
def test_calls_go_into_graphs(channels: int, warm: bool) -> None:
    plan = plan_of("submanifold")
    x, weight = layer(plan, channels, channels, torch.float16)
    if warm:
        sparse_conv(x, weight, plan)
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sparse_conv(x, weight, plan)
    x.copy_(random(*x.shape, seed=9, dtype=torch.float16, device="cuda"))
    graph.replay()

    assert out.equal(sparse_conv(x, weight, plan))


def test_streams_and_threads() -> None:
    plan = plan_of("submanifold", 20000)
    x, weight = layer(plan, 64, 64, torch.float16)
    expected = sparse_conv(x.clone(), weight, plan_of("submanifold", 20000))
    torch.cuda.synchronize()
    results: list[Tensor] = []

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(sparse_conv(x, weight, plan))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 4
    assert all(result.equal(expected) for result in results)


def test_an_empty_cloud() -> None:
    plan = ConvolutionPlan.build(torch.zeros(0, 4, dtype=torch.int32, device="cuda"), 3)
    x, weight = (tensor.requires_grad_() for tensor in layer(plan, 64, 64, torch.float16))

    out = sparse_conv(x, weight, plan)
    out.sum().backward()

    assert out.shape == (0, 64)
    assert weight.grad.count_nonzero() == 0


def test_targets_without_a_source_are_the_bias() -> None:
    voxels = cloud(100, 3, extent=8, device="cuda")
    far = voxels + torch.tensor([0, 100, 0, 0], device="cuda", dtype=torch.int32)
    plan = ConvolutionPlan.build(voxels, 3, targets=far)
    x, weight = layer(plan, 64, 64, torch.float16)
    bias = random(64, dtype=torch.float16, device="cuda")

    assert sparse_conv(x, weight, plan, bias).equal(bias.expand(100, 64))


def test_a_bias_at_any_place_in_memory() -> None:
    plan = plan_of("submanifold")
    x, weight = layer(plan, 64, 64, torch.float16)
    bias = random(65, dtype=torch.float16, device="cuda")[1:]

    out = sparse_conv(x, weight, plan, bias)

    assert distance(out, sparse_conv(x.double(), weight.double(), plan, bias.double())) < 2e-3


def test_the_plain_algorithm_can_be_pinned() -> None:
    plan = plan_of("submanifold")
    x, weight = layer(plan, 64, 64, torch.float16)
    pinned = plan.with_algorithm("gather_gemm_scatter")

    assert sparse_conv_workspace(x, weight, pinned) > sparse_conv_workspace(x, weight, plan)
    assert distance(sparse_conv(x, weight, pinned), sparse_conv(x, weight, plan).double()) < 2e-3


def test_the_reference_agrees() -> None:
    plan = plan_of("strided")
    x, weight = layer(plan, 64, 64, torch.bfloat16)
    out = sparse_conv(x, weight, plan)

    with lacewing.backend("reference"):
        expected = sparse_conv(x, weight, plan)

    assert distance(out, expected.double()) < 1.6e-2
