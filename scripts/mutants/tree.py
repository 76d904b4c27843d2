"""A copy of the sources that mutants are applied to, one at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .record import Mutant

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "mutants"


class BusyError(Exception):
    """Another run uses build/mutants."""


@contextmanager
def exclusive() -> Iterator[None]:
    """Keeps other runs off build/mutants."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("another run of the mutants is using build/mutants") from None
        yield


class Tree:
    """src/, include/ and tests/cpp/ under a folder of build/mutants, which a worker has to itself."""

    def __init__(self, worker: int = 0) -> None:
        self.first = worker == 0
        self.work = WORK / f"worker{worker}"
        self.root = self.work / "tree"
        shutil.rmtree(self.root, ignore_errors=True)
        for folder in ("src", "include", "tests/cpp"):
            shutil.copytree(ROOT / folder, self.root / folder)

    def misfits(self, mutants: list[Mutant]) -> list[str]:
        """A sentence for each mutant whose old text does not stand in its file exactly once."""
        return [
            f"{mutant.name}: its old text stands {count} times in {mutant.file}"
            for mutant in mutants
            if (count := mutant.matches(self.root)) != 1
        ]

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The tree with a mutant applied, and as it was afterwards."""
        path = self.root / mutant.file
        text = path.read_text()
        path.write_text(mutant.applied(text))
        try:
            yield
        finally:
            path.write_text(text)
