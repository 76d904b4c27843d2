"""Sparse convolution as a citizen of torch: opcheck, compile, export, torch.func, autocast, copies, threads, memory."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, vmap

from conv_support import cloud, random
from lacewing.conv import ConvolutionPlan, SubmanifoldConv, VoxelTensor, sparse_conv, sparse_conv_workspace
from test_product_memory import VIEWS, executed, peak_beyond

OPS = torch.ops.lacewing


def make(device: str, voxels: int = 12, cin: int = 2, cout: int = 3, groups: int = 1, dtype=torch.float64):
    plan = ConvolutionPlan.build(cloud(voxels, 2, extent=4, device=device), 3, 2, targets="strided")
    x = random(voxels, groups * cin, seed=1, dtype=dtype, device=device)
    weight = random(9, groups, cin, cout, seed=2, dtype=dtype, device=device)
    bias = random(groups * cout, seed=3, dtype=dtype, device=device)
    return plan, x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
def test_opcheck_of_conv(transposed: bool, algorithm: str, device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan, x, weight, bias = make(device, groups=2)
    plan = plan.with_algorithm(algorithm)
    w = weight.detach().transpose(2, 3).contiguous().requires_grad_() if transposed else weight

    torch.library.opcheck(OPS.sparse_conv.default, (x, w, bias, plan._array, plan._meta, transposed))


@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
def test_opcheck_of_weight_grad(algorithm: str, device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan, x, _, _ = make(device, groups=2)
    plan = plan.with_algorithm(algorithm)
    g = random(len(plan.target), 6, device=device).requires_grad_()

    torch.library.opcheck(OPS.sparse_conv_weight_grad.default, (x, g, plan._array, plan._meta, 2))


def test_opcheck_of_max_pool(device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan, x, _, _ = make(device)
    values, rows = OPS.sparse_max_pool(x, plan._array, plan._meta)
    g = random(*values.shape, device=device).requires_grad_()

    torch.library.opcheck(OPS.sparse_max_pool.default, (x, plan._array, plan._meta))
    torch.library.opcheck(OPS.sparse_max_pool_grad.default, (g, rows, plan._array, plan._meta))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_as_one_graph(backend: str, device: str) -> None:
    plan, x, weight, bias = make(device)

    def step(x, weight, bias, plan):
        return torch.relu(sparse_conv(x, weight, plan, bias)).square().sum()

    expected = torch.autograd.grad(step(x, weight, bias, plan), (x, weight, bias))
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    found = torch.autograd.grad(compiled(x, weight, bias, plan), (x, weight, bias))

    torch.testing.assert_close(found, expected)


def test_exports(device: str) -> None:
    plan, x, weight, bias = make(device)

    class Net(torch.nn.Module):
        def forward(self, x, weight, bias, plan):
            return sparse_conv(x, weight, plan, bias)

    program = torch.export.export(Net(), (x, weight, bias, plan))

    torch.testing.assert_close(program.module()(x, weight, bias, plan), sparse_conv(x, weight, plan, bias))


def test_functorch(device: str) -> None:
    plan, x, weight, bias = make(device, voxels=5)
    run = lambda x, w, b: sparse_conv(x, w, plan, b)
    total = lambda *a: run(*a).square().sum()

    expected = torch.autograd.grad(total(x, weight, bias), (x, weight, bias))
    torch.testing.assert_close(grad(total, argnums=(0, 1, 2))(x, weight, bias), expected)
    torch.testing.assert_close(
        jacrev(run, argnums=(0, 1))(x, weight, bias), jacfwd(run, argnums=(0, 1))(x, weight, bias)
    )
    many = torch.stack([x, 2 * x])
    torch.testing.assert_close(
        vmap(run, (0, None, None))(many, weight, bias), torch.stack([run(x, weight, bias), run(2 * x, weight, bias)])
    )


def test_autocast(device: str) -> None:
    plan, x, weight, bias = make(device, dtype=torch.float32)

    with torch.autocast(device, torch.bfloat16):
        out = sparse_conv(x, weight, plan, bias)
    out.float().sum().backward()

    assert out.dtype == torch.bfloat16
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("how", ["pickle", "copy", "deepcopy", "save", "to"])
def test_plans_are_saved_and_copied(how: str, device: str) -> None:
    plan, x, weight, bias = make(device)
    plan = plan.with_algorithm("gather_gemm_scatter").transposed().transposed()
    stream = io.BytesIO()
    torch.save(plan, stream)
    stream.seek(0)

    again = {
        "pickle": lambda: pickle.loads(pickle.dumps(plan)),
        "copy": lambda: copy.copy(plan),
        "deepcopy": lambda: copy.deepcopy(plan),
        "save": lambda: torch.load(stream, weights_only=False),
        "to": lambda: plan.to("cpu").to(device),
    }[how]()

    assert again._meta == plan._meta
    assert again.algorithm == plan.algorithm
    assert torch.equal(sparse_conv(x, weight, again, bias), sparse_conv(x, weight, plan, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cin", "cout", "groups"), [(20, 36, 1), (1, 1, 32), (8, 8, 4)])
def test_the_same_bits_for_every_number_of_threads(cin: int, cout: int, groups: int, dtype: torch.dtype) -> None:
    plan = ConvolutionPlan.build(cloud(3000, 3, extent=12), 3)
    x = random(3000, groups * cin, dtype=dtype).requires_grad_()
    weight = random(27, groups, cin, cout, seed=2, dtype=dtype).requires_grad_()
    upstream = random(3000, groups * cout, seed=3, dtype=dtype)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            again = ConvolutionPlan.build(plan.source, 3)
            out = sparse_conv(x, weight, again)
            results.append((again._array, out, *torch.autograd.grad(out, (x, weight), upstream)))
    finally:
        torch.set_num_threads(threads)

    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_one_plan_serves_several_threads(device: str) -> None:
    plan, x, weight, bias = make(device, voxels=50, cin=8, cout=16)
    expected = sparse_conv(x, weight, plan, bias)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: sparse_conv(x, weight, plan, bias), range(16)))

    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_allocates_the_output_and_the_workspace(algorithm: str, dtype: torch.dtype) -> None:
    plan = ConvolutionPlan.build(cloud(2000, 3, extent=10), 3).with_algorithm(algorithm)
    x = random(2000, 32, dtype=dtype)
    weight = random(27, 1, 32, 48, dtype=dtype)
    sparse_conv(x, weight, plan)

    peak = peak_beyond(lambda: sparse_conv(x, weight, plan))

    assert peak == 2000 * 48 * x.element_size() + sparse_conv_workspace(x, weight, plan)


@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cin", "cout", "groups"), [(32, 48, 1), (160, 8, 1), (1, 1, 32)])
def test_gradients_allocate_their_results_and_their_workspaces(
    cin: int, cout: int, groups: int, dtype: torch.dtype, algorithm: str
) -> None:
    plan = ConvolutionPlan.build(cloud(600, 3, extent=6), 3).with_algorithm(algorithm)
    x, g = random(600, groups * cin, dtype=dtype), random(600, groups * cout, dtype=dtype)
    weight = random(27, groups, cin, cout, dtype=dtype)
    for_input = (weight, None, plan._array, plan.transposed()._meta, True)
    for_weight = (plan._array, plan._meta, groups)
    OPS.sparse_conv(g, *for_input), OPS.sparse_conv_weight_grad(x, g, *for_weight)

    input_peak = peak_beyond(lambda: OPS.sparse_conv(g, *for_input))
    weight_peak = peak_beyond(lambda: OPS.sparse_conv_weight_grad(x, g, *for_weight))

    assert input_peak == x.nbytes + OPS.sparse_conv_workspace(g, weight, *for_input[2:])
    assert weight_peak == weight.nbytes + OPS.sparse_conv_weight_grad_workspace(x, g, *for_weight)


def test_layers_run_nothing_but_the_convolution(device: str) -> None:
    """Forward and backward: no permutation, copy or cast of the weight."""
    coordinates = cloud(100, 3, device=device)
    x = VoxelTensor(random(100, 8, dtype=torch.float32, device=device).requires_grad_(), coordinates)
    layer = SubmanifoldConv(8, 16, bias=False, device=device)
    plan = x.cache.plan(coordinates, layer.geometry, "same").with_algorithm("tiles" if device == "cpu" else "automatic")
    upstream = torch.ones(100, 16, device=device)
    step = lambda: torch.autograd.grad(layer(x, plan=plan).features, (x.features, layer.weight), upstream)
    step()

    names = set(executed(step)) - VIEWS

    ours = {name for name in names if name.startswith("lacewing::")}
    assert ours == {"lacewing::sparse_conv", "lacewing::sparse_conv_weight_grad"}
    if device == "cpu":
        assert names == ours


def test_executing_reads_nothing_back(device: str) -> None:
    if device == "cpu":
        pytest.skip("nothing to read back from")
    plan, x, weight, bias = make(device, groups=2)
    run = lambda: torch.autograd.grad(sparse_conv(x, weight, plan, bias).sum(), (x, weight, bias))
    run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
