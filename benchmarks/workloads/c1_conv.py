"""C1: one submanifold 3^3 layer on scans, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.case import OURS, Context, Row
from benchmarks.checking import check_contenders, max_relative_error
from benchmarks.clouds import clouds
from benchmarks.limits import Work
from benchmarks.memory import peak_bytes
from benchmarks.peers import native, spconv_layer
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
    spconv = spconv_layer.find() if context.device.type == "cpu" else None
    if spconv is None:
        outcome.skipped.append(f"{SPCONV} (not installed, or not for this device)")
    peak = native.fma_rate() if context.device.type == "cpu" else None
    for name, voxels in clouds(context.device, context.quick).items():
        plan = ConvolutionPlan.build(voxels, 3)
        cloud = spconv_layer.Cloud(spconv, voxels) if spconv else None
        outcome.notes.append(f"{name}: {len(voxels):,} voxels, {plan.pair_count / len(voxels):.2f} neighbours of 27")
        for channels in CHANNELS[:3] if context.quick else CHANNELS:
            for mode in MODES:
                row = _row(name, plan, cloud, channels, mode, context)
                outcome.rows.append(row)
                if peak is not None and mode != BACKWARD:
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
    if peak is not None:
        outcome.notes.append(f"the FMA rate is that of a loop of multiply-adds in registers: {peak / 1e9:.0f} GF/s")
    return outcome


def _row(
    name: str,
    plan: ConvolutionPlan,
    cloud: spconv_layer.Cloud | None,
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

    contenders: dict[str, Callable[[Inputs], tuple[Tensor, ...]]] = {
        OURS: partial(_layer, plan=plan),
        BASELINE: partial(_layer, plan=gemm),
    }
    inputs = make_inputs(0)
    tolerances = [TOLERANCE] * (3 if backward else 1)
    errors = check_contenders(contenders, inputs, lambda i: _wide(i, plan), tolerances)
    if cloud is not None:
        contenders[SPCONV] = _spconv(cloud, inputs.weight.detach())
        errors[SPCONV] = [max_relative_error(contenders[SPCONV](inputs)[0], _wide(inputs, plan)[0])]
    peaks = {n: peak_bytes(partial(contender, inputs), context.device) for n, contender in contenders.items()}
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


def _spconv(cloud: spconv_layer.Cloud, weight: Tensor) -> Callable[[Inputs], tuple[Tensor, ...]]:
    """spconv keeps its own weight: the same for every round."""
    layer = cloud.layer(weight)

    def run(inputs: Inputs) -> tuple[Tensor, ...]:
        if inputs.upstream is None:
            with torch.no_grad():
                return (layer(inputs.features),)
        out = layer(inputs.features)
        return (out.detach(), *torch.autograd.grad(out, (inputs.features, layer.parameter), inputs.upstream))

    return run


def _wide(inputs: Inputs, plan: ConvolutionPlan) -> tuple[Tensor, ...]:
    """The same in fp64 by index_add over the plan's pairs, whose own test is against dictionaries."""
    x, w = (t.detach().double().requires_grad_(inputs.upstream is not None) for t in inputs[:2])
    out = x.new_zeros(len(plan.target), w.shape[3])
    for tap in range(plan.taps):
        source, target = (rows.long() for rows in plan.pairs(tap))
        out = out.index_add(0, target, x[source] @ w[tap, 0])
    if inputs.upstream is None:
        return (out,)
    return (out.detach(), *torch.autograd.grad(out, (x, w), inputs.upstream.double()))
