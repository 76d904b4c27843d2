"""Running compilers and tests."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 300
"""Seconds after which a command counts as hanging."""

HANGING = 124


class BuildError(Exception):
    """A command of a build failed: the mutant, or the tree itself, does not compile."""


def build(command: list[str], cwd: Path) -> None:
    """Runs a compiler or linker."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr[-3000:]}")


@dataclass(frozen=True)
class TestRun:
    """How a run of tests ended. A crash has a negative status."""

    status: int
    output: str

    @property
    def passed(self) -> bool:
        return self.status == 0


def run_tests(command: list[str], cwd: Path, environment: dict[str, str]) -> TestRun:
    """Runs tests to their end, or to the time limit."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TestRun(HANGING, "")
    return TestRun(done.returncode, done.stdout + done.stderr)


def describe_end(run: TestRun) -> str:
    """How tests ended that name no failure."""
    return "the time limit" if run.status == HANGING else f"a crash (status {run.status})"
