"""Tables for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.case import OURS, Row
from benchmarks.growth import Growth
from benchmarks.limits import Limits
from benchmarks.registry import Outcome, Workload

Table = list[list[str]]


def duration(seconds: float) -> str:
    """A time with three significant digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            value = seconds * factor
            digits = max(0, 2 - len(str(int(value))) + 1)
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def size_text(count: int) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def speed_table(id: str, rows: Sequence[Row]) -> Table:
    """Workload, ours, each peer with its ratio, fraction of the limit."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers))
    table = [["workload", "case", "mode", OURS, "+-"]]
    table[0] += [column for peer in peers for column in (peer, "ratio")] + ["of limit", "limit"]
    for row in rows:
        mine = row.timings[OURS]
        line = [id, row.name, row.mode, duration(mine.median), f"{mine.spread:.0%}"]
        for peer in peers:
            known = peer in row.timings
            line += [duration(row.timings[peer].median), f"{row.ratio(peer):.2f}x"] if known else ["-", "-"]
        table.append([*line, f"{row.fraction:.0%}", row.limit])
    return table


def memory_table(id: str, rows: Sequence[Row]) -> Table:
    """The largest error of each contender, and its peak memory beyond the inputs."""
    names = list(dict.fromkeys(name for row in rows for name in row.timings))
    table = [["workload", "case", "mode", *(f"error {n}" for n in names), *(f"peak {n}" for n in names)]]
    for row in rows:
        errors = [f"{max(row.errors[n]):.1e}" if n in row.errors else "-" for n in names]
        peaks = [size_text(row.peaks[n]) if n in row.peaks else "-" for n in names]
        table.append([id, row.name, row.mode, *errors, *peaks])
    return table


def growth_tables(growths: Sequence[Growth]) -> list[Table]:
    """One table per axis and mode: time at each size, and the exponents of time and of work."""
    tables: list[Table] = []
    for key in dict.fromkeys((g.axis, g.mode) for g in growths):
        group = [g for g in growths if (g.axis, g.mode) == key]
        sizes = [p.size for p in group[0].points]
        table = [[f"{key[0]} grows, {key[1]}", "fixed", *(f"{s:,}" for s in sizes), "time ~", "work ~"]]
        for g in group:
            times = [duration(p.timing.median) for p in g.points]
            exponents = [f"{key[0]}^{e:.2f}" for e in (g.exponent, g.work_exponent)]
            table.append([g.name, g.fixed, *times, *exponents])
        tables.append(table)
    return tables


def as_text(table: Table) -> str:
    """Aligned columns, the first three to the left."""
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if k < 3 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]
    return "\n".join([lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])])


def as_markdown(table: Table) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([lines[0], "|" + " --- |" * len(table[0]), *lines[1:]])


def limits_line(limits: Limits) -> str:
    """The measured limits in words."""
    copy, rate = limits.copy_bytes_per_s / 1e9, limits.flops_per_s / 1e9
    return f"measured limits: copy {copy:,.1f} GB/s (read + write), fp32 matmul {rate:,.0f} GFLOP/s"


def outcome_tables(workload: Workload, outcome: Outcome) -> list[Table]:
    """All tables of one workload."""
    tables: list[Table] = []
    if outcome.rows:
        tables += [speed_table(workload.id, outcome.rows), memory_table(workload.id, outcome.rows)]
    return tables + growth_tables(outcome.growths)


def outcome_lines(outcome: Outcome) -> list[str]:
    """Headline numbers, notes and missing peers."""
    lines = [
        f"{name}: {value:.2e}" if value < 1e-2 else f"{name}: {value:.2f}" for name, value in outcome.summary.items()
    ]
    lines += outcome.notes
    for note in dict.fromkeys(note for row in outcome.rows for note in row.notes):
        rows = [f"{row.name} {row.mode}" for row in outcome.rows if note in row.notes]
        lines.append(f"{note}: {', '.join(rows)}")
    return lines + [f"skipped: {reason}" for reason in outcome.skipped]


def run_line(header: dict[str, Any]) -> str:
    """Date, device, versions and command in one line."""
    return (
        f"{header['date']}, {header['device']}, torch {header['torch']}, "
        f"{header['threads']} threads, `{header['command']}`"
    )


def markdown_page(
    workload: Workload, outcome: Outcome, header: dict[str, Any], limits: Limits, images: Sequence[str]
) -> str:
    """One workload's page for docs/benchmarks."""
    parts = [f"# {workload.id}: {workload.title}", run_line(header), limits_line(limits)]
    parts += [as_markdown(table) for table in outcome_tables(workload, outcome)]
    parts.append("\n".join(f"- {line}" for line in outcome_lines(outcome)))
    parts += [f"![{workload.id}]({image})" for image in images]
    return "\n\n".join(part for part in parts if part) + "\n"
