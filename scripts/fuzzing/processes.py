"""Cases run in child processes: one that crashes, hangs or takes all memory is found, and the next one goes on."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import select
import signal
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from .draw import Draw

Target = Callable[[Draw], None]

# What a library says to itself, and Python about a bug of the caller's callee.
INTERNAL = re.compile(
    r"INTERNAL ASSERT|please report|bad_alloc|basic_string|vector::|_M_|map::at|stoi|stoul|unordered_map|"
    r"no fallback function|no fake impl|Could not run|is not implemented for|nullptr|bad optional|bad variant|"
    r"Unknown custom class|codec can't decode|Expected a value of type|__torch__\.|data is not allocated yet",
)
EXPECTED = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, OSError, OverflowError, MemoryError)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A case that neither answered nor said a sentence."""

    target: str
    seed: int
    what: str

    def __str__(self) -> str:
        return f"{self.target} {self.seed}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Limits:
    seconds_per_case: float = 20.0
    memory: int = 4 << 30  # beyond what the process has when it starts


def complaint(error: BaseException) -> str | None:
    """What is wrong with an error as an answer to a user; None: nothing."""
    first = (str(error).splitlines() or [""])[0]
    if not isinstance(error, EXPECTED):
        return f"{type(error).__name__}: {first}"
    if isinstance(error, MemoryError) or not str(error).strip() or INTERNAL.search(str(error)):
        return f"not a sentence for users: {type(error).__name__}: {first}"
    return None


def run_case(target: Target, seed: int) -> str | None:
    """What is wrong with a case; None: nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target(Draw(seed))
    except Exception as error:
        wrong = complaint(error)
        frames = traceback.extract_tb(error.__traceback__)
        return None if wrong is None else f"{wrong}  (at {frames[-1].filename}:{frames[-1].lineno})"
    return None


def _child(name: str, target: Target, seeds: range, out: int, limits: Limits) -> None:
    """Writes each seed before its case, and after it what was wrong."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    for seed in seeds:
        os.write(out, struct.pack("<qi", seed, -1))
        wrong = run_case(target, seed)
        if wrong is not None:
            text = wrong.encode()[:2000]
            os.write(out, struct.pack("<qi", seed, len(text)) + text)


def run_cases(name: str, target: Target, seeds: range, limits: Limits | None = None) -> Iterator[Finding]:
    """Runs the cases in a child, and those after one that ended it in another child."""
    limits = limits or Limits()
    while len(seeds):
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(readable)
                _child(name, target, seeds, writable, limits)
                status = 0
            finally:
                os._exit(status)
        os.close(writable)
        at = seeds.start
        ended = None
        pending = b""
        deadline = time.monotonic() + limits.seconds_per_case
        with open(readable, "rb", buffering=0) as pipe:
            while True:
                if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    os.kill(child, signal.SIGKILL)
                    ended = f"no end after {limits.seconds_per_case:g} s"
                    break
                received = pipe.read(65536)
                if not received:
                    break
                pending += received
                while len(pending) >= 12:
                    seed, length = struct.unpack_from("<qi", pending)
                    if length >= 0:
                        if len(pending) < 12 + length:
                            break
                        yield Finding(name, seed, pending[12 : 12 + length].decode(errors="replace"))
                    else:
                        at = seed
                        deadline = time.monotonic() + limits.seconds_per_case
                    pending = pending[12 + max(length, 0) :]
        _, status = os.waitpid(child, 0)
        if ended is None and status == 0:
            return
        if ended is None:
            code = os.waitstatus_to_exitcode(status)
            ended = f"a crash ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        yield Finding(name, at, ended)
        seeds = range(at + 1, seeds.stop)
