"""The table of results, on the terminal and in docs/mutants.md."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from . import MUTANTS
from .native import levels_here
from .tree import ROOT

DOCS = ROOT / "docs" / "mutants.md"

CAUGHT = "caught"
SURVIVED = "survived"
BROKEN = "does not build"
NOT_RUN = "not run here"


@dataclass(frozen=True)
class Result:
    """What became of a mutant on one backend; `by` is the test that caught it, or why it was not run."""

    mutant: str
    backend: str
    outcome: str
    by: str
    seconds: float


@dataclass
class Session:
    """The results of one run of the script, and where they were measured."""

    day: str = field(default_factory=lambda: date.today().isoformat())
    command: str = "make mutants"
    machine: str = field(default_factory=lambda: machine_in_words(gpu=False))
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """To a file that `read` understands."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Session:
        """From a file."""
        values = json.loads(path.read_text())
        return cls(**{**values, "results": [Result(**result) for result in values["results"]]})


def machine_in_words(gpu: bool) -> str:
    """The processor, without the machine's name."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    model = found.group(1) if found else platform.machine()
    levels = ", ".join(levels_here())
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model} ({levels}), {'a CUDA device' if gpu else 'no CUDA device'}"


def merged(sessions: list[Session]) -> list[Result]:
    """One result for each mutant and backend, in the order of the list: the last that ran."""
    best: dict[tuple[str, str], Result] = {}
    for session in sessions:
        for result in session.results:
            key = (result.mutant, result.backend)
            if key not in best or result.outcome != NOT_RUN:
                best[key] = result
    order = [(mutant.name, backend) for mutant in MUTANTS for backend in mutant.backends]
    return [best[key] for key in order if key in best]


def summary(results: list[Result]) -> str:
    """One line of counts."""
    counts = {outcome: sum(r.outcome == outcome for r in results) for outcome in (CAUGHT, SURVIVED, BROKEN, NOT_RUN)}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "nothing to run"


def table(results: list[Result]) -> str:
    """A Markdown table."""
    breaks = {mutant.name: mutant.breaks for mutant in MUTANTS}
    lines = ["| mutant | what it breaks | backend | outcome | seconds |", "| --- | --- | --- | --- | ---: |"]
    for r in results:
        outcome = {CAUGHT: f"`{r.by}`", NOT_RUN: f"{NOT_RUN}: {r.by}"}.get(r.outcome, f"**{r.outcome}**")
        seconds = "" if r.outcome == NOT_RUN else f"{r.seconds:.0f}"
        lines.append(f"| {r.mutant} | {breaks.get(r.mutant, '')} | {r.backend} | {outcome} | {seconds} |")
    return "\n".join(lines)


DOCS_TEXT = """\
# Mutants

A mutant is a small wrong change to the library: a conjugate dropped, `index1` and `index2` exchanged, a segment
shifted by one, `scale` forgotten in one gradient. `make mutants` makes these changes one at a time, in a copy of the
sources, and expects the tests to fail: what they cannot see, they do not test. The list is in `scripts/mutants/`.

    make mutants                                            # everything that this machine can run
    .venv/bin/python scripts/mutants.py --list              # the mutants
    .venv/bin/python scripts/mutants.py --only tail         # those whose name contains a word
    .venv/bin/python scripts/mutants.py --backend avx2      # those of one backend
    .venv/bin/python scripts/mutants.py --jobs 8            # several at a time, where there are cores
    .venv/bin/python scripts/mutants.py --write-docs        # everything, and this page anew
    .venv/bin/python scripts/mutants.py --results a.json    # on each of several machines, and then
    .venv/bin/python scripts/mutants.py --docs-from a.json b.json

| backend | what is built for a mutant | tests |
| --- | --- | --- |
| reference, cpu, baseline, avx2, avx512 | the object of that backend, linked to the others; no torch | kernels |
| sparse-matmul | as the first; no torch | kernels |
| structure | the object of the structure; no torch | structure |
| conv-map, conv-reference, conv-baseline, conv-avx2, conv-avx512, conv-pool | as the first; no torch | conv |
| gradient | the changed sources, linked to the objects of `build/dev` | Python |
| cuda | the same, where torch sees a CUDA device; listed as not run elsewhere | Python, on the device |

`cpu` is what all instruction sets of the CPU kernels share. The tests are those of `tests/cpp/kernels`,
`tests/cpp/structure` and the torch-free ones of `tests/cpp/conv`, and a quick selection of `tests/python` (see
`scripts/mutants/library.py`). Before any mutant, the same tests must pass without one.

The script fails where a mutant survives, does not compile, or where its old text does not stand in its file exactly
once. The last of these `tests/python/test_mutants.py` checks in every run of the tests.

## Results

{sessions}

{summary}. The column "outcome" names the first test that failed. Of several runs above, a later one replaces the rows
that it measured anew.

{table}
"""


def write_docs(sessions: list[Session]) -> None:
    """docs/mutants.md."""
    results = merged(sessions)
    lines = [f"- {s.day}, `{s.command}`, {s.machine}: {s.seconds / 60:.0f} minutes" for s in sessions]
    text = DOCS_TEXT.format(sessions="\n".join(lines), summary=summary(results).capitalize(), table=table(results))
    DOCS.write_text(text)
