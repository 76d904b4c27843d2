"""Growth tables: does the cost grow as the work does?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.case import OURS, Context
from benchmarks.limits import Work
from benchmarks.timing import Contender, Timing, interleave, make_clock, rotation_length


@dataclass(frozen=True)
class Point:
    """Time at one size, and the least time that the measured limits allow there."""

    size: int
    timing: Timing
    work: Work
    least_s: float


def fitted_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size) by least squares; nan with fewer than two points."""
    if len(sizes) < 2:
        return math.nan
    xs, ys = [math.log(s) for s in sizes], [math.log(v) for v in values]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    top = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return top / sum((x - x_mean) ** 2 for x in xs)


@dataclass(frozen=True)
class Growth:
    """Our time over one size, everything else fixed."""

    name: str
    mode: str
    axis: str
    fixed: str
    points: Sequence[Point]

    @property
    def exponent(self) -> float:
        """How time grows over the larger half of the sizes, where fixed costs no longer count."""
        tail = self.points[len(self.points) // 2 :] if len(self.points) > 3 else self.points
        return fitted_exponent([p.size for p in tail], [p.timing.median for p in tail])

    @property
    def work_exponent(self) -> float:
        """How the least possible time grows over the same sizes."""
        tail = self.points[len(self.points) // 2 :] if len(self.points) > 3 else self.points
        return fitted_exponent([p.size for p in tail], [p.least_s for p in tail])


def measure_point(size: int, run: Contender, make_inputs: Callable[[int], Any], work: Work, context: Context) -> Point:
    """Times our contender alone at one size, with fewer repeats than a row of the main table."""
    schedule = context.schedule
    fewer = replace(schedule, repeats=min(7, schedule.repeats), least_repeats=2, budget_s=schedule.budget_s / 10)
    timings = interleave(
        {OURS: run},
        make_inputs,
        make_clock(context.device),
        fewer,
        rotation_length(work.bytes, context.device),
    )
    return Point(size, timings[OURS], work, context.limits.seconds(work)[0])
