"""What the fused step of an executor saves beside the engine's product and the cell's kernel, at the sizes of E1, E2.

PYTHONPATH=python python -m benchmarks.fused_step
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lacewing import etp, ops

ROUNDS = 5
ALPHA = 0.98
# membrane, adaptation, filter, threshold, beta, gain, width, and the four of gated cells
NUMBERS = [0.95, 0.995, 0.95, 1.0, 0.1, 0.3, 1.0, 1.0, 1.0, 0.0, 1.0]


@dataclass(frozen=True)
class Problem:
    """A layer of adaptive LIF neurons; `recurrent` is the degree of its recurrent weights, 0 where it has none."""

    name: str
    inputs: int
    neurons: int
    degree: int
    batch: int
    recurrent: int
    steps: int


PROBLEMS = [Problem("E1", 512, 4096, 64, 16, 0, 100), Problem("E2", 64, 131072, 1, 32, 8, 10)]


def milliseconds(step: Callable[[], object], steps: int) -> float:
    """Of one step."""
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps * 1e3


def compare(problem: Problem) -> tuple[float, float]:
    """Milliseconds of a pp-prop step without a loss, fused and composed, taken in turns."""
    torch.manual_seed(0)
    filtered = problem.recurrent > 0
    pattern = etp.fixed_degree(problem.inputs, problem.neurons, problem.degree, seed=0)
    weight, x = torch.randn(pattern.nse) * 0.3, (torch.rand(problem.batch, problem.inputs) < 0.1).float()
    parts = [(pattern, weight, x)]
    if problem.recurrent:
        again = etp.fixed_degree(problem.neurons, problem.neurons, problem.recurrent, seed=1)
        spikes = (torch.rand(problem.batch, problem.neurons) < 0.05).float()
        parts.append((again, torch.randn(again.nse) * 0.1, spikes))
    connections = [etp.Connection(places, values.clone()) for places, values, _ in parts]
    executor = etp.Executor(
        etp.alif(filter_tau=20.0 if filtered else None), *connections, algorithm="pp-prop", alpha=ALPHA
    )
    state = torch.zeros(problem.neurons, 3 if filtered else 2, problem.batch)
    outputs, factors = torch.zeros_like(state), [torch.zeros_like(seen.t().contiguous()) for *_, seen in parts]

    def composed() -> Tensor:
        y = parts[0][0].matmul(x, weight)
        for places, values, seen in parts[1:]:
            y = y + places.matmul(seen, values)
        for factor, (*_, seen) in zip(factors, parts, strict=True):
            torch.add(seen.t(), factor, alpha=ALPHA, out=factor)
        flags = [2, 0, 0, 1, int(filtered)]
        after: Tensor = ops.etp_cell_factor_(y.t().contiguous(), state, None, flags, NUMBERS, outputs, ALPHA)
        return after

    forms = (lambda: executor.step(x), composed)
    rounds = [[milliseconds(form, problem.steps) for form in forms] for _ in range(ROUNDS + 1)][1:]
    return statistics.median(r[0] for r in rounds), statistics.median(r[1] for r in rounds)


if __name__ == "__main__":
    with torch.no_grad():
        for each in PROBLEMS:
            fused, split = compare(each)
            print(f"{each.name}: fused {fused:.3f} ms, composed {split:.3f} ms, {split / fused:.2f}x")
