"""C3: MinkUNet18 on a scan, inference and training step."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.clouds import clouds
from benchmarks.limits import Work
from benchmarks.peers.spconv_layer import installed
from benchmarks.peers.spconv_unet import SpconvUNet
from benchmarks.registry import Outcome, workload
from lacewing.conv import PlanCache, VoxelTensor

BASELINE = "gather-GEMM-scatter"
SPCONV = "spconv"
INFERENCE = "inference"


@workload("C3", "MinkUNet18 on a scan, plans included")
def run(context: Context) -> Outcome:
    """The same network and weights with the two algorithms and on spconv; maps are built anew in every call."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from networks.minkunet import minkunet18

    torch.manual_seed(0)
    net = minkunet18().to(context.device)
    name, voxels = next(iter(clouds(context.device, context.quick).items()))
    outcome = Outcome(notes=[f"{name}: {len(voxels):,} voxels, 4 input channels, 20 classes, fp32"])
    spconv = SpconvUNet() if context.device.type == "cpu" and installed() else None
    if spconv is None:
        outcome.skipped.append(f"{SPCONV} (not installed, or not for this device)")
    # The gradient of the first layer comes through all others, normalised anew each: fp32 errors of 1e-2 are usual.
    for mode, step, tolerance in ((INFERENCE, _infer, 1e-3), ("training step", _train, 3e-2)):
        make_inputs = partial(_features, len(voxels), context.device)
        contenders: dict[str, Any] = {
            OURS: partial(step, net, "automatic", voxels),
            BASELINE: partial(step, net, "gather_gemm_scatter", voxels),
        }
        readers: dict[str, Any] = {}
        if spconv is not None:
            spconv.set_net(net.state_dict(), voxels, make_inputs(0), training=mode != INFERENCE)
            contenders[SPCONV] = lambda _: spconv.run()
            readers[SPCONV] = lambda _: spconv.results(threads=1)
        case = Case(
            name=name,
            mode=mode,
            contenders=contenders,
            make_inputs=make_inputs,
            oracle=partial(step, net, "gather_gemm_scatter", voxels),
            tolerances=[tolerance],
            work=Work(4 * len(voxels) * 24, 0),
            readers=readers,
        )
        row = run_case(case, context)
        if spconv is not None:
            row = replace(row, peaks={**row.peaks, SPCONV: spconv.peak()})
        outcome.rows.append(row)
        for peer in row.peers:
            outcome.summary[f"{mode}: ratio to {peer}"] = row.ratio(peer)
    if spconv is not None:
        outcome.notes.append(f"'{SPCONV}': in a process of its own, checked with one thread")
    return outcome


def _features(voxels: int, device: torch.device, seed: int) -> Tensor:
    return torch.randn(voxels, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def _infer(net: torch.nn.Module, algorithm: str, voxels: Tensor, features: Tensor) -> tuple[Tensor]:
    net.eval()
    with torch.no_grad():
        return (net(VoxelTensor(features, voxels, 1, cache=PlanCache(algorithm))).features,)


def _train(net: torch.nn.Module, algorithm: str, voxels: Tensor, features: Tensor) -> tuple[Tensor]:
    """Forward and backward of a cross entropy; returns the gradient of the stem's weight."""
    net.train()
    net.zero_grad(set_to_none=True)
    out: Tensor = net(VoxelTensor(features, voxels, 1, cache=PlanCache(algorithm))).features
    labels = torch.arange(len(out), device=out.device) % out.shape[1]
    torch.nn.functional.cross_entropy(out, labels).backward()
    grad = next(net.parameters()).grad
    assert grad is not None
    return (grad,)
