"""Command line: ``python -m benchmarks [--only P1] [--device cpu|cuda] [--quick] [--threads N] [--budget S]
[--json PATH]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import plots, report
from benchmarks.case import Context
from benchmarks.environment import describe_run
from benchmarks.limits import measure_limits
from benchmarks.registry import load_workloads, select
from benchmarks.results import merge, outcome_json
from benchmarks.timing import Schedule

ROOT = Path(__file__).resolve().parents[1]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Lacewing beside its peers, in one run.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="a workload and its parts; may repeat"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats: a smoke test, not a result")
    parser.add_argument("--threads", type=int, help="torch threads; default: torch's own choice")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for each row, once three repeats are done")
    parser.add_argument("--json", type=Path, metavar="PATH", help="result file; pages and plots go beside it")
    return parser.parse_args(arguments)


def command_line(options: argparse.Namespace) -> str:
    """The command without paths."""
    words = ["python -m benchmarks", *(f"--only {id}" for id in options.only), f"--device {options.device}"]
    words += ["--quick"] * options.quick
    words += [f"--threads {options.threads}"] * (options.threads is not None)
    if options.budget is not None:
        words.append(f"--budget {options.budget:g}")
    return " ".join(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen workloads; a quick run leaves docs/benchmarks alone."""
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device is available to torch", file=sys.stderr)
        return 2
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        chosen = select(load_workloads(), options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    folder = ROOT / "build" / "benchmarks" if options.quick else ROOT / "docs" / "benchmarks"
    path = options.json or folder / f"{options.device}.json"

    device = torch.device(options.device)
    header = describe_run(device, command_line(options))
    limits = measure_limits(device, options.quick)
    tell = lambda line: print(line, file=sys.stderr, flush=True)
    schedule = None if options.budget is None else Schedule(budget_s=options.budget)
    context = Context(device, options.quick, limits, tell, schedule)
    print(report.run_line(header), report.limits_line(limits), sep="\n", flush=True)
    for workload in chosen:
        context.tell(f"{workload.id}: {workload.title}")
        outcome = workload.run(context)
        texts = [report.as_text(table) for table in report.outcome_tables(workload, outcome)]
        print("", f"{workload.id}: {workload.title}", *texts, *report.outcome_lines(outcome), sep="\n", flush=True)
        merge(path, {workload.id: outcome_json(workload, outcome, header, limits)})
        images = plots.draw(workload, outcome, device.type, path.parent)
        page = path.parent / f"{workload.id.lower()}_{device.type}.md"
        page.write_text(report.markdown_page(workload, outcome, header, limits, images))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
