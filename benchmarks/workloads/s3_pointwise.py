"""S3: union, intersection, a chain of pointwise ops, softmax along a sparse dim."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.limits import Work
from benchmarks.registry import Outcome, workload
from benchmarks.sparse_patterns import PYDATA, SCIPY, TORCH_COO, TORCH_CSR

Operands = dict[str, Any]


@workload("S3", "pointwise ops of sparse matrices, and softmax")
def run(context: Context) -> Outcome:
    """Two matrices of a kind with different entries."""
    n, entries = (1000, 20_000) if context.quick else (100_000, 2_000_000)
    cpu = context.device.type == "cpu"
    if not cpu and not context.quick:
        n, entries = 1_000_000, 10_000_000
    outcome = Outcome()
    peers = {name: cpu and patterns.find(module) is not None for name, module in
             ((SCIPY, "scipy.sparse"), (PYDATA, "sparse"))}  # fmt: skip
    outcome.skipped += [f"{name} (not installed, or not for this device)" for name, found in peers.items() if not found]
    for name in ("ER", "R-MAT"):
        pair = [patterns.matrix(name, n, entries, seed, context.device) for seed in (0, 1)]
        for mode in ("union add", "intersection mul", "chain of 5", "softmax"):
            outcome.rows.append(run_case(_case(name, mode, pair, n, peers), context))
    outcome.summary = {
        f"{row.name} {row.mode}: ratio to the best peer": min(row.ratio(p) for p in row.peers) for row in outcome.rows
    }
    outcome.notes += [
        f"n {n}, {entries} entries drawn, fp32, operands coalesced beforehand, each in the contender's own format",
        "chain: x * 0.5, abs, sin, sqrt, tanh; softmax: over the entries of each row (the fill is undefined)",
        "the operands' values are new in every round, their patterns are kept, as training does",
    ]
    return outcome


def _chain(x: Any) -> Any:
    return torch.tanh(torch.sqrt(torch.sin(torch.abs(x * 0.5))))


def _scipy_chain(x: Any) -> Any:
    return abs(x * 0.5).sin().sqrt().tanh()


def _case(name: str, mode: str, pair: list[Tensor], n: int, peers: dict[str, bool]) -> Case:
    import lacewing

    shape = (n, n)
    device = pair[0].device
    fill = lacewing.undefined if mode == "softmax" else 0.0
    base = [torch.zeros(i.shape[1], device=device) for i in pair]
    ours = [lacewing.sparse_coo_tensor(i, v, shape, fill_value=fill) for i, v in zip(pair, base, strict=True)]
    coo = [patterns.torch_coo(i, v.clone(), shape) for i, v in zip(pair, base, strict=True)]
    csr = [patterns.torch_csr(i, v.clone(), shape) for i, v in zip(pair, base, strict=True)]
    operands: Operands = {OURS: ours, TORCH_COO: coo, TORCH_CSR: csr}
    stored = [[s.values() for s in ours], [s.values() for s in coo], [s.values() for s in csr]]
    if peers[SCIPY]:
        operands[SCIPY] = [patterns.scipy_csr(i, v.clone(), shape) for i, v in zip(pair, base, strict=True)]
        stored.append([torch.from_numpy(s.data) for s in operands[SCIPY]])
    if peers[PYDATA]:
        sparse = patterns.find("sparse")
        assert sparse is not None
        operands[PYDATA] = [
            sparse.COO(i.numpy(), v.clone().numpy(), shape=shape, has_duplicates=False, sorted=True)
            for i, v in zip(pair, base, strict=True)
        ]
        stored.append([torch.from_numpy(s.data) for s in operands[PYDATA]])

    def make_inputs(seed: int) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)
        for k in range(2):
            fresh = torch.rand(pair[k].shape[1], generator=generator, device=device) + 0.1
            for values in stored:
                values[k].copy_(fresh)
        return operands

    actions: dict[str, dict[str, Any]] = {
        "union add": {
            OURS: lambda a, b: a + b, TORCH_COO: lambda a, b: a + b, TORCH_CSR: lambda a, b: a + b,
            SCIPY: lambda a, b: a + b, PYDATA: lambda a, b: a + b,
        },
        "intersection mul": {
            OURS: lambda a, b: a * b, TORCH_COO: lambda a, b: a * b, SCIPY: lambda a, b: a.multiply(b),
            PYDATA: lambda a, b: a * b,
        },
        "chain of 5": {
            OURS: lambda a, _: _chain(a), TORCH_COO: lambda a, _: _chain(a), TORCH_CSR: lambda a, _: _chain(a),
            SCIPY: lambda a, _: _scipy_chain(a),
        },
        "softmax": {
            OURS: lambda a, _: torch.softmax(a, 1), TORCH_COO: lambda a, _: torch.sparse.softmax(a, 1),
        },
    }  # fmt: skip
    contenders = {
        peer: (lambda o, peer=peer, act=act: act(*o[peer])) for peer, act in actions[mode].items() if peer in operands
    }
    reader = {
        OURS: patterns.our_elements,
        TORCH_COO: patterns.torch_elements,
        TORCH_CSR: patterns.torch_elements,
        SCIPY: patterns.scipy_elements,
        PYDATA: patterns.pydata_elements,
    }
    count = pair[0].shape[1] + (pair[1].shape[1] if mode.startswith(("union", "inter")) else 0)
    return Case(
        name=name,
        mode=mode,
        contenders=contenders,
        make_inputs=make_inputs,
        oracle=lambda o: _oracle(mode, pair, [v.double() for v in stored[0]], n),
        tolerances=[0.0, 1e-5],
        work=Work(24 * count, 0),
        readers={peer: reader[peer] for peer in contenders},
    )


def _oracle(mode: str, pair: list[Tensor], values: list[Tensor], n: int) -> tuple[Tensor, Tensor]:
    """By keys in fp64."""
    keys = [i[0] * n + i[1] for i in pair]
    if mode == "union add":
        found, group = torch.unique(torch.cat(keys), return_inverse=True)
        result = torch.zeros(len(found), dtype=torch.float64, device=found.device).index_add(
            0, group, torch.cat(values)
        )
    elif mode == "intersection mul":
        common = torch.isin(keys[0], keys[1])
        found = keys[0][common]
        result = values[0][common] * values[1][torch.searchsorted(keys[1], found)]
    elif mode == "chain of 5":
        found, result = keys[0], _chain(values[0])
    else:
        found, e = keys[0], values[0].exp()
        total = torch.zeros(n, dtype=torch.float64, device=e.device).index_add(0, pair[0][0], e)
        result = e / total[pair[0][0]]
    return torch.stack([found // n, found % n]).double(), result
