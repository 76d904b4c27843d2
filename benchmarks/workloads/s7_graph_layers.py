"""S7: layers of graph networks: attention over edges (GAT, dot products) and a normalised sum over neighbours (GCN)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import OURS, Case, Context, Row, run_case
from benchmarks.limits import Work
from benchmarks.peers import pyg_layers, torch_attention
from benchmarks.peers.pyg_layers import PYG, PYG_CSR
from benchmarks.peers.torch_attention import TORCH
from benchmarks.products import BACKWARD, FORWARD
from benchmarks.registry import Outcome, workload
from benchmarks.sparse_patterns import TORCH_CSR

INPUTS, HEADS, CHANNELS = 128, 8, 16
WIDTH = HEADS * CHANNELS
LARGEST_FOR_TORCH = 4_000_000
"""Edges; beyond them the composition's edges x heads x channels numbers are left to PyG, which holds them too."""


@dataclass
class Graph:
    """Edges in the forms that contenders take them in: made before the timing."""

    name: str
    source: Tensor
    destination: Tensor
    nodes: int

    @property
    def count(self) -> int:
        return self.source.shape[0]


@dataclass
class Operands:
    """What a layer is given; leaves where gradients are wanted, in this order."""

    leaves: tuple[Tensor, ...]
    upstream: Tensor


@workload("S7", "attention over edges and sums over neighbours")
def run(context: Context) -> Outcome:
    """GAT 128 -> 8 x 16, attention by dot products 8 x 16, GCN 128 -> 128; forward and forward+backward."""
    outcome = Outcome()
    if not pyg_layers.installed():
        outcome.skipped.append(f"{PYG} (torch_geometric is not installed)")
    for nodes, edges in _sizes(context):
        graph = _graph(nodes, edges, context.device)
        for make in (_gat_case, _dot_case, _gcn_case):
            for mode in (FORWARD, BACKWARD):
                outcome.rows.append(run_case(make(graph, mode == BACKWARD, context.device), context))
    outcome.summary = _summary(outcome.rows)
    outcome.notes += [
        "fp32; uniform random edges sorted by destination; names are layer, nodes / edges",
        "every contender's structure is made before the timing; no self loops, no bias; projections are timed too",
        f"'{TORCH}' runs up to {LARGEST_FOR_TORCH} edges",
    ]
    return outcome


