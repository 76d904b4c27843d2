"""C2: building the plan of a submanifold 3^3 layer, and how its cost grows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.clouds import clouds
from benchmarks.growth import Growth, measure_point
from benchmarks.limits import Work
from benchmarks.peers import native
from benchmarks.peers.spconv_layer import Spconv, installed
from benchmarks.registry import Outcome, workload
from lacewing.conv import ConvolutionPlan

HASH = "27-probe hash"
SPCONV = "spconv"


@workload("C2", "plans of a submanifold 3^3 layer")
def run(context: Context) -> Outcome:
    """Sorted and shuffled scans against a hash table and spconv; growth over surfaces of 10^4 to 10^7 voxels."""
    outcome = Outcome()
    spconv = Spconv() if context.device.type == "cpu" and installed() else None
    if spconv is None:
        outcome.skipped.append(f"{SPCONV} (not installed, or not for this device)")
    if native.library() is None:
        outcome.skipped.append(f"{HASH} (no C++ compiler)")
    for name, voxels in clouds(context.device, context.quick).items():
        for order in ("sorted", "shuffled"):
            outcome.rows.append(run_case(_case(name, order, voxels, spconv), context))
    for peer in (HASH, SPCONV):
        ratios = [row.ratio(peer) for row in outcome.rows if peer in row.timings]
        if ratios:
            outcome.summary[f"least ratio to {peer}"] = min(ratios)
    sizes = [10**3, 10**4] if context.quick else [10**4, 10**5, 10**6, 10**7]
    points = [
        measure_point(size, _build, lambda _, size=size: _surface(size), _work(size, 5 * size), context)  # type: ignore[misc]
        for size in sizes
    ]
    outcome.growths.append(Growth("plan", "build", "voxels", "a wavy surface, shuffled", points))
    outcome.notes += [
        "ours makes the whole plan: sort, pairs of all taps, tile tables for both directions",
        f"'{HASH}': table at a load of at most one half, probes on all threads, pair lists; no tile tables",
        f"'{SPCONV}': get_indice_pairs (Native) on the first round's order of the voxels",
    ]
    return outcome


def _build(voxels: Tensor) -> ConvolutionPlan:
    return ConvolutionPlan.build(voxels, 3)


def _work(voxels: int, pairs: int) -> Work:
    """Coordinates in, pairs out."""
    return Work(16 * voxels + 8 * pairs, 0)


def _case(name: str, order: str, voxels: Tensor, spconv: Spconv | None) -> Case:
    def make_inputs(seed: int) -> Tensor:
        if order == "sorted":
            return voxels.clone()
        return voxels[torch.randperm(len(voxels), generator=torch.Generator().manual_seed(seed))].contiguous()

    contenders: dict[str, Any] = {OURS: _build}
    readers: dict[str, Any] = {OURS: lambda plan: [_key(*_all_pairs(plan))]}
    if native.library() is not None:
        contenders[HASH] = native.hash_kernel_map
        readers[HASH] = lambda pairs: [_key(*pairs)]
    if spconv is not None:
        spconv.set_voxels(make_inputs(0))
        contenders[SPCONV] = lambda _: spconv.build_map()
        readers[SPCONV] = lambda _: [_key(*spconv.pairs())]
    return Case(
        name=name,
        mode=order,
        contenders=contenders,
        make_inputs=make_inputs,
        oracle=lambda v: [_oracle(v)],
        tolerances=[0.0],
        work=_work(len(voxels), _build(voxels).pair_count),
        readers=readers,
    )


def _all_pairs(plan: ConvolutionPlan) -> tuple[Tensor, Tensor]:
    pairs = [plan.pairs(tap) for tap in range(plan.taps)]
    return torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])


def _key(source: Tensor, target: Tensor) -> Tensor:
    """All pairs as sorted numbers, in fp64 (exact: below 2^53 for fewer than 9*10^7 voxels)."""
    return (source.double() * 2.0**27 + target.double()).sort().values


def _oracle(voxels: Tensor) -> Tensor:
    """Pairs of voxels at most one step apart on every axis, by torch.searchsorted over combined keys."""
    base = voxels.long() - voxels.long().amin(0) + 1
    spans = base.amax(0) + 2
    combine = lambda v: ((v[:, 0] * spans[1] + v[:, 1]) * spans[2] + v[:, 2]) * spans[3] + v[:, 3]
    keys, order = combine(base).sort()
    found = []
    for step in torch.cartesian_prod(*(torch.arange(-1, 2),) * 3):
        wanted = combine(base + torch.cat([step.new_zeros(1), step]))
        at = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        hit = keys[at] == wanted
        found.append(_key(order[at[hit]], hit.nonzero()[:, 0]))
    return torch.cat(found).sort().values


def _surface(size: int) -> Tensor:
    """About `size` voxels of a wavy sheet, in random order."""
    side = round(size**0.5)
    x, y = (g.flatten() for g in torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    z = (8 * torch.sin(x / 19) + 8 * torch.cos(y / 23)).round().long()
    sheet = torch.stack([torch.zeros_like(x), x, y, z], 1).int()
    return sheet[torch.randperm(len(sheet))].contiguous()
