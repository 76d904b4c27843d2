"""C1: one submanifold 3^3 layer on scans, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.case import OURS, Context, Row
from benchmarks.checking import check_contenders, max_relative_error
from benchmarks.clouds import clouds
from benchmarks.limits import Work
from benchmarks.memory import peak_bytes
from benchmarks.peers import native
from benchmarks.peers.spconv_layer import Spconv, installed
from benchmarks.products import BACKWARD, MODES
from benchmarks.registry import Outcome, workload
from benchmarks.timing import interleave, make_clock, rotation_length
from lacewing.conv import ConvolutionPlan, sparse_conv

BASELINE = "gather-GEMM-scatter"
SPCONV = "spconv"
CHANNELS = [(4, 32), (16, 16), (32, 32), (64, 64), (128, 128), (256, 256)]
TOLERANCE = 1e-4


class Inputs(NamedTuple):
    """Features, weight (27, 1, Cin, Cout) and the upstream gradient, which is absent forward."""

    features: Tensor
    weight: Tensor
    upstream: Tensor | None


@workload("C1", "one submanifold 3^3 layer on scans")
def run(context: Context) -> Outcome:
    """Every scan and channel pair, in both modes."""
    outcome = Outcome()
    spconv = Spconv() if context.device.type == "cpu" and installed() else None
    if spconv is None:
        outcome.skipped.append(f"{SPCONV} (not installed, or not for this device)")
    peak = 0.0
    for name, voxels in clouds(context.device, context.quick).items():
        plan = ConvolutionPlan.build(voxels, 3)
        if spconv is not None:
            spconv.set_voxels(voxels)
        peak = max(peak, (native.fma_rate() or 0.0) if context.device.type == "cpu" else 0.0)
        outcome.notes.append(f"{name}: {len(voxels):,} voxels, {plan.pair_count / len(voxels):.2f} neighbours of 27")
        for channels in CHANNELS[:3] if context.quick else CHANNELS:
            for mode in MODES:
                outcome.rows.append(_row(name, plan, spconv, channels, mode, context))
    for row in outcome.rows:
        if peak > 0 and row.mode != BACKWARD:
            share = row.work.flops / row.timings[OURS].median / peak
            outcome.summary[f"{row.name}: share of the FMA rate"] = share
    for peer in (BASELINE, SPCONV):
        ratios = [row.ratio(peer) for row in outcome.rows if peer in row.timings]
        if ratios:
            outcome.summary[f"least ratio to {peer}"] = min(ratios)
    outcome.notes.append(
        f"'{BASELINE}': row-wise gather, one torch mm per tap into a reused buffer, row-wise scatter, middle tap "
        "without gather; its gradients the same way"
    )
    if spconv is not None:
        wrong = sum(max(row.errors[SPCONV]) > TOLERANCE for row in outcome.rows)
        outcome.notes.append(
            f"'{SPCONV}': checked with one thread; with {torch.get_num_threads()} its results were wrong by more than "
            f"{TOLERANCE:.0e} in {wrong} of {len(outcome.rows)} rows (the column of errors shows it), its times are "
            "shown all the same"
        )
    if peak > 0:
        outcome.notes.append(
            f"the FMA rate is that of a loop of multiply-adds in registers: {peak / 1e9:.0f} GF/s (torch's matmul "
            f"reaches {context.limits.flops_per_s / 1e9:.0f})"
        )
    return outcome


def _row(
    name: str,
    plan: ConvolutionPlan,
    spconv: Spconv | None,
    channels: tuple[int, int],
    mode: str,
    context: Context,
) -> Row:
    cin, cout = channels
    backward = mode == BACKWARD
    gemm = plan.with_algorithm("gather_gemm_scatter")

    def make_inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator).to(context.device)
        features = draw(len(plan.source), cin).requires_grad_(backward)
        weight = (draw(plan.taps, 1, cin, cout) * 0.1).requires_grad_(backward)
        return Inputs(features, weight, draw(len(plan.target), cout) if backward else None)

    contenders: dict[str, Callable[[Inputs], Any]] = {
        OURS: partial(_layer, plan=plan),
        BASELINE: partial(_layer, plan=gemm),
    }
    inputs = make_inputs(0)
    errors = _check(contenders, inputs, plan)
    peaks = {n: peak_bytes(partial(contender, inputs), context.device) for n, contender in contenders.items()}
    if spconv is not None:
        _check({SPCONV: lambda i: _peer_results(spconv, i)}, inputs, plan)
        right = _peer_results(spconv, inputs)
        errors[SPCONV] = [max_relative_error(a, b) for a, b in zip(spconv.results(), right, strict=True)]
        peaks[SPCONV] = spconv.peak()
        contenders[SPCONV] = lambda _: spconv.run()
    flops = 2 * plan.pair_count * cin * cout * (3 if backward else 1)
    work = Work(4 * (len(plan.source) * (cin + cout) + plan.taps * cin * cout) * (3 if backward else 1), flops)
    clock, rotation = make_clock(context.device), rotation_length(work.bytes, context.device)
    timings = interleave(contenders, make_inputs, clock, context.schedule, rotation)
    least, limit = context.limits.seconds(work)
    row = Row(f"{name} {cin}->{cout}", mode, timings, errors, peaks, work, limit, least / timings[OURS].median)
    ratios = ", ".join(f"{row.ratio(peer):.2f}x {peer}" for peer in row.peers)
    context.tell(f"  {row.name} {mode}: {timings[OURS].median * 1e3:.3g} ms, {ratios}")
    return row


def _layer(inputs: Inputs, plan: ConvolutionPlan) -> tuple[Tensor, ...]:
    out = sparse_conv(inputs.features, inputs.weight, plan)
    if inputs.upstream is None:
        return (out,)
    return (out.detach(), *torch.autograd.grad(out, (inputs.features, inputs.weight), inputs.upstream))


def _peer_results(spconv: Spconv, inputs: Inputs) -> tuple[Tensor, ...]:
    """spconv's own with one thread; it keeps the inputs for the runs that follow."""
    spconv.set_layer(inputs.weight, inputs.features, inputs.upstream)
    return spconv.results(threads=1)


