"""Attention over edges as torch composes it: gather, softmax by scatter, index_add; and an oracle in pieces."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TORCH = "torch: gather + scatter"
SLOPE = 0.2
PIECE = 1 << 18
"""Edges that the oracle looks at at a time."""


def logits(source: Tensor, destination: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """(edges, heads): scaled dots, or leaky ReLU of sums where q and k have no channels."""
    if q.dim() == 3:
        return (q[destination] * k[source]).sum(-1) / math.sqrt(q.shape[-1])
    return torch.nn.functional.leaky_relu(q[destination] + k[source], SLOPE)


def softmax(logit: Tensor, destination: Tensor, rows: int) -> Tensor:
    """By rows; what is subtracted has no gradient."""
    index = destination.unsqueeze(1).expand_as(logit)
    largest = logit.new_full((rows, logit.shape[1]), -math.inf)
    largest = largest.scatter_reduce(0, index, logit.detach(), "amax")
    weight = (logit - largest[destination]).exp()
    total = torch.zeros_like(largest).index_add(0, destination, weight)
    return weight / total[destination]


def attention(source: Tensor, destination: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(rows, heads, channels)."""
    weight = softmax(logits(source, destination, q, k), destination, q.shape[0])
    return torch.zeros_like(v[:1].expand(q.shape[0], -1, -1)).index_add(
        0, destination, weight.unsqueeze(-1) * v[source]
    )


def exact(
    source: Tensor, destination: Tensor, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor | None
) -> tuple[Tensor, ...]:
    """The value, and with an upstream gradient those of q, k and v, in the operands' dtype."""
    rows, dot = q.shape[0], q.dim() == 3
    pieces = list(zip(source.split(PIECE), destination.split(PIECE), strict=True))
    logit = torch.cat([logits(s, d, q, k) for s, d in pieces])
    weights = softmax(logit, destination, rows).split(PIECE)
    z = v.new_zeros(rows, *v.shape[1:])
    for (s, d), w in zip(pieces, weights, strict=True):
        z.index_add_(0, d, w.unsqueeze(-1) * v[s])
    if upstream is None:
        return (z,)
    of_q, of_k, of_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = (upstream * z).sum(-1)
    for (s, d), w in zip(pieces, weights, strict=True):
        up = upstream[d]
        of_v.index_add_(0, s, w.unsqueeze(-1) * up)
        of_logit = w * ((up * v[s]).sum(-1) - delta[d])
        if dot:
            scaled = (of_logit / math.sqrt(q.shape[-1])).unsqueeze(-1)
            of_q.index_add_(0, d, scaled * k[s])
            of_k.index_add_(0, s, scaled * q[d])
        else:
            of_pair = torch.where(q[d] + k[s] > 0, of_logit, SLOPE * of_logit)
            of_q.index_add_(0, d, of_pair)
            of_k.index_add_(0, s, of_pair)
    return z, of_q, of_k, of_v