def _sizes(context: Context) -> list[tuple[int, int]]:
    """Nodes and edges."""
    if context.quick:
        return [(300, 2000)]
    whole = [(169_343, 1_170_000), (232_965, 20_000_000)]
    return whole if context.device.type == "cuda" else [(nodes // 10, edges // 10) for nodes, edges in whole]


def _graph(nodes: int, edges: int, device: torch.device) -> Graph:
    destination, source = patterns.uniform(nodes, edges, 0, device)
    destination, order = destination.sort(stable=True)
    return Graph(f"{nodes}/{edges}", source[order], destination, nodes)


def _maker(
    shapes: tuple[tuple[int, ...], ...], out: tuple[int, ...], backward: bool, device: torch.device
) -> Callable[[int], Operands]:
    """Random leaves of these shapes, those behind the first scaled down as weights are."""

    def make(seed: int) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)
        draw = lambda shape: torch.randn(shape, generator=generator, device=device)
        leaves = tuple((draw(shape) / (shape[0] ** 0.5 if n else 1)) for n, shape in enumerate(shapes))
        return Operands(tuple(leaf.requires_grad_(backward) for leaf in leaves), draw(out))

    return make


def _case(
    name: str,
    graph: Graph,
    layers: dict[str, Callable[..., Tensor]],
    make: Callable[[int], Operands],
    oracle: Callable[[Operands], tuple[Tensor, ...]],
    backward: bool,
    work: Work,
) -> Case:
    """Layers of the leaves, with gradients where they are wanted."""

    def contender(layer: Callable[..., Tensor]) -> Callable[[Operands], tuple[Tensor, ...]]:
        def call(o: Operands) -> tuple[Tensor, ...]:
            z = layer(*o.leaves).reshape(o.upstream.shape)
            return (z, *torch.autograd.grad(z, o.leaves, o.upstream)) if backward else (z,)

        return call

    count = 1 + len(make(0).leaves) * backward
    return Case(
        name=f"{name} {graph.name}",
        mode=BACKWARD if backward else FORWARD,
        contenders={contender_name: contender(layer) for contender_name, layer in layers.items()},
        make_inputs=make,
        oracle=oracle,
        tolerances=[3e-4] * count,
        work=work,
    )


def _work(graph: Graph, backward: bool, inputs: int = INPUTS) -> Work:
    """Structure once, rows of the operands and the result once, the projection's multiply-adds and those of edges."""
    forward = Work(
        4 * graph.count + 4 * graph.nodes * (inputs + 2 * WIDTH),
        2 * graph.nodes * inputs * WIDTH + 2 * graph.count * WIDTH,
    )
    return forward if not backward else Work(3 * forward.bytes, 3 * forward.flops)


def _edges(graph: Graph, device: torch.device) -> Any:
    import lacewing

    return lacewing.Edges(
        maps=(graph.source.cpu(),), out=graph.destination.cpu(), batch=(graph.nodes,), out_batch=graph.nodes
    ).to(device)


def _projected(x: Tensor, weight: Tensor, of_source: Tensor, of_destination: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of GAT."""
    v = (x @ weight).view(-1, HEADS, CHANNELS)
    return (v * of_destination).sum(-1), (v * of_source).sum(-1), v


def _gat_case(graph: Graph, backward: bool, device: torch.device) -> Case:
    import lacewing

    edges = _edges(graph, device)
    pairs = torch.stack([graph.source, graph.destination])
    layers: dict[str, Callable[..., Tensor]] = {
        OURS: lambda *leaves: lacewing.edge_attention(edges, *_projected(*leaves)),
    }
    if pyg_layers.installed():
        layers[PYG] = lambda x, weight, s, d: pyg_layers.gat(weight, s, d)(x, pairs)
    if graph.count <= LARGEST_FOR_TORCH:
        layers[TORCH] = lambda *leaves: torch_attention.attention(graph.source, graph.destination, *_projected(*leaves))

    def oracle(o: Operands) -> tuple[Tensor, ...]:
        leaves = [leaf.detach().double().requires_grad_() for leaf in o.leaves]
        operands = _projected(*leaves)
        upstream = o.upstream.double() if backward else None
        z, *gradients = torch_attention.exact(
            graph.source, graph.destination, *(t.detach() for t in operands), upstream
        )
        return (z, *torch.autograd.grad(operands, leaves, gradients)) if backward else (z,)

    make = _maker(
        ((graph.nodes, INPUTS), (INPUTS, WIDTH), (HEADS, CHANNELS), (HEADS, CHANNELS)),
        (graph.nodes, HEADS, CHANNELS),
        backward,
        device,
    )
    return _case("GAT", graph, layers, make, oracle, backward, _work(graph, backward))


def _dot_case(graph: Graph, backward: bool, device: torch.device) -> Case:
    import lacewing

    edges = _edges(graph, device)
    layers: dict[str, Callable[..., Tensor]] = {OURS: lambda *qkv: lacewing.edge_attention(edges, *qkv)}
    if graph.count <= LARGEST_FOR_TORCH:
        layers[TORCH] = lambda *qkv: torch_attention.attention(graph.source, graph.destination, *qkv)

    def oracle(o: Operands) -> tuple[Tensor, ...]:
        upstream = o.upstream.double() if backward else None
        qkv = (leaf.detach().double() for leaf in o.leaves)
        return torch_attention.exact(graph.source, graph.destination, *qkv, upstream)

    shape = (graph.nodes, HEADS, CHANNELS)

    def make(seed: int) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)
        draw = lambda: torch.randn(shape, generator=generator, device=device)
        return Operands(tuple(draw().requires_grad_(backward) for _ in range(3)), draw())

    return _case("dot", graph, layers, make, oracle, backward, _work(graph, backward, inputs=0))


def _gcn_case(graph: Graph, backward: bool, device: torch.device) -> Case:
    import lacewing

    n = graph.nodes
    degree = torch.bincount(graph.destination, minlength=n).clamp_min(1).float()
    values = (degree[graph.destination] * degree[graph.source]).rsqrt()
    pairs = torch.stack([graph.source, graph.destination])
    matrix = lacewing.sparse_coo_tensor(pairs.flip(0), values, (n, n))
    csr = patterns.torch_csr(pairs.flip(0), values, (n, n))
    layers: dict[str, Callable[..., Tensor]] = {
        OURS: lambda x, weight: matrix @ (x @ weight),
        TORCH_CSR: lambda x, weight: csr @ (x @ weight),
    }
    if pyg_layers.installed():
        layers[PYG] = lambda x, weight: pyg_layers.gcn(weight)(x, pairs, values)
        layers[PYG_CSR] = lambda x, weight: pyg_layers.gcn(weight)(x, csr)

    def oracle(o: Operands) -> tuple[Tensor, ...]:
        x, weight = (leaf.detach().double() for leaf in o.leaves)
        h, wide = x @ weight, values.double()
        z, of_h = torch.zeros_like(h), torch.zeros_like(h)
        up = o.upstream.double()
        for s, d, w in zip(*(t.split(torch_attention.PIECE) for t in (*pairs, wide)), strict=True):
            z.index_add_(0, d, w.unsqueeze(1) * h[s])
            of_h.index_add_(0, s, w.unsqueeze(1) * up[d])
        return (z, of_h @ weight.T, x.T @ of_h) if backward else (z,)

    make = _maker(((n, INPUTS), (INPUTS, WIDTH)), (n, WIDTH), backward, device)
    return _case("GCN", graph, layers, make, oracle, backward, _work(graph, backward))


def _summary(rows: list[Row]) -> dict[str, float]:
    """Least ratios to each layer's peers, and how much less memory than PyG's GAT."""
    summary: dict[str, float] = {}
    for layer in ("GAT", "dot", "GCN"):
        for mode in (FORWARD, BACKWARD):
            mine = [row for row in rows if row.name.startswith(layer) and row.mode == mode]
            for peer in sorted({peer for row in mine for peer in row.peers}):
                with_peer = [row for row in mine if peer in row.timings]
                summary[f"{layer} {mode}: least ratio to {peer}"] = min(row.ratio(peer) for row in with_peer)
                if layer == "GAT":
                    saved = [row.peaks[peer] / max(row.peaks[OURS], 1) for row in with_peer]
                    summary[f"{layer} {mode}: least ratio of memory to {peer}"] = min(saved)
    return summary
