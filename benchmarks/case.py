"""One line of the table: check, measure memory, time, and compare with the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.checking import check_contenders
from benchmarks.limits import Limits, Work
from benchmarks.memory import peak_bytes
from benchmarks.timing import QUICK, Contender, Schedule, Timing, interleave, make_clock, rotation_length

OURS = "lacewing"


@dataclass(frozen=True)
class Context:
    """What a run knows: the device, whether to be quick, the measured limits, and how to tell and time."""

    device: torch.device
    quick: bool
    limits: Limits
    tell: Callable[[str], None] = print
    own_schedule: Schedule | None = None

    @property
    def schedule(self) -> Schedule:
        return self.own_schedule or (QUICK if self.quick else Schedule())


@dataclass(frozen=True)
class Case:
    """A computation that several contenders do; the first contender is ours.

    `make_inputs` takes a seed; `oracle` gives the fp64 results, one tolerance each; `readers` turn a contender's
    result into tensors where it is something else.
    """

    name: str
    mode: str
    contenders: Mapping[str, Contender]
    make_inputs: Callable[[int], Any]
    oracle: Callable[[Any], Sequence[Tensor]]
    tolerances: Sequence[float]
    work: Work
    notes: tuple[str, ...] = ()
    readers: Mapping[str, Callable[[Any], Sequence[Tensor]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """The measured case. Errors are maxima relative to the oracle's maximum, peaks are bytes beyond the inputs."""

    name: str
    mode: str
    timings: Mapping[str, Timing]
    errors: Mapping[str, Sequence[float]]
    peaks: Mapping[str, int]
    work: Work
    limit: str
    fraction: float
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.timings if name != OURS]

    def ratio(self, peer: str) -> float:
        """How many times faster ours is, from the medians."""
        return self.timings[peer].median / self.timings[OURS].median


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers; nan for none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def run_case(case: Case, context: Context) -> Row:
    """Measures one case; a wrong result stops the run before any timing."""
    inputs = case.make_inputs(0)
    errors = check_contenders(case.contenders, inputs, case.oracle, case.tolerances, case.readers)
    peaks = {name: peak_bytes(partial(run, inputs), context.device) for name, run in case.contenders.items()}
    del inputs
    timings = interleave(
        case.contenders,
        case.make_inputs,
        make_clock(context.device),
        context.schedule,
        rotation_length(case.work.bytes, context.device),
    )
    least, limit = context.limits.seconds(case.work)
    fraction = least / timings[OURS].median
    row = Row(case.name, case.mode, timings, errors, peaks, case.work, limit, fraction, case.notes)
    ratios = ", ".join(f"{row.ratio(peer):.2f}x {peer}" for peer in row.peers)
    context.tell(f"  {row.name} {row.mode}: {timings[OURS].median * 1e3:.3g} ms, {ratios}")
    return row
