"""A fixed count of fuzzed calls, and what the fuzzer itself notices."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing.draw import Draw  # noqa: E402
from fuzzing.processes import Limits, complaint, run_cases  # noqa: E402


def test_calls_answer_or_say_one_sentence() -> None:
    """`make fuzz` goes on from where these seeds end."""
    command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--count", "150"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert "150 cases of each of 8 targets" in run.stdout


def _crash(draw: Draw) -> None:
    os.abort()


def _hang(draw: Draw) -> None:
    time.sleep(60)


def _take_memory(draw: Draw) -> None:
    bytearray(8 << 30)


def _internal(draw: Draw) -> None:
    raise RuntimeError("vector::_M_default_append")


def _wrong_kind(draw: Draw) -> None:
    raise AttributeError("'NoneType' object has no attribute 'shape'")


def _sentence(draw: Draw) -> None:
    raise ValueError("[lacewing.sparse_mul] index1[17] = 42 is out of range")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (_crash, "a crash (SIGABRT)"),
        (_hang, "no end after 0.5 s"),
        (_take_memory, "not a sentence for users: MemoryError"),
        (_internal, "not a sentence for users: RuntimeError: vector::"),
        (_wrong_kind, "AttributeError: 'NoneType'"),
    ],
)
def test_each_kind_of_failure_is_found_and_the_next_case_runs(target, what: str) -> None:
    found = list(run_cases("target", target, range(2), Limits(seconds_per_case=0.5)))

    assert [f.seed for f in found] == [0, 1]
    assert all(f.what.startswith(what) for f in found)


def test_a_sentence_is_an_answer() -> None:
    assert list(run_cases("target", _sentence, range(3))) == []
    assert complaint(RuntimeError("")) is not None


def test_a_seed_draws_the_same_arguments() -> None:
    first, again = Draw(7), Draw(7)

    assert [first.size() for _ in range(50)] == [again.size() for _ in range(50)]
    assert [str(first.values([2, 3])) for _ in range(20)] == [str(again.values([2, 3])) for _ in range(20)]
