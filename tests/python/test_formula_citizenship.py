"""The formula in the rest of torch: gradcheck, opcheck, torch.func, compile, export, autocast, saving."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lacewing


def _weighted(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[lacewing.ProductPlan, list[Tensor]]:
    """A weighted tensor product: rows of both operands, a weight for each path."""
    plan = lacewing.product_plan(
        "u,v,uvw->w",
        index=([0, 1, 1, 2, 0], [1, 0, 1, 1, 0], [0, 0, 1, 1, 0]),
        out=[0, 2, 2, 1, 0],
        rows=(3, 2, 2),
        out_rows=4,
    ).to(device)
    generator = torch.Generator().manual_seed(1)
    shapes = ((4, 3, 2), (3, 2, 3), (2, 2, 3, 4), (5,))
    return plan, [torch.randn(s, generator=generator, dtype=dtype).to(device).requires_grad_() for s in shapes]


def _edges(device: str = "cpu") -> lacewing.Edges:
    return lacewing.Edges(
        maps=([3, 0, 3, 1, 2], [0, 1, 1, 2, 0], "shared"), out=[1, 0, 1, 1, 2], batch=(4, 3, None), out_batch=3
    ).to(device)


def _function(device: str = "cpu") -> tuple[Callable[..., Tensor], list[Tensor]]:
    plan, inputs = _weighted(device=device)
    edges = _edges(device)
    return lambda x, y, w, s: lacewing.product(plan, (x, y, w), edges, s), inputs


def test_gradcheck(device: str) -> None:
    f, inputs = _function(device)

    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_third_derivative() -> None:
    f, (x, y, w, s) = _function()

    def third(x: Tensor) -> Tensor:
        g = torch.autograd.grad(f(x, y, w, s).square().sum(), [y, w], create_graph=True)
        h = torch.autograd.grad(sum((part * part).sum() for part in g), s, create_graph=True)
        return h[0].sum()

    assert torch.autograd.gradcheck(third, (x,))


@pytest.mark.parametrize("name", ["product", "product_backward"])
def test_opcheck(name: str, device: str) -> None:
    plan, (x, y, w, s) = _weighted(device=device)
    edges = _edges(device)
    arguments = ([x, y, w], s)
    rest = ([plan.array, edges.array], (*plan.sizes, *edges.sizes), f"{plan.form}|{edges.maps}", 3)
    if name == "product":
        torch.library.opcheck(torch.ops.lacewing.product.default, (*arguments, *rest))
    else:
        grad = torch.randn(3, 4, 4, dtype=x.dtype, device=device, requires_grad=True)
        torch.library.opcheck(torch.ops.lacewing.product_backward.default, (*arguments, grad, *rest, [0, 2, 3]))


def test_func_transforms() -> None:
    f, inputs = _function()
    detached = tuple(x.detach() for x in inputs)

    reverse = torch.func.jacrev(f, argnums=(0, 1, 2, 3))(*detached)
    forward = torch.func.jacfwd(f, argnums=(0, 1, 2, 3))(*detached)

    for r, fw in zip(reverse, forward, strict=True):
        torch.testing.assert_close(r, fw)
    hessian = torch.func.hessian(lambda x: f(x, *detached[1:]).pow(2).sum())(detached[0])
    assert hessian.shape == (4, 3, 2, 4, 3, 2)


@pytest.mark.parametrize("mapped", [(0, None, None, None), (1, 0, None, None), (None, None, -1, 0), (0, 2, 1, 0)])
def test_vmap(mapped: tuple[int | None, ...]) -> None:
    f, inputs = _function()
    stacks = [
        x.detach() if dim is None else torch.stack([x.detach() * k for k in (1.0, -2.0, 0.5)], dim)
        for x, dim in zip(inputs, mapped, strict=True)
    ]

    result = torch.vmap(f, in_dims=mapped)(*stacks)

    for k in range(3):
        one = f(*(x if dim is None else x.select(dim, k) for x, dim in zip(stacks, mapped, strict=True)))
        torch.testing.assert_close(result[k], one)


def test_vmap_of_gradients() -> None:
    f, inputs = _function()
    x, *rest = (t.detach() for t in inputs)
    xs = torch.stack([x, 2 * x, -x])
    gradient = torch.func.grad(lambda x, w: f(x, rest[0], w, rest[2]).pow(3).sum(), argnums=(0, 1))

    mapped = torch.vmap(gradient, in_dims=(0, None))(xs, rest[1])

    for k in range(3):
        for part, one in zip(mapped, gradient(xs[k], rest[1]), strict=True):
            torch.testing.assert_close(part[k], one)


def _plan_of(terms: int) -> lacewing.ProductPlan:
    generator = torch.Generator().manual_seed(terms)
    draw = lambda rows: torch.randint(rows, (terms,), generator=generator)
    return lacewing.product_plan(
        "u,v,uv->v", index=(draw(4), draw(5), draw(3)), out=draw(6), rows=(4, 5, 3), out_rows=6
    )


def test_compile_needs_two_graphs_for_twelve_plans() -> None:
    torch._dynamo.reset()
    graphs = 0

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return module.forward

    @torch.compile(backend=backend, fullgraph=True)
    def f(plan: lacewing.ProductPlan, x: Tensor, y: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return lacewing.product(plan, (x, y, w), None, s).sin()

    for terms in range(20, 44, 2):
        plan = _plan_of(terms)
        shapes = ((7, 4, 2), (7, 5, 3), (3, 2, 3), (terms,))
        inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        got = torch.autograd.grad(f(plan, *inputs).sum(), inputs)
        right = torch.autograd.grad(lacewing.product(plan, inputs[:3], None, inputs[3]).sin().sum(), inputs)
        for ours, expected in zip(got, right, strict=True):
            torch.testing.assert_close(ours, expected)
    assert graphs <= 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    torch._dynamo.reset()
    plan, inputs = _weighted(torch.float32)
    edges = _edges()

    @torch.compile(backend=backend, fullgraph=True)
    def f(x: Tensor, y: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return lacewing.product(plan, (x, y, w), edges, s).tanh()

    got = torch.autograd.grad(f(*inputs).sum(), inputs)

    right = torch.autograd.grad(lacewing.product(plan, inputs[:3], edges, inputs[3]).tanh().sum(), inputs)
    for ours, expected in zip(got, right, strict=True):
        torch.testing.assert_close(ours, expected)


def test_export() -> None:
    plan, inputs = _weighted()
    edges = _edges()

    class Layer(torch.nn.Module):
        def forward(self, plan: lacewing.ProductPlan, edges: lacewing.Edges, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            return lacewing.product(plan, (x, y, w), edges) * 2

    detached = tuple(x.detach() for x in inputs[:3])

    program = torch.export.export(Layer(), (plan, edges, *detached))

    torch.testing.assert_close(program.module()(plan, edges, *detached), 2 * lacewing.product(plan, detached, edges))


def test_autocast_runs_contractions_in_its_dtype() -> None:
    plan, (x, y, w, s) = _weighted(torch.float32)
    elementwise = lacewing.product_plan("u,u->u")

    with torch.autocast("cpu", torch.bfloat16):
        contracted = lacewing.product(plan, (x, y, w), _edges(), s)
        kept = lacewing.product(elementwise, (x[:, 0], x[:, 1]))

    assert contracted.dtype == torch.bfloat16
    assert kept.dtype == torch.float32


@pytest.mark.parametrize("weights_only", [True, False])
def test_saving(weights_only: bool) -> None:
    plan, (x, y, w, s) = _weighted()
    edges = _edges()
    file = io.BytesIO()

    torch.save((plan, edges), file)
    file.seek(0)
    loaded, loaded_edges = torch.load(file, weights_only=weights_only)

    assert torch.equal(
        lacewing.product(loaded, (x, y, w), loaded_edges, s), lacewing.product(plan, (x, y, w), edges, s)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_sum_in_float(dtype: torch.dtype, device: str) -> None:
    """Both levels of a sum are kept in float and rounded once."""
    terms, edges = 40, 50
    plan = lacewing.product_plan("a,->a", index=(range(terms), None), out=[0] * terms, rows=(terms, None), out_rows=1)
    x = torch.randn(edges, terms, 37, dtype=dtype, device=device)
    y = torch.randn(edges, dtype=dtype, device=device)
    all_edges = lacewing.Edges(maps=(None, None), out=[0] * edges)

    z = lacewing.product(plan.to(device), (x, y), all_edges.to(device))

    exact = torch.einsum("etc,e->c", x.double(), y.double())
    assert (z[0, 0].double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


def test_conjugated_and_strided_operands(device: str) -> None:
    plan, (x, y, w, s) = _weighted(torch.complex128, device)
    edges = _edges(device)
    strided = [x.detach().transpose(0, 2).contiguous().transpose(0, 2), y.detach().conj(), w.detach()[..., ::2]]
    plain = [t.resolve_conj().clone(memory_format=torch.contiguous_format) for t in strided]

    z = lacewing.product(plan, strided, edges, s.detach().conj())

    torch.testing.assert_close(z, lacewing.product(plan, plain, edges, s.detach().conj().resolve_conj()))
