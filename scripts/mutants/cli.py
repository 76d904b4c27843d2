"""The command line of the mutation tests."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from . import BACKENDS, MUTANTS, Mutant
from .command import BuildError, TestRun
from .library import LibraryBuild, has_gpu
from .library import failed_test as failed_pytest
from .native import NativeBuild, levels_here, suite_of
from .native import failed_test as failed_gtest
from .record import LEVELS
from .report import BROKEN, CAUGHT, NOT_RUN, SURVIVED, Result, Session, machine_in_words, summary, write_docs
from .tree import ROOT, BusyError, Tree, exclusive

LIBRARY_BACKENDS = ("gradient", "cuda")
DOCS_FROM = "write docs/mutants.md from such files, of one or several machines, and stop"


class Runner:
    """Runs mutants and remembers what became of them."""

    def __init__(self, tree: Tree, build_dir: Path) -> None:
        self.tree = tree
        self.native = NativeBuild(tree)
        self.library = LibraryBuild(tree, build_dir)
        self.gpu = has_gpu()
        self.missing = self._missing()

    def _missing(self) -> dict[str, str]:
        """Backends that cannot run here, and why."""
        here = levels_here()
        absent = [level for level in LEVELS if level not in here]
        missing = {name: f"the processor has no {level}" for level in absent for name in (level, f"conv-{level}")}
        if not self.gpu:
            missing["cuda"] = "no CUDA device"
        elif not self.library.has_cuda():
            missing["cuda"] = "built without CUDA"
        return missing

    def check(self, backend: str) -> TestRun:
        """The backend's tests without a mutant."""
        return (self.library if backend in LIBRARY_BACKENDS else self.native).check(backend)

    def run(self, mutant: Mutant, backend: str) -> Result:
        """One mutant on one backend."""
        if backend in self.missing:
            return Result(mutant.name, backend, NOT_RUN, self.missing[backend], 0.0)
        started = time.monotonic()
        try:
            outcome, by = self._outcome(mutant, backend)
        except BuildError as error:
            outcome, by = BROKEN, str(error)
        return Result(mutant.name, backend, outcome, by, time.monotonic() - started)

    def _outcome(self, mutant: Mutant, backend: str) -> tuple[str, str]:
        with self.tree.mutated(mutant):
            if backend in LIBRARY_BACKENDS:
                run, name = self.library.test(backend, mutant.library_units()), failed_pytest
            else:
                run, name = self.native.test(backend), failed_gtest
        return (SURVIVED, "") if run.passed else (CAUGHT, name(run))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="mutants.py", description="Break the library on purpose; tests must notice.")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    parser.add_argument("--only", action="append", metavar="WORD", help="mutants whose name contains WORD; repeatable")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="these backends only; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time, each with a copy of the sources")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "dev", help="a build of the library")
    parser.add_argument("--results", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--write-docs", action="store_true", help="write docs/mutants.md")
    parser.add_argument("--docs-from", type=Path, nargs="+", metavar="FILE", help=DOCS_FROM)
    return parser.parse_args(arguments)


def command_of(options: argparse.Namespace) -> str:
    """The command for a choice of mutants."""
    words = [f"--only {word}" for word in options.only or ()] + [f"--backend {name}" for name in options.backend or ()]
    return " ".join(["python scripts/mutants.py", *words]) if words else "make mutants"


def chosen(options: argparse.Namespace) -> Iterator[tuple[Mutant, str]]:
    """The mutants that the options name, with each backend."""
    for mutant in MUTANTS:
        if options.only and not any(word in mutant.name for word in options.only):
            continue
        for backend in mutant.backends:
            if not options.backend or backend in options.backend:
                yield mutant, backend


def suites(backends: set[str], missing: dict[str, str]) -> dict[str, str]:
    """The sets of tests that backends need, each with one of them."""
    wanted = [backend for backend in BACKENDS if backend in backends and backend not in missing]
    return {backend if backend in LIBRARY_BACKENDS else suite_of(backend): backend for backend in wanted}


def unchanged_fails(runner: Runner, backends: set[str]) -> bool:
    """Whether a test fails without any mutant: then catching one would mean nothing."""
    for suite, backend in suites(backends, runner.missing).items():
        started = time.monotonic()
        run = runner.check(backend)
        seconds = time.monotonic() - started
        print(f"no mutant, tests of {suite}: {'pass' if run.passed else 'FAIL'} ({seconds:.0f} s)", flush=True)
        if not run.passed:
            print(run.output[-3000:])
            return True
    return False


def run_all(runners: list[Runner], pairs: list[tuple[Mutant, str]]) -> list[Result]:
    """Every mutant, each worker taking the next one, with a line for each; results in the order of the pairs."""
    idle: Queue[Runner] = Queue()
    for runner in runners:
        idle.put(runner)

    def run(pair: tuple[Mutant, str]) -> Result:
        runner = idle.get()
        try:
            return runner.run(*pair)
        finally:
            idle.put(runner)

    results = []
    with ThreadPoolExecutor(len(runners)) as pool:
        for number, result in enumerate(pool.map(run, pairs), 1):
            results.append(result)
            what = {CAUGHT: f"caught by {result.by}", SURVIVED: "SURVIVED", BROKEN: f"DOES NOT BUILD\n{result.by}"}
            line = what.get(result.outcome, f"{result.outcome}: {result.by}")
            name = f"{result.mutant}, {result.backend}"
            print(f"[{number:3}/{len(pairs)}] {name}: {line} ({result.seconds:.0f} s)", flush=True)
    return results


def run_session(options: argparse.Namespace, pairs: list[tuple[Mutant, str]]) -> Session | None:
    """The mutants' results; None, with a reason printed, where running them would mean nothing."""
    started = time.monotonic()
    trees = [Tree(worker) for worker in range(max(1, min(options.jobs, len(pairs))))]
    misfits = trees[0].misfits([mutant for mutant, _ in pairs])
    if misfits:
        print("\n".join(misfits))
        return None
    runners = [Runner(tree, options.build_dir.resolve()) for tree in trees]
    if unchanged_fails(runners[0], {backend for _, backend in pairs}):
        return None
    session = Session(command=command_of(options), machine=machine_in_words(runners[0].gpu))
    session.results = run_all(runners, pairs)
    session.seconds = time.monotonic() - started
    return session


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 where every mutant that can run here was caught."""
    options = parse(arguments)
    pairs = list(chosen(options))
    if options.list:
        for mutant, backend in pairs:
            print(f"{mutant.name:36} {backend:10} {mutant.breaks}")
        return 0
    if options.docs_from:
        write_docs([Session.read(path) for path in options.docs_from])
        return 0
    try:
        with exclusive():
            session = run_session(options, pairs)
    except (BuildError, BusyError) as error:
        print(error)
        return 1
    if session is None:
        return 1
    if options.results:
        session.write(options.results)
    if options.write_docs:
        write_docs([session])
    print(f"mutants: {summary(session.results)} ({session.seconds:.0f} s)")
    return int(any(result.outcome in (SURVIVED, BROKEN) for result in session.results))
