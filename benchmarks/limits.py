"""What this machine can do at best: measured copy bandwidth and multiply-add rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.timing import make_clock


@dataclass(frozen=True)
class Work:
    """What a computation cannot avoid: bytes moved (each input and output once) and floating-point operations."""

    bytes: int
    flops: int

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Limits:
    """Measured rates of the device: bytes read plus written per second, and fp32 operations per second."""

    copy_bytes_per_s: float
    flops_per_s: float

    def seconds(self, work: Work) -> tuple[float, str]:
        """The least time for `work`, and which of the two limits sets it."""
        copying, computing = work.bytes / self.copy_bytes_per_s, work.flops / self.flops_per_s
        return (copying, "copy") if copying >= computing else (computing, "fma")


def measure_limits(device: torch.device, quick: bool = False) -> Limits:
    """Best of several: a copy between buffers far beyond any cache, and a large fp32 matmul."""
    return Limits(_copy_rate(device, quick), _matmul_rate(device, quick))


def _copy_rate(device: torch.device, quick: bool) -> float:
    size = (4 << 30) if device.type == "cuda" else (512 << 20)
    source = torch.ones((size >> 2 if quick else size) // 4, device=device)
    target = torch.empty_like(source)
    clock = make_clock(device)
    clock(lambda: _discard(target.copy_(source)))
    best = min(clock(lambda: _discard(target.copy_(source))) for _ in range(3 if quick else 9))
    return 2 * source.nbytes / best


def _matmul_rate(device: torch.device, quick: bool) -> float:
    size = 8192 if device.type == "cuda" else (1024 if quick else 2048)
    left = torch.randn(size, size, device=device)
    right = torch.randn(size, size, device=device)
    out = torch.empty_like(left)
    clock = make_clock(device)
    clock(lambda: _discard(torch.mm(left, right, out=out)))
    best = min(clock(lambda: _discard(torch.mm(left, right, out=out))) for _ in range(3 if quick else 9))
    return 2 * size**3 / best


def _discard(_: torch.Tensor) -> None:
    """Turns a tensor expression into a statement."""
