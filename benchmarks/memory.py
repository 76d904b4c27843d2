"""Peak memory of one call, as torch's allocators count it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_of(changes: list[tuple[int, int]]) -> int:
    """The highest running total of (time, bytes) changes, in time order."""
    total = peak = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        total += change
        peak = max(peak, total)
    return peak


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Bytes that one call holds at its peak beyond what was there before it, its results included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    results = profiler.profiler.kineto_results if profiler.profiler else None
    if results is None:
        return 0
    events = [event for event in results.events() if event.name() == "[memory]"]
    return peak_of([(event.start_ns(), event.nbytes()) for event in events])


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The profiler logs each start and stop to stderr at every log level."""
    saved = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)
