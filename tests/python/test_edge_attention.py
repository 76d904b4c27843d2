"""Attention over edges: values, gradients, dropout, bits and bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lacewing
from attention_support import Graph, Inputs, kept, oracle

GRAPHS = {
    "few": Graph.random(60, 1),
    "in order": Graph.random(150, 2, in_order=True),
    "long row": Graph.random(900, 3, long_row=700),
    "none": Graph.random(0, 4),
}
SHAPES = [(1, 1, 1), (8, 16, 16), (3, 5, 7), (2, 64, 33), (4, None, 20), (8, None, 16), (5, None, 1), (1, 3, 64)]


def _check(graph: Graph, inputs: Inputs, device: str, tolerance: float, keep: Tensor | None = None) -> None:
    edges = graph.edges(device)

    z = inputs.attention(edges)
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    gradients = torch.autograd.grad(z, inputs.tensors(), upstream.to(device, z.dtype))

    exact = oracle(graph, inputs, keep)
    expected = torch.autograd.grad(exact, inputs.tensors(), upstream.to(z.dtype).double())
    for ours, right in zip((z, *gradients), (exact, *expected), strict=True):
        assert ours.dtype == inputs.q.dtype
        exact_part = right.detach()
        error = (ours.detach().cpu().double() - exact_part.cpu().double()).abs()
        largest = float(exact_part.abs().max()) if right.numel() else 1.0
        assert (error <= tolerance * max(1.0, largest)).all()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("numbers", ["", "fb"])
def test_value_and_gradients(name: str, shape: tuple[int, int | None, int], numbers: str, device: str) -> None:
    heads, pair_channels, channels = shape
    inputs = Inputs.random(GRAPHS[name], heads, pair_channels, channels, numbers, device=device)

    _check(GRAPHS[name], inputs, device, 1e-12)


@pytest.mark.parametrize("options", [{"scale": -0.7}, {"negative_slope": 0.01}, {"scale": 2.0, "negative_slope": 3.0}])
def test_options(options: dict[str, float], device: str) -> None:
    graph = GRAPHS["long row"]

    _check(graph, Inputs.random(graph, 3, 4, 6, "f", device=device, **options), device, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(8, 16, 16), (3, None, 7)], ids=str)
def test_dtypes_sum_in_the_wide_one(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, int | None, int], device: str
) -> None:
    graph = GRAPHS["long row"]

    _check(graph, Inputs.random(graph, *shape, "b", dtype=dtype, device=device), device, tolerance)


def test_wide_rows_of_many_heads(device: str) -> None:
    """More heads and channels than any kernel takes at a time."""
    graph = GRAPHS["long row"]

    _check(graph, Inputs.random(graph, 19, 3, 5, device=device), device, 1e-12)
    _check(graph, Inputs.random(graph, 2, 700, 1100, "", dtype=torch.float32, device=device), device, 1e-5)
    _check(graph, Inputs.random(graph, 2, 301, 403, "", dtype=torch.float32, device=device), device, 1e-5)


def test_some_gradients_alone(device: str) -> None:
    graph = GRAPHS["long row"]
    edges = graph.edges(device)
    inputs = Inputs.random(graph, 4, 5, 6, device=device)
    all_of_them = torch.autograd.grad(inputs.attention(edges).square().sum(), inputs.tensors())

    for k, (tensor, expected) in enumerate(zip(inputs.tensors(), all_of_them, strict=True)):
        alone = [t.detach().requires_grad_(j == k) for j, t in enumerate(inputs.tensors())]
        (gradient,) = torch.autograd.grad(inputs.attention(edges, *alone).square().sum(), alone[k])
        assert torch.equal(gradient, expected), tensor.shape


def test_batches_are_more_heads(device: str) -> None:
    graph = GRAPHS["few"]
    edges = graph.edges(device)
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
    q, k, v = draw(2, 3, graph.rows, 4, 5), draw(2, 3, graph.columns, 4, 5), draw(2, 3, graph.columns, 4, 6)

    for bias in (draw(graph.count), draw(graph.count, 4), draw(3, graph.count, 1), draw(2, 3, graph.count, 4)):
        z = lacewing.edge_attention(edges, q, k, v, bias=bias)

        whole = (bias.unsqueeze(1) if bias.dim() == 1 else bias).expand(2, 3, graph.count, 4)
        assert z.shape == (2, 3, graph.rows, 4, 6)
        for i in range(2):
            for j in range(3):
                one = lacewing.edge_attention(edges, q[i, j], k[i, j], v[i, j], bias=whole[i, j])
                assert torch.equal(z[i, j], one)


def test_entries_of_a_sparse_tensor_are_edges(device: str) -> None:
    """In every format: a row of S @ V with the softmax of its values."""
    dense = torch.rand(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dense = dense.masked_fill(dense < 0.4, 0).index_fill(0, torch.tensor(2), 0).to(device)
    v = torch.rand(5, 1, 3, dtype=torch.float64, device=device)
    zeros = torch.zeros(6, 1, dtype=torch.float64, device=device), torch.zeros(5, 1, dtype=torch.float64, device=device)
    coo = lacewing.to_sparse(dense)

    for sparse in (coo, coo.to_gcs(row_dims=(0,)), coo.to_gcs(row_dims=(0,), compressed="columns")):
        z = lacewing.edge_attention(lacewing.edges_of(sparse), *zeros, v, bias=sparse.values())

        weight = dense.masked_fill(dense == 0, -torch.inf).softmax(1).nan_to_num()
        torch.testing.assert_close(z[:, 0], weight @ v[:, 0])
    with pytest.raises(TypeError, match=r"sparse must be a sparse tensor with two sparse dims, .* not of shape"):
        lacewing.edges_of(v)


def test_gradients_of_numbers_that_heads_share(device: str) -> None:
    graph = GRAPHS["few"]
    edges = graph.edges(device)
    inputs = Inputs.random(graph, 4, 3, 2, "", device=device)
    numbers = torch.rand(graph.count, dtype=torch.float64, device=device).add(0.5).requires_grad_()
    apart = numbers.detach().unsqueeze(1).repeat(1, 4).requires_grad_()

    shared = lacewing.edge_attention(edges, inputs.q, inputs.k, inputs.v, factor=numbers)
    (gradient,) = torch.autograd.grad(shared.square().sum(), numbers)

    own = lacewing.edge_attention(edges, inputs.q, inputs.k, inputs.v, factor=apart)
    torch.testing.assert_close(gradient, torch.autograd.grad(own.square().sum(), apart)[0].sum(1))


def test_rows_that_are_masked_give_zeros(device: str) -> None:
    """As rows without edges: values and gradients are 0, and a masked edge among others changes nothing."""
    graph = GRAPHS["long row"]
    edges = graph.edges(device)
    inputs = Inputs.random(graph, 3, 4, 5, "b", device=device)
    mask = (graph.destination == 7) | (torch.arange(graph.count) % 3 == 0)
    assert inputs.bias is not None
    inputs.bias = inputs.bias.detach().masked_fill(mask.to(device).unsqueeze(1), -math.inf).requires_grad_()

    z = inputs.attention(edges)
    gradients = torch.autograd.grad(z.square().sum(), inputs.tensors())

    left = Graph(graph.source[~mask], graph.destination[~mask])
    assert inputs.bias is not None
    fewer = Inputs(inputs.q, inputs.k, inputs.v, None, inputs.bias.detach()[~mask.to(device)].requires_grad_())
    expected = fewer.attention(left.edges(device))
    torch.testing.assert_close(z, expected)
    assert (z[[5, 7]] == 0).all()
    right = torch.autograd.grad(expected.square().sum(), fewer.tensors())
    for ours, other in zip(gradients[:3], right[:3], strict=True):
        torch.testing.assert_close(ours, other)
    assert (gradients[3][mask.to(device)] == 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_stays_in_its_row(value: float, device: str) -> None:
    graph = GRAPHS["few"]
    inputs = Inputs.random(graph, 2, None, 3, "", device=device)
    q = inputs.q.detach().clone()
    q[8, 1] = value

    z = inputs.attention(graph.edges(device), q, inputs.k, inputs.v)

    assert z[8, 1].isnan().all()
    z[8, 1] = 0
    assert z.isfinite().all()


def test_large_logits_do_not_overflow(device: str) -> None:
    graph = GRAPHS["long row"]
    inputs = Inputs.random(graph, 2, None, 3, "", dtype=torch.float32, device=device)
    q, k = (1e4 * t.detach() for t in (inputs.q, inputs.k))

    _check(graph, Inputs(q.requires_grad_(), k.requires_grad_(), inputs.v), device, 1e-3)


def test_bits_do_not_depend_on_threads_or_on_other_rows(device: str) -> None:
    graph = Graph.random(3000, 5, long_row=1500)
    inputs = Inputs.random(graph, 8, 16, 16, "fb", dtype=torch.float32, device=device, dropout=0.3, seed=7)

    def results(edges: lacewing.Edges) -> list[Tensor]:
        z = inputs.attention(edges)
        return [z, *torch.autograd.grad(z.square().sum(), inputs.tensors())]

    threads = torch.get_num_threads()
    try:
        first = results(graph.edges(device))
        torch.set_num_threads(1)
        again = results(graph.edges(device))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)

    # A row alone: the same edges in their order, the others led elsewhere. Dropout goes by the place of an edge.
    plain = Inputs(inputs.q, inputs.k, inputs.v)
    for row in (3, 9):
        mine = graph.destination == row
        alone = Graph(graph.source[mine], torch.zeros(int(mine.sum()), dtype=torch.long), rows=1)
        z = plain.attention(alone.edges(device), inputs.q[row : row + 1], inputs.k, inputs.v)
        assert torch.equal(z[0], plain.attention(graph.edges(device))[row])


@pytest.mark.parametrize("heads", [1, 6])
def test_dropout_has_the_same_mask_forward_and_backward(heads: int, device: str) -> None:
    graph = GRAPHS["long row"]
    inputs = Inputs.random(graph, heads, 3, 4, device=device, dropout=0.4, seed=(5 << 32) + 11)

    _check(graph, inputs, device, 1e-12, kept(graph.count, heads, 0.4, (5 << 32) + 11))


def test_dropout_is_drawn_from_torch_and_has_its_rate(device: str) -> None:
    graph = Graph(torch.arange(17).repeat(3000), torch.zeros(17 * 3000, dtype=torch.long), rows=1)
    edges = graph.edges(device)
    zeros = torch.zeros(1, 2, device=device), torch.zeros(17, 2, device=device)
    ones = torch.ones(17, 2, 1, device=device)
    run = lambda **options: lacewing.edge_attention(edges, *zeros, ones, dropout=0.25, **options)

    torch.manual_seed(3)
    first, second = run(), run()
    torch.manual_seed(3)

    assert torch.equal(run(), first)
    assert not torch.equal(first, second)
    assert torch.equal(run(seed=4), run(seed=torch.tensor(4, device=device)))
    assert (first - 1).abs().max() < 5 * math.sqrt(0.25 / 0.75 / graph.count)
    assert (lacewing.edge_attention(edges, *zeros, ones, dropout=1.0) == 0).all()


def test_rows_of_one_projection_are_read_where_they_lie(device: str) -> None:
    graph = GRAPHS["few"]
    square = Graph(graph.source, graph.destination, columns=graph.rows)
    qkv = torch.randn(graph.rows, 3, 4, 8, dtype=torch.float64, device=device)
    q, k, v = qkv.unbind(1)

    z = lacewing.edge_attention(square.edges(device), q, k, v.transpose(1, 2).contiguous().transpose(1, 2))

    plain = [t.contiguous() for t in (q, k, v)]
    assert torch.equal(z, lacewing.edge_attention(square.edges(device), *plain))


def test_backends_agree(device: str) -> None:
    graph = GRAPHS["long row"]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float16, 1e-2)):
        inputs = Inputs.random(graph, 3, 5, 7, dtype=dtype, device=device, dropout=0.2, seed=1)
        with lacewing.backend("reference"):
            _check(graph, inputs, device, tolerance, kept(graph.count, 3, 0.2, 1))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"q": torch.zeros(22, 4, 5)}, r"q of shape \(22, 4, 5\) has 22 rows, but the edges were built for 23"),
    ({"k": torch.zeros(23, 4, 5)}, r"k of shape \(23, 4, 5\) has 23 rows, but the edges were built for 17"),
    ({"k": torch.zeros(17, 4, 6)}, r"k of shape \(17, 4, 6\) does not fit q of shape \(23, 4, 5\)"),
    ({"k": torch.zeros(17, 4)}, r"k of shape \(17, 4\) does not fit q"),
    ({"q": torch.zeros(23, 3, 5)}, r"q of shape \(23, 3, 5\) does not fit v: it has 4 heads"),
    ({"q": torch.zeros(23)}, r"q must have shape .* not \(23,\)"),
    ({"v": torch.zeros(17, 4)}, r"v must have shape .* not \(17, 4\)"),
    ({"v": torch.zeros(17, 4, 2, dtype=torch.long)}, r"v must have dtype float16.* not int64"),
    ({"q": torch.zeros(23, 4, 5, dtype=torch.complex64)}, r"q must have dtype float16.* not complex64"),
    ({"factor": torch.zeros(59)}, r"factor must have shape \(60,\) .* not \(59,\)"),
    ({"bias": torch.zeros(60, 3)}, r"bias must have shape \(60,\) .* not \(60, 3\)"),
    ({"bias": torch.zeros(2, 60, 4)}, r"bias must have shape .* not \(2, 60, 4\)"),
    ({"scale": math.nan}, r"scale must be a finite number, not nan"),
    ({"negative_slope": 0.0}, r"negative_slope must be positive, not 0"),
    ({"dropout": 1.5}, r"dropout must lie in \[0, 1\], not 1.5"),
    ({"dropout": 0.5, "seed": torch.tensor([1])}, r"seed must be one int64 number"),
    ({"q": torch.zeros(23, 4), "k": torch.zeros(17, 4), "scale": 2.0}, r"scale is that of dot products"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=range(len(BAD)))
def test_bad_input_gets_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    graph = GRAPHS["few"]
    good = {"q": torch.zeros(23, 4, 5), "k": torch.zeros(17, 4, 5), "v": torch.zeros(17, 4, 2)}

    with pytest.raises(RuntimeError, match=rf"\[lacewing.edge_attention(_heads)?\] {sentence}"):
        lacewing.edge_attention(graph.edges(), **(good | changes))


def test_edges_of_another_kind_get_a_sentence() -> None:
    tensors = torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(2, 1, 1)

    with pytest.raises(TypeError, match="edges must be Edges, not list"):
        lacewing.edge_attention([[0, 1], [1, 0]], *tensors)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"edges must be Edges\(maps=\(source,\), out=destination\)"):
        lacewing.edge_attention(lacewing.Edges(maps=([0, 1],)), *tensors)
    with pytest.raises(TypeError, match="k must be a tensor, not list"):
        lacewing.edge_attention(GRAPHS["few"].edges(), tensors[0], [1], tensors[2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed must be an integer"):
        lacewing.edge_attention(GRAPHS["few"].edges(), *tensors, dropout=0.5, seed="x")  # type: ignore[arg-type]
