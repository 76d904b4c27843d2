"""Attention over edges in the rest of torch: higher derivatives, opcheck, torch.func, compile, export, autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lacewing
from attention_support import Graph, Inputs

GRAPH = Graph(torch.tensor([3, 0, 3, 1, 2, 0, 1, 3]), torch.tensor([1, 0, 1, 1, 2, 4, 4, 4]), rows=5, columns=4)
FORMS = [(2, 3, 2, "fb"), (2, None, 3, "fb"), (3, 2, 1, ""), (1, None, 2, "b")]


def _function(
    form: tuple[int, int | None, int, str], device: str = "cpu", dtype: torch.dtype = torch.float64, dropout: float = 0
) -> tuple[Callable[..., Tensor], list[Tensor]]:
    inputs = Inputs.random(
        GRAPH, *form, dtype=dtype, device=device, generation=2, negative_slope=0.3, dropout=dropout, seed=5
    )
    edges = GRAPH.edges(device)
    return lambda *given: inputs.attention(edges, *given), inputs.tensors()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dropout", [0, 0.3])
def test_gradcheck(form: tuple[int, int | None, int, str], dropout: float, device: str) -> None:
    f, inputs = _function(form, device, dropout=dropout)

    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_third_derivative() -> None:
    f, (q, k, v, factor, bias) = _function(FORMS[0])

    def third(q: Tensor) -> Tensor:
        g = torch.autograd.grad(f(q, k, v, factor, bias).square().sum(), [k, v, factor], create_graph=True)
        h = torch.autograd.grad(sum((part * part).sum() for part in g), bias, create_graph=True)
        return h[0].sum()

    assert torch.autograd.gradcheck(third, (q,))


def test_second_derivatives_where_all_is_masked() -> None:
    f, (q, k, v, factor, bias) = _function(FORMS[0])
    masked = bias.detach().index_fill(0, torch.tensor([1, 4]), -torch.inf)

    (first,) = torch.autograd.grad(f(q, k, v, factor, masked).square().sum(), q, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), (q, k, v, factor))

    assert all(g.isfinite().all() for g in second)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_opcheck(form: tuple[int, int | None, int, str], dropout: float, device: str) -> None:
    _, given = _function(form, device)
    edges = GRAPH.edges(device)
    q, k, v = given[:3]
    factor = given[3] if "f" in form[3] else None
    bias = given[-1] if "b" in form[3] else None
    seed = torch.tensor(3, device=device)
    call = (q, k, v, factor, bias, seed)
    options = (edges.array, edges.sizes, 0.5, 0.2, dropout)
    out, lse = torch.ops.lacewing.edge_attention_heads(*call, *options)
    upstream = [torch.randn_like(t).requires_grad_() for t in (out, lse)]
    wanted = [0, 1, 2] + [3] * (factor is not None) + [4] * (bias is not None)

    torch.library.opcheck(torch.ops.lacewing.edge_attention_heads.default, (*call, *options))
    torch.library.opcheck(
        torch.ops.lacewing.edge_attention_heads_backward.default,
        (*call, upstream[0], lse.detach().requires_grad_(), upstream[1], *options, wanted),
    )
    torch.library.opcheck(torch.ops.lacewing.edge_dropout.default, (seed, 6, 5, 0.5, torch.float32))


@pytest.mark.parametrize("form", FORMS[:2], ids=str)
def test_func_transforms(form: tuple[int, int | None, int, str]) -> None:
    f, inputs = _function(form)
    detached = tuple(x.detach() for x in inputs)
    every = tuple(range(len(detached)))

    reverse = torch.func.jacrev(f, argnums=every)(*detached)
    forward = torch.func.jacfwd(f, argnums=every)(*detached)

    for r, fw in zip(reverse, forward, strict=True):
        torch.testing.assert_close(r, fw)
    energy = lambda x: f(x, *detached[1:]).pow(2).sum()
    hessian = torch.func.hessian(energy)(detached[0])
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(energy, detached[0]))


@pytest.mark.parametrize("dropout", [0, 0.3])
@pytest.mark.parametrize("mapped", [(0, None, None, None, 1), (1, 0, -1, 0, 0), (None, None, 2, None, None)])
def test_vmap(mapped: tuple[int | None, ...], dropout: float) -> None:
    f, inputs = _function(FORMS[0], dropout=dropout)
    stacks = [
        x.detach() if dim is None else torch.stack([x.detach() * k for k in (1.0, -2.0, 0.5)], dim)
        for x, dim in zip(inputs, mapped, strict=True)
    ]

    result = torch.vmap(f, in_dims=mapped)(*stacks)

    for n in range(3):
        one = f(*(x if dim is None else x.select(dim, n) for x, dim in zip(stacks, mapped, strict=True)))
        torch.testing.assert_close(result[n], one)


def test_vmap_of_gradients() -> None:
    f, inputs = _function(FORMS[0])
    q, *rest = (t.detach() for t in inputs)
    qs = torch.stack([q, 2 * q, -q])
    gradient = torch.func.grad(lambda q, v: f(q, rest[0], v, *rest[2:]).pow(3).sum(), argnums=(0, 1))

    mapped = torch.vmap(gradient, in_dims=(0, None))(qs, rest[1])

    for n in range(3):
        for part, one in zip(mapped, gradient(qs[n], rest[1]), strict=True):
            torch.testing.assert_close(part[n], one)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    torch._dynamo.reset()
    f, inputs = _function(FORMS[1], dtype=torch.float32, dropout=0.2)
    compiled = torch.compile(lambda *given: f(*given).tanh(), backend=backend, fullgraph=True)

    got = torch.autograd.grad(compiled(*inputs).sum(), inputs)

    right = torch.autograd.grad(f(*inputs).tanh().sum(), inputs)
    for ours, expected in zip(got, right, strict=True):
        torch.testing.assert_close(ours, expected)


def test_compile_needs_two_graphs_for_twelve_graphs() -> None:
    torch._dynamo.reset()
    graphs = 0

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return module.forward

    @torch.compile(backend=backend, fullgraph=True)
    def f(edges: lacewing.Edges, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return lacewing.edge_attention(edges, q, k, v).sin()

    for count in range(20, 44, 2):
        graph = Graph.random(count, count)
        graph.rows += count
        graph.columns += 2 * count
        inputs = Inputs.random(graph, 2, 3, 4, "")
        got = torch.autograd.grad(f(graph.edges(), *inputs.tensors()).sum(), inputs.tensors())
        right = torch.autograd.grad(inputs.attention(graph.edges()).sin().sum(), inputs.tensors())
        for ours, expected in zip(got, right, strict=True):
            torch.testing.assert_close(ours, expected)
    assert graphs <= 2


def test_export() -> None:
    _, inputs = _function(FORMS[0])
    q, k, v = (x.detach() for x in inputs[:3])

    class Layer(torch.nn.Module):
        def forward(self, edges: lacewing.Edges, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return lacewing.edge_attention(edges, q, k, v) * 2

    edges = GRAPH.edges()

    program = torch.export.export(Layer(), (edges, q, k, v))

    torch.testing.assert_close(program.module()(edges, q, k, v), 2 * lacewing.edge_attention(edges, q, k, v))


def test_autocast() -> None:
    f, inputs = _function(FORMS[0], dtype=torch.float32)

    with torch.autocast("cpu", torch.bfloat16):
        z = f(*inputs)
    gradients = torch.autograd.grad(z.float().sum(), inputs)

    assert z.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 for g in gradients)
    torch.testing.assert_close(z.float(), f(*inputs), atol=0.05, rtol=0.05)


def test_dtypes_are_promoted() -> None:
    f, (q, k, v, factor, bias) = _function(FORMS[0], dtype=torch.float32)

    z = f(q.half(), k, v.double(), factor, bias)

    assert z.dtype == torch.float64
    torch.testing.assert_close(z.float(), f(q.half().float(), k, v, factor, bias))
