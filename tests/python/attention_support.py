"""An oracle of attention over edges: row after row, by torch's own softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import lacewing

ROWS, COLUMNS = 23, 17


@dataclass
class Graph:
    """Edges from columns to rows: in any order, some twice, rows without one and one with many."""

    source: Tensor
    destination: Tensor
    rows: int = ROWS
    columns: int = COLUMNS

    @staticmethod
    def random(edges: int, seed: int, long_row: int = 0, in_order: bool = False) -> Graph:
        generator = torch.Generator().manual_seed(seed)
        destination = torch.randint(ROWS, (edges,), generator=generator)
        destination[destination == 5] = 6
        destination[:long_row] = 3
        source = torch.randint(COLUMNS, (edges,), generator=generator)
        source[source == 2] = 1
        if in_order:
            destination = destination.sort().values
        return Graph(source, destination)

    def edges(self, device: str = "cpu") -> lacewing.Edges:
        built: lacewing.Edges = lacewing.Edges(
            maps=(self.source,), out=self.destination, batch=(self.columns,), out_batch=self.rows
        ).to(device)
        return built

    @property
    def count(self) -> int:
        return self.source.shape[0]


@dataclass
class Inputs:
    """What attention takes, by its own names."""

    q: Tensor
    k: Tensor
    v: Tensor
    factor: Tensor | None = None
    bias: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def random(
        graph: Graph,
        heads: int,
        pair_channels: int | None,
        channels: int,
        numbers: str = "fb",
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        generation: int = 0,
        **options: Any,
    ) -> Inputs:
        generator = torch.Generator().manual_seed(generation)
        draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        last = () if pair_channels is None else (pair_channels,)
        return Inputs(
            draw(graph.rows, heads, *last).requires_grad_(),
            draw(graph.columns, heads, *last).requires_grad_(),
            draw(graph.columns, heads, channels).requires_grad_(),
            (draw(graph.count, heads).abs() + 0.5).detach().requires_grad_() if "f" in numbers else None,
            draw(graph.count, heads).requires_grad_() if "b" in numbers else None,
            options,
        )

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.q, self.k, self.v, self.factor, self.bias) if t is not None]

    def attention(self, edges: lacewing.Edges, *given: Tensor) -> Tensor:
        """Of other tensors in the place of those that are there."""
        rest = iter(given or self.tensors())
        q, k, v = next(rest), next(rest), next(rest)
        factor = None if self.factor is None else next(rest)
        bias = None if self.bias is None else next(rest)
        result: Tensor = lacewing.edge_attention(edges, q, k, v, factor=factor, bias=bias, **self.options)
        return result


def oracle(graph: Graph, inputs: Inputs, keep: Tensor | None = None) -> Tensor:
    """In fp64; `keep` (edges, heads) multiplies the weights."""
    wide = lambda t: None if t is None else t.cpu().double()
    q, k, v, factor, bias = (wide(t) for t in (inputs.q, inputs.k, inputs.v, inputs.factor, inputs.bias))
    source, destination = graph.source, graph.destination
    dot = q.dim() == 3
    if dot:
        scale = inputs.options.get("scale", 1 / math.sqrt(max(q.shape[-1], 1)))
        logit = scale * (q[destination] * k[source]).sum(-1)
    else:
        logit = q[destination] + k[source]
    logit = logit if factor is None else factor * logit
    logit = logit if bias is None else logit + bias
    logit = torch.nn.functional.leaky_relu(logit, inputs.options.get("negative_slope", 1.0 if dot else 0.2))
    rows = []
    for i in range(graph.rows):
        mine = destination == i
        weight = torch.softmax(logit[mine], 0)
        weight = weight if keep is None else weight * keep[mine]
        rows.append((weight.unsqueeze(-1) * v[source[mine]]).sum(0))
    return torch.stack(rows)


def kept(edges: int, heads: int, dropout: float, seed: int) -> Tensor:
    """What dropout makes of each weight, by Philox-4x32-10 in Python's integers."""
    low = (1 << 32) - 1
    keep = torch.zeros(edges, heads, dtype=torch.float64)
    for e in range(edges):
        for h in range(heads):
            k0, k1 = seed & low, seed >> 32
            c = [e & low, e >> 32, h // 4, 0]
            for _ in range(10):
                a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
                c = [(b >> 32) ^ c[1] ^ k0, b & low, (a >> 32) ^ c[3] ^ k1, a & low]
                k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
            keep[e, h] = 0 if c[h % 4] < dropout * 2**32 else 1 / (1 - dropout)
    return keep
