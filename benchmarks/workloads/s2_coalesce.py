"""S2: coalescing, to CSR, and the transpose in order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.limits import Work
from benchmarks.registry import Outcome, workload
from benchmarks.sparse_patterns import SCIPY, TORCH_COO

Operands = tuple[Tensor, Tensor]
COALESCE, TO_CSR, TRANSPOSE = MODES = ("coalesce", "to CSR", "transpose")


@workload("S2", "coalescing and transposing COO matrices")
def run(context: Context) -> Outcome:
    """Random, hub-heavy, all-duplicate and already sorted entries."""
    n, entries = (1000, 20_000) if context.quick else (100_000, 2_000_000)
    if context.device.type == "cuda" and not context.quick:
        n, entries = 1_000_000, 20_000_000
    outcome = Outcome()
    scipy = context.device.type == "cpu" and patterns.find("scipy.sparse") is not None
    if not scipy:
        outcome.skipped.append(f"{SCIPY} (not installed, or not for this device)")
    kinds = {
        "ER": lambda seed: patterns.uniform(n, entries, seed, context.device),
        "R-MAT": lambda seed: patterns.rmat(n, entries, seed, context.device),
        "one index": lambda seed: torch.full((2, entries), seed % n),
        "sorted": lambda seed: patterns.matrix("ER", n, entries, seed, context.device),
    }
    for name, make in kinds.items():
        for mode in MODES:
            if mode == TRANSPOSE and name != "sorted":
                continue
            outcome.rows.append(run_case(_case(name, mode, make, n, entries, scipy, context), context))
    for peer in (TORCH_COO, SCIPY):
        for mode in MODES:
            ratios = [row.ratio(peer) for row in outcome.rows if peer in row.timings and row.mode == mode]
            if ratios:
                outcome.summary[f"{mode}: least ratio to {peer}"] = min(ratios)
    outcome.notes += [
        f"n {n}, {entries} entries, fp32; every call makes the tensor of indices and values and coalesces it",
        "to CSR: the same, then compressed rows",
        f"ours checks the indices, '{TORCH_COO}' is told not to; '{SCIPY}' makes CSR (32-bit indices are given to it)",
        "transpose: of sorted entries, and sorted again",
    ]
    return outcome


def _case(name: str, mode: str, make: Any, n: int, entries: int, scipy: bool, context: Context) -> Case:
    import lacewing

    shape = (n, n)
    turn, compress = mode == TRANSPOSE, mode == TO_CSR
    indices = make(0).to(context.device)

    def make_inputs(seed: int) -> Operands:
        generator = torch.Generator(context.device).manual_seed(seed)
        return indices, torch.randn(indices.shape[1], generator=generator, device=context.device)

    def ours(o: Operands) -> Any:
        s = lacewing.sparse_coo_tensor(o[0], o[1], shape)
        return s.to_gcs() if compress else (s.t() if turn else s).coalesce()

    def torch_coo(o: Operands) -> Tensor:
        s = patterns.torch_coo(o[0], o[1], shape, coalesced=False)
        s = (s.t() if turn else s).coalesce()
        return s.to_sparse_csr() if compress else s

    narrow = tuple(i.int().cpu().numpy() for i in indices)

    def scipy_csr(o: Operands) -> Any:
        import scipy.sparse

        s = scipy.sparse.coo_matrix((o[1].numpy(), narrow), shape=shape)
        return (s.T if turn else s).tocsr()

    def oracle(o: Operands) -> tuple[Tensor, ...]:
        row, column = (o[0].flip(0) if turn else o[0]).cpu()
        keys, group = torch.unique(row * n + column, return_inverse=True)
        total = torch.zeros(len(keys), dtype=torch.float64).index_add(0, group, o[1].cpu().double())
        return torch.stack([keys // n, keys % n]).double().to(o[1].device), total.to(o[1].device)

    contenders: dict[str, Any] = {OURS: ours, TORCH_COO: torch_coo}
    readers: dict[str, Any] = {
        OURS: lambda s: patterns.our_elements(s.to_coo() if compress else s),
        TORCH_COO: lambda s: patterns.torch_elements(s.to_sparse_coo() if compress else s),
    }
    if scipy:
        contenders[SCIPY] = scipy_csr
        readers[SCIPY] = patterns.scipy_elements
    bytes_in = 20 * indices.shape[1]
    return Case(name, mode, contenders, make_inputs, oracle, [0.0, 1e-3], Work(2 * bytes_in, 0), readers=readers)
