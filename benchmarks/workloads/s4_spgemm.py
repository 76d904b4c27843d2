"""S4: a sparse matrix times a sparse one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.limits import Work
from benchmarks.registry import Outcome, workload
from benchmarks.sparse_patterns import SCIPY, TORCH_COO, TORCH_CSR


@workload("S4", "sparse @ sparse")
def run(context: Context) -> Outcome:
    """A matrix with itself."""
    n, entries = (500, 5000) if context.quick else (20_000, 200_000)
    outcome = Outcome()
    scipy = context.device.type == "cpu" and patterns.find("scipy.sparse") is not None
    if not scipy:
        outcome.skipped.append(f"{SCIPY} (not installed, or not for this device)")
    for name in ("ER", "R-MAT"):
        outcome.rows.append(run_case(_case(name, n, entries, scipy, context), context))
    outcome.summary = {
        f"{row.name}: ratio to the best peer": min(row.ratio(p) for p in row.peers) for row in outcome.rows
    }
    outcome.notes.append(
        f"n {n}, {entries} entries drawn, fp32; operands coalesced, each in the contender's own format"
    )
    return outcome


def _case(name: str, n: int, entries: int, scipy: bool, context: Context) -> Case:
    import lacewing

    indices = patterns.matrix(name, n, entries)
    placed = indices.to(context.device)
    count = indices.shape[1]
    ours = lacewing.sparse_coo_tensor(placed, torch.zeros(count, device=context.device), (n, n))
    coo = patterns.torch_coo(placed, torch.zeros(count, device=context.device), (n, n))
    csr = patterns.torch_csr(placed, torch.zeros(count, device=context.device), (n, n))
    matrix = patterns.scipy_csr(indices, torch.zeros(count), (n, n)) if scipy else None

    def make_inputs(seed: int) -> Tensor:
        generator = torch.Generator(context.device).manual_seed(seed)
        fresh = torch.rand(count, generator=generator, device=context.device) + 0.1
        for values in (ours.values(), coo.values(), csr.values()):
            values.copy_(fresh)
        if matrix is not None:
            matrix.data[:] = fresh.numpy()
        return fresh

    def oracle(values: Tensor) -> tuple[Tensor, ...]:
        wide = patterns.torch_coo(placed, values.double(), (n, n))
        return patterns.torch_elements(wide @ wide)

    contenders: dict[str, Any] = {
        OURS: lambda _: ours @ ours, TORCH_CSR: lambda _: csr @ csr, TORCH_COO: lambda _: coo @ coo,
    }  # fmt: skip
    readers: dict[str, Any] = {
        OURS: patterns.our_elements, TORCH_CSR: patterns.torch_elements, TORCH_COO: patterns.torch_elements,
    }  # fmt: skip
    if scipy:
        contenders[SCIPY] = lambda _: matrix @ matrix
        readers[SCIPY] = patterns.scipy_elements
    degree = torch.bincount(indices[0], minlength=n)
    products = int(degree[indices[1]].sum())
    return Case(name, "forward", contenders, make_inputs, oracle, [0.0, 1e-5],
                Work(24 * count + 12 * products // 2, 2 * products), readers=readers)  # fmt: skip
