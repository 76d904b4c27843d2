"""C1's baseline beside the same algorithm written by hand: how honest it is.

By hand: rows gathered and added by plain loops that are compiled for this processor, torch's mm for each tap, in
buffers and a result that are made once.

LACEWING_SCANS=<folder of scans> PYTHONPATH=python python -m benchmarks.conv_baseline
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.checking import max_relative_error
from benchmarks.clouds import clouds
from benchmarks.peers import native
from benchmarks.timing import Schedule, cpu_clock, interleave
from benchmarks.workloads.c1_conv import BASELINE, CHANNELS, TOLERANCE
from lacewing.conv import ConvolutionPlan, sparse_conv

BY_HAND = "by hand"
CENTRE = 13
SCHEDULE = Schedule(repeats=25, least_repeats=7, budget_s=4.0)

Inputs = tuple[Tensor, Tensor]


def by_hand(plan: ConvolutionPlan, channels: tuple[int, int]) -> Callable[[Inputs], Tensor]:
    """The layer of features and weight (27, 1, Cin, Cout); every call writes the same result."""
    library = native.library()
    if library is None:
        raise RuntimeError("no C++ compiler was found")
    pairs = [tuple(rows.int().contiguous() for rows in plan.pairs(tap)) for tap in range(plan.taps)]
    voxels = len(plan.source)
    gathered, product, result = (torch.empty(voxels, width) for width in (channels[0], channels[1], channels[1]))

    def move(name: str, source: Tensor, target: Tensor, index: Tensor) -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (source, target, index)]
        getattr(library, name)(*pointers, ctypes.c_int64(len(index)), ctypes.c_int64(source.shape[1]))

    def run(inputs: Inputs) -> Tensor:
        features, weight = inputs
        torch.mm(features, weight[CENTRE, 0], out=result)
        for tap, (source, target) in enumerate(pairs):
            if tap == CENTRE or len(source) == 0:
                continue
            left, right = gathered[: len(source)], product[: len(source)]
            move("gather_rows", features, left, source)
            torch.mm(left, weight[tap, 0], out=right)
            move("scatter_add_rows", right, result, target)
        return result

    return run


def compare(name: str, plan: ConvolutionPlan, channels: tuple[int, int]) -> str:
    """One line: both times and their ratio."""
    cin, cout = channels

    def make_inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(len(plan.source), cin, generator=generator)
        return features, torch.randn(plan.taps, 1, cin, cout, generator=generator) * 0.1

    contenders = {BASELINE: lambda i: sparse_conv(*i, plan), BY_HAND: by_hand(plan, channels)}
    error = max_relative_error(*(run(make_inputs(0)) for run in contenders.values()))
    if error > TOLERANCE:
        raise RuntimeError(f"{name} {cin}->{cout}: the two differ by {error:.1e}")
    times = interleave(contenders, make_inputs, cpu_clock, SCHEDULE)
    ours, theirs = times[BASELINE].median, times[BY_HAND].median
    return (
        f"{name} {cin}->{cout}: {BASELINE} {ours * 1e3:.3g} ms, {BY_HAND} {theirs * 1e3:.3g} ms: "
        f"{ours / theirs:.2f} of its time"
    )


def main() -> None:
    """Prints a line for each scan and layer."""
    for name, voxels in clouds(torch.device("cpu")).items():
        plan = ConvolutionPlan.build(voxels, 3).with_algorithm("gather_gemm_scatter")
        for channels in CHANNELS:
            print(compare(name, plan, channels), flush=True)


if __name__ == "__main__":
    main()
