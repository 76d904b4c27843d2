"""Networks, cells and back-propagation through time for the eligibility-trace tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lacewing import etp

Loss = Callable[[int, Tensor], Tensor]

# The trace is kept whole for the first, and shares its first state for the second.
ALIFS = ("alif", "alif, detached")


def two_states() -> etp.Cell:
    """Non-linear, position-wise, two states that drive each other."""

    def step(y: Tensor, h: Tensor) -> Tensor:
        a, b = h.unbind(-1)
        fresh = torch.tanh(0.8 * a + y - 0.3 * b)
        return torch.stack([fresh, 0.9 * b + 0.5 * fresh * a], -1)

    return etp.FunctionCell(2, step)


CELLS: dict[str, Callable[[], etp.Cell]] = {
    "leaky": etp.leaky,
    "two states": two_states,
    "lif": lambda: etp.lif(threshold=0.4, reset_gradient=True),
    "alif": lambda: etp.alif(beta=0.3, threshold=0.4, filter_tau=5.0, reset_gradient=True),
    "alif, detached": lambda: etp.alif(beta=0.3, threshold=0.4, filter_tau=5.0, reset_gradient=False),
    "gated": etp.gated,
}


@dataclass
class Network:
    """A layer with sparse input weights, and recurrent ones where asked."""

    pattern: etp.SparsePattern
    weight: Tensor
    bias: Tensor | None
    recurrent: etp.SparsePattern | None = None
    recurrent_weight: Tensor | None = None

    @staticmethod
    def random(device: str, bias: bool = True, recurrent: bool = False, inputs: int = 5, neurons: int = 7) -> Network:
        generator = torch.Generator().manual_seed(3)

        def draw(*shape: int) -> Tensor:
            return (torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.6).to(device)

        pattern = etp.fixed_degree(inputs, neurons, 3, seed=1).to(device)
        ring = etp.small_world(neurons, 4, 0.3, seed=2).to(device) if recurrent else None
        return Network(
            pattern, draw(pattern.nse), draw(neurons) if bias else None, ring, draw(ring.nse) if ring else None
        )

    def executor(self, cell: etp.Cell, **options: object) -> etp.Executor:
        copies = [None if t is None else t.clone() for t in (self.weight, self.bias, self.recurrent_weight)]
        again = etp.Connection(self.recurrent, copies[2]) if self.recurrent is not None else None
        return etp.Executor(cell, etp.Connection(self.pattern, copies[0], copies[1]), again, **options)

    def bptt(self, cell: etp.Cell, xs: Tensor, loss: Loss) -> list[Tensor]:
        """The gradients of the dense network by torch's own autograd, in the order of Executor.parameters()."""
        leaves = [t.clone().requires_grad_() for t in (self.weight, self.bias, self.recurrent_weight) if t is not None]
        rest = iter(leaves)
        dense = self.pattern.with_data(next(rest)).to_dense()
        bias = 0 if self.bias is None else next(rest)
        again = None if self.recurrent is None else self.recurrent.with_data(next(rest)).to_dense()
        h = torch.zeros(xs.shape[1], self.pattern.shape[1], cell.states, dtype=xs.dtype, device=xs.device)
        total = torch.zeros((), dtype=xs.dtype, device=xs.device)
        for t, x in enumerate(xs):
            y = x @ dense + bias
            if again is not None:
                y = y + cell.output(h) @ again
            h = cell.forward(y, h)
            total = total + loss(t, h)
        return list(torch.autograd.grad(total, leaves))


def sequence(device: str, steps: int, batch: int = 3, inputs: int = 5, neurons: int = 7) -> tuple[Tensor, Loss]:
    """Inputs (T, B, I) and a loss that weighs all states, with another target in each step."""
    generator = torch.Generator().manual_seed(4)
    xs = torch.randn(steps, batch, inputs, generator=generator, dtype=torch.float64).to(device)
    targets = torch.randn(steps, batch, neurons, 1, generator=generator, dtype=torch.float64).to(device)
    return xs, lambda t, h: ((h - targets[t]) ** 2).sum()


def run(executor: etp.Executor, xs: Tensor, loss: Loss, window: int | None = None) -> list[Tensor]:
    """The gradients of the executor over a sequence, step by step or in windows."""
    if window is None:
        for t, x in enumerate(xs):
            executor.backward(loss(t, executor.step(x)))
    else:
        for start in range(0, len(xs), window):
            h = executor.window(xs[start : start + window])
            executor.backward(
                sum((loss(start + i, each) for i, each in enumerate(h)), torch.zeros((), device=h.device))
            )
    return [p.grad for p in executor.parameters()]


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference relative to the largest entry."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True))
