"""Results as JSON: one file per device kind, one entry per workload, each with the run that made it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.case import Row
from benchmarks.growth import Growth
from benchmarks.limits import Limits
from benchmarks.registry import Outcome, Workload
from benchmarks.timing import Timing


def timing_json(timing: Timing) -> dict[str, Any]:
    """Median, spread and number of samples."""
    return {"median_s": timing.median, "spread": timing.spread, "samples": len(timing.samples)}


def row_json(row: Row) -> dict[str, Any]:
    """A row with everything that the table derives from it."""
    return {
        "name": row.name,
        "mode": row.mode,
        "timings": {name: timing_json(timing) for name, timing in row.timings.items()},
        "ratios": {peer: row.ratio(peer) for peer in row.peers},
        "errors": {name: list(errors) for name, errors in row.errors.items()},
        "peak_bytes": dict(row.peaks),
        "work": asdict(row.work),
        "limit": row.limit,
        "fraction_of_limit": row.fraction,
        "notes": list(row.notes),
    }


def growth_json(growth: Growth) -> dict[str, Any]:
    """A growth table."""
    return {
        "name": growth.name,
        "mode": growth.mode,
        "axis": growth.axis,
        "fixed": growth.fixed,
        "exponent": growth.exponent,
        "work_exponent": growth.work_exponent,
        "points": [
            {"size": p.size, **timing_json(p.timing), "work": asdict(p.work), "least_s": p.least_s}
            for p in growth.points
        ],
    }


def outcome_json(workload: Workload, outcome: Outcome, header: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """One workload's entry."""
    return {
        "title": workload.title,
        "run": header,
        "limits": asdict(limits),
        "rows": [row_json(row) for row in outcome.rows],
        "growth": [growth_json(growth) for growth in outcome.growths],
        "summary": outcome.summary,
        "notes": outcome.notes,
        "skipped": outcome.skipped,
    }


def merge(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Writes the entries into the file, keeping those of workloads that this run did not touch."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    known.update(entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
