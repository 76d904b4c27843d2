"""Interleaved timing: A, B, A, B ... on fresh data, reported as medians with their spread."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Contender = Callable[[Any], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample per round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True)
class Schedule:
    """How often to measure: rounds stop after `repeats`, or after `budget_s` once `least_repeats` are done."""

    warmup: int = 2
    repeats: int = 15
    least_repeats: int = 3
    budget_s: float = 30.0
    sample_s: float = 0.02
    most_calls: int = 1000

    def calls_per_sample(self, seconds: float, rotation: int) -> int:
        """Calls that fill one sample, at least one per input set."""
        wanted = math.ceil(self.sample_s / max(seconds, 1e-9))
        return max(rotation, min(wanted, self.most_calls))


QUICK = Schedule(warmup=1, repeats=3, least_repeats=2, budget_s=2.0, sample_s=0.005, most_calls=50)


class Clock(Protocol):
    """Measures the seconds that one call of `work` takes."""

    def __call__(self, work: Callable[[], None]) -> float: ...


def cpu_clock(work: Callable[[], None]) -> float:
    """Wall time of the calling thread."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class CudaClock:
    """Device time between two events, with the stream held back until the host has queued the work.

    Work that outruns the hold-back is timed as it runs, launch gaps included.
    """

    MOST_HOLD_S = 0.05

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cycles_per_s = self._sleep_rate()

    def _sleep_rate(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        cycles = 10_000_000
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        end.record()
        torch.cuda.synchronize(self.device)
        return cycles / float(start.elapsed_time(end) * 1e-3)

    def __call__(self, work: Callable[[], None]) -> float:
        begin = time.perf_counter()
        work()
        enqueue_s = time.perf_counter() - begin
        torch.cuda.synchronize(self.device)
        hold_s = min(1.5 * enqueue_s, self.MOST_HOLD_S)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int(hold_s * self.cycles_per_s))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(start.elapsed_time(end) * 1e-3)


def make_clock(device: torch.device) -> Clock:
    """The clock that fits the device."""
    return CudaClock(device) if device.type == "cuda" else cpu_clock


def rotation_length(bytes_per_set: int, device: torch.device, most: int = 64) -> int:
    """Input sets to rotate among so that the GPU's L2 cannot hold what the last round left; 1 on the CPU."""
    if device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, min(most, math.ceil(2 * cache / max(bytes_per_set, 1))))


def interleave(
    contenders: Mapping[str, Contender],
    make_inputs: Callable[[int], Any],
    clock: Clock,
    schedule: Schedule,
    rotation: int = 1,
) -> dict[str, Timing]:
    """Times all contenders in turn, round after round; every round draws new inputs that all of them share."""
    sets = [make_inputs(seed) for seed in range(rotation)]
    calls = {name: _calibrate(run, sets, clock, schedule) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    spent = 0.0
    for number in range(1, schedule.repeats + 1):
        sets = [make_inputs(number * rotation + k) for k in range(rotation)]
        for name, run in contenders.items():
            seconds = _timed(run, sets, calls[name], clock)
            samples[name].append(seconds / calls[name])
            spent += seconds
        if number >= schedule.least_repeats and spent > schedule.budget_s:
            break
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def _calibrate(run: Contender, sets: Sequence[Any], clock: Clock, schedule: Schedule) -> int:
    """Warms up, and finds how many calls fill a sample."""
    seconds = 0.0
    for number in range(max(1, schedule.warmup)):
        seconds = _timed(run, [sets[number % len(sets)]], 1, clock)
        if seconds > schedule.budget_s / 10:
            break
    return schedule.calls_per_sample(seconds, len(sets))


def _timed(run: Contender, sets: Sequence[Any], calls: int, clock: Clock) -> float:
    def work() -> None:
        for number in range(calls):
            run(sets[number % len(sets)])

    enabled = gc.isenabled()
    gc.disable()
    try:
        return clock(work)
    finally:
        if enabled:
            gc.enable()
