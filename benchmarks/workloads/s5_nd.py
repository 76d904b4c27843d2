"""S5: a 4-D tensor: contraction, permutation, reduction, slicing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks import sparse_patterns as patterns
from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.limits import Work
from benchmarks.registry import Outcome, workload
from benchmarks.sparse_patterns import PYDATA, TORCH_COO

SHAPE = (200, 300, 100, 50)
CONTRACTED = 16


@workload("S5", "a 4-D tensor with 10^6 entries")
def run(context: Context) -> Outcome:
    """Every call starts from a new tensor: nothing that an earlier call derived is there."""
    entries = 10_000 if context.quick else 1_000_000
    outcome = Outcome()
    sparse = patterns.find("sparse") if context.device.type == "cpu" else None
    if sparse is None:
        outcome.skipped.append(f"{PYDATA} (not installed, or not for this device)")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([torch.randint(size, (entries,), generator=generator) for size in SHAPE])
    indices = patterns.unique_columns(drawn, SHAPE).to(context.device)
    for mode in ("contraction", "permute", "reduction", "slicing"):
        outcome.rows.append(run_case(_case(mode, indices, sparse, context), context))
    for row in outcome.rows:
        for peer in row.peers:
            outcome.summary[f"{row.mode}: ratio to {peer}"] = row.ratio(peer)
    outcome.notes += [
        f"shape {SHAPE}, {indices.shape[1]} entries, fp32",
        f"contraction: dims 1 and 2 with a dense (300, 100, {CONTRACTED}); permute: (3, 1, 0, 2), in order again",
        "reduction: the sum over dims 1 and 3; slicing: [20:180, :, 10:90:2]",
        f"'{TORCH_COO}' where it has the op",
    ]
    return outcome


def _case(mode: str, indices: Tensor, sparse: Any | None, context: Context) -> Case:
    import lacewing

    device = context.device
    weight = torch.randn(300, 100, CONTRACTED, generator=torch.Generator().manual_seed(1)).to(device)

    def make_inputs(seed: int) -> dict[str, Any]:
        values = torch.rand(indices.shape[1], generator=torch.Generator(device).manual_seed(seed), device=device) + 0.1
        operands: dict[str, Any] = {
            OURS: values,
            TORCH_COO: patterns.torch_coo(indices, values, SHAPE),
        }
        if sparse is not None:
            operands[PYDATA] = sparse.COO(
                indices.numpy(), values.numpy(), shape=SHAPE, has_duplicates=False, sorted=True
            )
        return operands

    def fresh(values: Tensor) -> Any:
        return lacewing.sparse_coo_tensor(indices, values, SHAPE)

    dense = weight.cpu().numpy() if sparse is not None else None
    actions: dict[str, dict[str, Any]] = {
        "contraction": {
            OURS: lambda v: torch.tensordot(fresh(v), weight, dims=([1, 2], [0, 1])),
            PYDATA: lambda p: sparse.tensordot(p, dense, axes=([1, 2], [0, 1])),  # type: ignore[union-attr]
        },
        "permute": {
            OURS: lambda v: fresh(v).permute(3, 1, 0, 2).coalesce(),
            PYDATA: lambda p: p.transpose((3, 1, 0, 2)),
            TORCH_COO: lambda t: t.permute(3, 1, 0, 2).coalesce(),
        },
        "reduction": {
            OURS: lambda v: fresh(v).sum((1, 3)),
            PYDATA: lambda p: p.sum(axis=(1, 3)),
            TORCH_COO: lambda t: torch.sparse.sum(t, (1, 3)),
        },
        "slicing": {
            OURS: lambda v: fresh(v)[20:180, :, 10:90:2],
            PYDATA: lambda p: p[20:180, :, 10:90:2],
        },
    }
    here = [OURS, TORCH_COO] + [PYDATA] * (sparse is not None)
    contenders = {p: (lambda o, p=p, act=act: act(o[p])) for p, act in actions[mode].items() if p in here}
    if mode == "contraction":
        to_tensor = lambda r: (r if isinstance(r, Tensor) else torch.from_numpy(r),)
        readers: dict[str, Any] = {p: to_tensor for p in contenders}
        tolerances = [1e-5]
    else:
        every = {OURS: patterns.our_elements, TORCH_COO: patterns.torch_elements, PYDATA: patterns.pydata_elements}
        readers = {p: every[p] for p in contenders}
        tolerances = [0.0, 1e-5]
    return Case(
        name="4-D", mode=mode, contenders=contenders, make_inputs=make_inputs,
        oracle=lambda o: _oracle(mode, indices, o[OURS].double(), weight.double()),
        tolerances=tolerances, work=Work(2 * 36 * indices.shape[1], 0), readers=readers,
    )  # fmt: skip


def _oracle(mode: str, indices: Tensor, values: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """In fp64, entry by entry."""
    if mode == "contraction":
        rows = values.unsqueeze(1) * weight[indices[1], indices[2]]
        out = torch.zeros(SHAPE[0] * SHAPE[3], CONTRACTED, dtype=torch.float64, device=values.device)
        return (out.index_add(0, indices[0] * SHAPE[3] + indices[3], rows).view(SHAPE[0], SHAPE[3], CONTRACTED),)
    if mode == "slicing":
        kept = (indices[0] >= 20) & (indices[0] < 180) & (indices[2] >= 10) & (indices[2] < 90) & (indices[2] % 2 == 0)
        cut = indices[:, kept] - torch.tensor([20, 0, 10, 0], device=indices.device).unsqueeze(1)
        return torch.stack([cut[0], cut[1], cut[2] // 2, cut[3]]).double(), values[kept]
    order, shape = ((3, 1, 0, 2), (50, 300, 200, 100)) if mode == "permute" else ((0, 2), (200, 100))
    keys = torch.zeros_like(indices[0])
    for dim, size in zip(order, shape, strict=True):
        keys = keys * size + indices[dim]
    found, group = torch.unique(keys, return_inverse=True)
    total = torch.zeros(len(found), dtype=torch.float64, device=values.device).index_add(0, group, values)
    return torch.stack(torch.unravel_index(found, shape)).double(), total