def _check(
    contenders: Mapping[str, Callable[[Inputs], Any]], inputs: Inputs, plan: ConvolutionPlan
) -> dict[str, list[float]]:
    """Some of the outputs, and the gradients of those, against fp64."""
    count = len(plan.target)
    rows = torch.arange(0, count, max(1, count // 2000), device=plan.device)
    if inputs.upstream is not None:
        some = torch.zeros_like(inputs.upstream)
        some[rows] = inputs.upstream[rows]
        inputs = inputs._replace(upstream=some)
    tolerances = [TOLERANCE] * (3 if inputs.upstream is not None else 1)
    read = lambda results: (results[0][rows], *results[1:])
    return check_contenders(
        contenders, inputs, lambda i: _wide(i, plan, rows), tolerances, dict.fromkeys(contenders, read)
    )


def _wide(inputs: Inputs, plan: ConvolutionPlan, rows: Tensor) -> tuple[Tensor, ...]:
    """These outputs in fp64 by index_add over the plan's pairs, whose own test is against dictionaries."""
    x, w = (t.detach().double().requires_grad_(inputs.upstream is not None) for t in inputs[:2])
    place = torch.full((len(plan.target),), -1, dtype=torch.long, device=plan.device)
    place[rows] = torch.arange(len(rows), device=plan.device)
    out = x.new_zeros(len(rows), w.shape[3])
    for tap in range(plan.taps):
        source, target = (pairs.long() for pairs in plan.pairs(tap))
        kept = place[target] >= 0
        out = out.index_add(0, place[target[kept]], x[source[kept]] @ w[tap, 0])
    if inputs.upstream is None:
        return (out,)
    return (out.detach(), *torch.autograd.grad(out, (x, w), inputs.upstream[rows].double()))
