"""Sparse convolution as a citizen of torch: opcheck, compile, export, torch.func, autocast, copies, threads, memory."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, vmap

from conv_support import cloud, oracle, random
from lacewing.conv import (
    ConvolutionPlan,
    SubmanifoldConv,
    VoxelTensor,
    max_pool,
    sparse_conv,
    sparse_conv_workspace,
)
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

    torch.library.opcheck(OPS.sparse_conv.default, (x, w, bias, plan._array, plan._sizes, transposed))


@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
def test_opcheck_of_weight_grad(algorithm: str, device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan, x, _, _ = make(device, groups=2)
    plan = plan.with_algorithm(algorithm)
    g = random(len(plan.target), 6, device=device).requires_grad_()

    torch.library.opcheck(OPS.sparse_conv_weight_grad.default, (x, g, plan._array, plan._sizes, 2))


def test_opcheck_of_max_pool(device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    plan, x, _, _ = make(device)
    values, rows = OPS.sparse_max_pool(x, plan._array, plan._sizes)
    g = random(*values.shape, device=device).requires_grad_()

    torch.library.opcheck(OPS.sparse_max_pool.default, (x, plan._array, plan._sizes))
    torch.library.opcheck(OPS.sparse_max_pool_grad.default, (g, rows, plan._array, plan._sizes))


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
        jacrev(run, argnums=(0, 1, 2))(x, weight, bias), jacfwd(run, argnums=(0, 1, 2))(x, weight, bias)
    )
    torch.testing.assert_close(
        jacrev(grad(total, 1))(x, weight, bias),
        oracle_jacobian(plan, x, weight, bias),  # mixed second derivatives
    )


def oracle_jacobian(plan: ConvolutionPlan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return jacrev(grad(lambda x, w: oracle(x, w, plan, bias).square().sum(), 1))(x, weight)


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (None, 0, None), (None, None, 0), (1, 2, None), (0, 0, 0), (-1, 0, 1)], ids=str
)
def test_vmap(in_dims: tuple[int | None, ...], algorithm: str, device: str) -> None:
    """Values and the gradients of each of the batch: features, weights and biases."""
    plan, *single = make(device, groups=2)
    plan = plan.with_algorithm(algorithm)
    parts = [[t.detach(), -2 * t.detach(), t.detach() + 1] for t in single]
    inputs = [p[0] if d is None else torch.stack(p, d) for p, d in zip(parts, in_dims, strict=True)]
    run = lambda x, w, b: sparse_conv(x, w, plan, b)
    gradients = grad(lambda *a: run(*a).square().sum(), argnums=(0, 1, 2))
    each = [[p[0] if d is None else p[i] for p, d in zip(parts, in_dims, strict=True)] for i in range(3)]

    values = vmap(run, in_dims)(*inputs)
    found = vmap(gradients, in_dims)(*inputs)

    torch.testing.assert_close(values, torch.stack([run(*a) for a in each]))
    for mine, theirs in zip(found, zip(*(gradients(*a) for a in each), strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs))


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_of_max_pool(device: str) -> None:
    plan, x, _, _ = make(device)
    many = random(3, 2, *x.shape, seed=5, device=device)
    gradient = grad(lambda x: max_pool(x, plan).pow(3).sum())

    found = vmap(vmap(lambda x: (max_pool(x, plan), gradient(x))), in_dims=1)(many)

    for i in range(3):
        for j in range(2):
            torch.testing.assert_close(found[0][j, i], max_pool(many[i, j], plan))
            torch.testing.assert_close(found[1][j, i], gradient(many[i, j]))


def test_vmap_at_its_edges(device: str) -> None:
    plan, x, weight, bias = make(device)
    run = lambda x, w: sparse_conv(x, w, plan, bias)

    nested = vmap(vmap(run, (None, 0)), (0, None))(torch.stack([x, 3 * x]), torch.stack([weight, -weight, 2 * weight]))
    empty = vmap(run, (0, None))(x.new_zeros(0, *x.shape), weight)

    torch.testing.assert_close(nested[1, 2], run(3 * x, 2 * weight))
    assert empty.shape == (0, len(plan.target), 3)
    with pytest.raises(RuntimeError, match=r"features must have 2 dimensions, not shape \(2,\)"):
        vmap(run, (0, None))(x, weight)
    with pytest.raises(RuntimeError, match=r"\[lacewing.sparse_conv\] vmap over a plan is not possible"):
        vmap(lambda array: OPS.sparse_conv(x, weight, None, array, plan._sizes))(torch.stack([plan._array] * 2))


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

    assert again._sizes == plan._sizes
    assert again.algorithm == plan.algorithm
    assert torch.equal(sparse_conv(x, weight, again, bias), sparse_conv(x, weight, plan, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cin", "cout", "groups"), [(20, 36, 1), (66, 70, 1), (1, 1, 32), (8, 8, 4)])
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_allocates_the_output_and_the_workspace(algorithm: str, dtype: torch.dtype, biased: bool) -> None:
    plan = ConvolutionPlan.build(cloud(2000, 3, extent=10), 3).with_algorithm(algorithm)
    x = random(2000, 32, dtype=dtype)
    weight = random(27, 1, 32, 48, dtype=dtype)
    bias = random(48, dtype=dtype) if biased else None
    sparse_conv(x, weight, plan, bias)

    peak = peak_beyond(lambda: sparse_conv(x, weight, plan, bias))

    assert peak == 2000 * 48 * x.element_size() + sparse_conv_workspace(x, weight, plan)


@pytest.mark.parametrize("algorithm", ["automatic", "gather_gemm_scatter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cin", "cout", "groups"), [(32, 48, 1), (260, 8, 1), (1, 1, 32)])
def test_gradients_allocate_their_results_and_their_workspaces(
    cin: int, cout: int, groups: int, dtype: torch.dtype, algorithm: str
) -> None:
    plan = ConvolutionPlan.build(cloud(600, 3, extent=6), 3).with_algorithm(algorithm)
    x, g = random(600, groups * cin, dtype=dtype), random(600, groups * cout, dtype=dtype)
    weight = random(27, groups, cin, cout, dtype=dtype)
    for_input = (weight, None, plan._array, plan.transposed()._sizes, True)
    for_weight = (plan._array, plan._sizes, groups)
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
