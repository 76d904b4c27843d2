"""C3: MinkUNet18 on a scan, inference and training step."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.clouds import clouds
from benchmarks.limits import Work
from benchmarks.registry import Outcome, workload
from lacewing.conv import PlanCache, VoxelTensor

BASELINE = "gather-GEMM-scatter"


@workload("C3", "MinkUNet18 on a scan, plans included")
def run(context: Context) -> Outcome:
    """The same network and weights with the two algorithms; plans are built anew in every call."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    from networks.minkunet import minkunet18

    torch.manual_seed(0)
    net = minkunet18().to(context.device)
    name, voxels = next(iter(clouds(context.device, context.quick).items()))
    outcome = Outcome(notes=[f"{name}: {len(voxels):,} voxels, 4 input channels, 20 classes, fp32"])
    for mode, step, tolerance in (("inference", _infer, 1e-3), ("training step", _train, 1e-2)):
        case = Case(
            name=name,
            mode=mode,
            contenders={
                OURS: partial(step, net, "automatic", voxels),
                BASELINE: partial(step, net, "gather_gemm_scatter", voxels),
            },
            make_inputs=partial(_features, len(voxels), context.device),
            oracle=partial(step, net, "gather_gemm_scatter", voxels),
            tolerances=[tolerance],
            work=Work(4 * len(voxels) * 24, 0),
        )
        row = run_case(case, context)
        outcome.rows.append(row)
        outcome.summary[f"{mode}: ratio to {BASELINE}"] = row.ratio(BASELINE)
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
