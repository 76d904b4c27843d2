"""The list of workloads: one module each under benchmarks/workloads, registered by a decorator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.case import Context, Row
from benchmarks.growth import Growth


@dataclass
class Outcome:
    """What one workload found; `summary` holds its headline numbers, `skipped` the peers that were missing."""

    rows: list[Row] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Workload:
    """A named benchmark; `P1-infos` belongs to `P1`."""

    id: str
    title: str
    run: Callable[[Context], Outcome]


_WORKLOADS: dict[str, Workload] = {}


def workload(id: str, title: str) -> Callable[[Callable[[Context], Outcome]], Callable[[Context], Outcome]]:
    """Registers the decorated function under `id`."""

    def register(run: Callable[[Context], Outcome]) -> Callable[[Context], Outcome]:
        if id in _WORKLOADS:
            raise ValueError(f"workload {id} is registered twice")
        _WORKLOADS[id] = Workload(id, title, run)
        return run

    return register


def load_workloads() -> dict[str, Workload]:
    """Imports every module of benchmarks.workloads and returns what they registered, by id."""
    package = importlib.import_module("benchmarks.workloads")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return {id: _WORKLOADS[id] for id in sorted(_WORKLOADS)}


def select(workloads: dict[str, Workload], only: Sequence[str]) -> list[Workload]:
    """The named workloads and their parts (`P1` takes `P1-infos` along), or all where none is named."""
    chosen = []
    for wanted in only:
        found = [w for id, w in workloads.items() if id == wanted or id.startswith(f"{wanted}-")]
        if not found:
            raise ValueError(f"no workload is called {wanted}; there are {', '.join(workloads)}")
        chosen += [w for w in found if w not in chosen]
    return chosen or list(workloads.values())
