"""S1: a sparse matrix times a dense one, the value and both gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import OURS, Case, Context, Row, geometric_mean, run_case
from benchmarks.limits import Work
from benchmarks.products import BACKWARD, FORWARD
from benchmarks.registry import Outcome, workload
from benchmarks.sparse_patterns import MATRICES, SCIPY, TORCH_COO, TORCH_CSR

PIECE = 1 << 20
"""Entries that the oracle looks at at a time."""


@dataclass
class Operands:
    """One matrix in every form, over the same values, and what it is multiplied with."""

    ours: Any
    csr: Tensor
    coo: Tensor
    scipy: Any | None
    x: Tensor
    upstream: Tensor


@workload("S1", "SpMM, the value and both gradients")
def run(context: Context) -> Outcome:
    """Four kinds of matrices, four widths, forward and forward+backward with learnable values."""
    sizes = _sizes(context)
    outcome = Outcome()
    scipy = context.device.type == "cpu" and patterns.find("scipy.sparse") is not None
    if not scipy:
        outcome.skipped.append(f"{SCIPY} (not installed, or not for this device)")
    for name, n, entries, widths in sizes:
        indices = patterns.matrix(name, n, entries, device=context.device)
        label = f"{name} {n}/{indices.shape[1]}"
        for mode in (FORWARD, BACKWARD):
            for width in widths:
                outcome.rows.append(run_case(_case(label, indices, n, width, mode, scipy, context), context))
    outcome.summary = _summary(outcome.rows)
    outcome.notes += [
        "fp32; names are kind, n / entries, channels",
        "every contender's structure is made before the timing: ours keeps its plan, CSR is given as CSR",
        f"'{TORCH_CSR}': @ forward, torch.sparse.mm with gradients, whose gradient of the matrix is sparse",
        f"'{SCIPY}' has no gradients; those of '{TORCH_COO}' form an n x n matrix and cannot run at this size",
    ]
    return outcome


def _sizes(context: Context) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Kind, n, entries drawn, widths."""
    if context.quick:
        return [(name, 1000, 20_000, (1, 16)) for name in MATRICES]
    widths = (1, 16, 64, 128)
    if context.device.type == "cpu":
        return [(name, 100_000, 2_000_000, widths) for name in MATRICES]
    graphs = [("ER", 169_343, 1_170_000, (128,)), ("ER", 232_965, 20_000_000, (128,))]
    return graphs + [(name, 1_000_000, 10_000_000, widths) for name in MATRICES]


def _case(name: str, indices: Tensor, n: int, width: int, mode: str, scipy: bool, context: Context) -> Case:
    import lacewing

    backward = mode == BACKWARD
    device = context.device
    placed = indices.to(device)
    count = indices.shape[1]
    values = torch.zeros(count, device=device, requires_grad=backward)
    ours = lacewing.sparse_coo_tensor(placed, values, (n, n))
    csr = patterns.torch_csr(placed, torch.zeros(count, device=device), (n, n)).requires_grad_(backward)
    coo = patterns.torch_coo(placed, torch.zeros(count, device=device), (n, n))
    matrix = patterns.scipy_csr(indices, torch.zeros(count), (n, n)) if scipy else None

    def make_inputs(seed: int) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)
        fresh = torch.randn(count, generator=generator, device=device)
        with torch.no_grad():
            values.copy_(fresh)
            csr.values().copy_(fresh)
            coo.values().copy_(fresh)
            if matrix is not None:
                matrix.data[:] = fresh.cpu().numpy()
        x = torch.randn(n, width, generator=generator, device=device, requires_grad=backward)
        return Operands(ours, csr, coo, matrix, x, torch.randn(n, width, generator=generator, device=device))

    contenders: dict[str, Any]
    readers: dict[str, Any]
    if backward:
        contenders = {
            OURS: lambda o: (z := o.ours @ o.x, *torch.autograd.grad(z, (values, o.x), o.upstream)),
            TORCH_CSR: lambda o: (
                z := torch.sparse.mm(o.csr, o.x),
                *torch.autograd.grad(z, (o.csr, o.x), o.upstream),
            ),
        }
        readers = {TORCH_CSR: lambda r: (r[0], r[1].values(), r[2])}
    else:
        contenders = {OURS: lambda o: (o.ours @ o.x,), TORCH_CSR: lambda o: (o.csr @ o.x,)}
        contenders[TORCH_COO] = lambda o: (o.coo @ o.x,)
        readers = {}
        if scipy:
            contenders[SCIPY] = lambda o: o.scipy @ o.x.numpy()
            readers[SCIPY] = lambda z: (torch.from_numpy(z),)
    return Case(
        name=f"{name} C {width}",
        mode=mode,
        contenders=contenders,
        make_inputs=make_inputs,
        oracle=lambda o: _oracle(placed, values, o, backward),
        tolerances=[1e-5, 3e-4, 3e-4][: 3 if backward else 1],
        work=_work(count, n, width, backward),
        readers=readers,
    )


def _oracle(indices: Tensor, values: Tensor, o: Operands, backward: bool) -> tuple[Tensor, ...]:
    """In fp64, by gathering and adding rows."""
    v, x, up = values.detach().double(), o.x.detach().double(), o.upstream.double()
    pieces = list(zip(v.split(PIECE), *(i.split(PIECE) for i in indices), strict=True))

    def added(source: Tensor, of: int, to: int) -> Tensor:
        total = torch.zeros_like(up)
        for piece in pieces:
            total.index_add_(0, piece[to], piece[0].unsqueeze(1) * source[piece[of]])
        return total

    z = added(x, of=2, to=1)
    if not backward:
        return (z,)
    of_values = torch.cat([(up[row] * x[column]).sum(1) for _, row, column in pieces])
    return z, of_values, added(up, of=1, to=2)


def _work(count: int, n: int, width: int, backward: bool) -> Work:
    """Structure (a 4-byte index, a 4-byte value), x and z once; backward reads and writes them twice more."""
    forward = Work(8 * count + 4 * n + 8 * n * width, 2 * count * width)
    if not backward:
        return forward
    return forward + Work(20 * count + 8 * n + 16 * n * width, 4 * count * width)


def _summary(rows: list[Row]) -> dict[str, float]:
    """Against the best peer of each row."""
    best = lambda row: min(row.ratio(peer) for peer in row.peers)
    summary: dict[str, float] = {}
    for mode in (FORWARD, BACKWARD):
        ratios = [best(row) for row in rows if row.mode == mode]
        summary[f"{mode}: least ratio to the best peer"] = min(ratios)
        summary[f"{mode}: geomean ratio to the best peer"] = geometric_mean(ratios)
    return summary
