"""Back-propagation through time in plain torch, over sparse weights in the usual forms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

MASKED, CSR, GATHER = "torch BPTT masked dense", "torch BPTT CSR", "torch BPTT gather"
SAMPLED = "torch BPTT CSR sampled"


class TriangleSpike(torch.autograd.Function):
    """[x > 0], with gain * max(0, 1 - |x|) for its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gain = gain
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * (ctx.gain * torch.relu(1 - x.abs())), None


@dataclass(frozen=True)
class Alif:
    """The constants of an adaptive LIF neuron with subtracted reset; the same as lacewing.etp.alif's defaults."""

    tau: float = 20.0
    adaptation_tau: float = 200.0
    beta: float = 0.1
    threshold: float = 1.0
    gain: float = 0.3
    filter_tau: float | None = None
    reset_gradient: bool = False

    def spike(self, v: Tensor, a: Tensor) -> Tensor:
        return TriangleSpike.apply(v - self.threshold - self.beta * a, self.gain)

    def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """The next state and its spikes; the state holds its own spikes last."""
        v, a, *rest, z = state
        v = math.exp(-1 / self.tau) * v + y - self.threshold * (z if self.reset_gradient else z.detach())
        a = math.exp(-1 / self.adaptation_tau) * a + z
        z = self.spike(v, a)
        if self.filter_tau is not None:
            keep = math.exp(-1 / self.filter_tau)
            rest = [keep * rest[0] + (1 - keep) * z]
        return (v, a, *rest, z), z

    def start(self, like: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(like) for _ in range(3 if self.filter_tau is None else 4))


@dataclass(frozen=True)
class Entries:
    """The places (row, col) of a sparse matrix (I, O), sorted by column."""

    row: Tensor
    col: Tensor
    shape: tuple[int, int]

    @cached_property
    def order(self) -> Tensor:
        """The entries sorted by row."""
        return torch.argsort(self.row, stable=True)

    @cached_property
    def pointers(self) -> tuple[Tensor, Tensor]:
        """Where the entries of each column begin, and of each row."""
        counts = (torch.bincount(i, minlength=n) for i, n in ((self.col, self.shape[1]), (self.row, self.shape[0])))
        by_column, by_row = (torch.cat([c.new_zeros(1), c.cumsum(0)]) for c in counts)
        return by_column, by_row

    def by_column(self, values: Tensor) -> Tensor:
        """W^T, (O, I), as torch's CSR."""
        return _csr(self.pointers[0], self.row, values, self.shape[::-1])

    def by_row(self, values: Tensor) -> Tensor:
        """W, (I, O), as torch's CSR."""
        return _csr(self.pointers[1], self.col[self.order], values[self.order], self.shape)


def _csr(pointer: Tensor, index: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(pointer, index, values, shape, check_invariants=False)


class CsrMatmul(torch.autograd.Function):
    """x @ W by torch's CSR products; torch's own gradient of a CSR matrix is dense, so this one is sampled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, entries: Entries) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.entries = entries
        return (entries.by_column(values) @ x.t()).t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, values = ctx.saved_tensors
        pattern = ctx.entries.by_column(torch.zeros_like(values))
        sampled = torch.sparse.sampled_addmm(pattern, g.t().contiguous(), x.contiguous(), beta=0.0)
        dx = (ctx.entries.by_row(values) @ g.t()).t() if ctx.needs_input_grad[0] else None
        return dx, sampled.values(), None


def product(form: str, entries: Entries, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]:
    """x (B, I) -> y (B, O), and a function that gives the gradient of the weight after the backward pass."""
    leaf = weight.detach().requires_grad_()
    if form == SAMPLED:
        return lambda x: CsrMatmul.apply(x, leaf, entries), lambda: leaf.grad
    if form == CSR:
        matrix = entries.by_column(weight.detach()).requires_grad_()
        return lambda x: (matrix @ x.t()).t(), lambda: matrix.grad.t()[entries.row, entries.col]
    if form == MASKED:
        dense = torch.zeros(entries.shape, dtype=weight.dtype, device=weight.device)
        dense = dense.index_put((entries.row, entries.col), leaf)
        return lambda x: x @ dense, lambda: leaf.grad

    def gathered(x: Tensor) -> Tensor:
        out = torch.zeros(x.shape[0], entries.shape[1], dtype=x.dtype, device=x.device)
        return out.index_add(1, entries.col, x.index_select(1, entries.row) * leaf)

    return gathered, lambda: leaf.grad
