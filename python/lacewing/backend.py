"""The choice between the tuned kernels and the serial reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._library import ops


def get_backend() -> str:
    """The backend in use: ``"automatic"`` or ``"reference"``."""
    name: str = ops.get_backend()
    return name


def set_backend(name: str) -> None:
    """Chooses the backend for the process.

    ``"automatic"`` runs the kernels of the tensors' device; ``"reference"`` runs the serial oracle, on the host. The
    environment variable ``LACEWING_BACKEND`` sets the choice that a process starts with.
    """
    ops.set_backend(name)


def cpu_isa() -> str:
    """The ISA level of the CPU kernels: ``"baseline"``, ``"avx2"`` or ``"avx512"``.

    The best that the processor has, or a lower one that the environment variable ``LACEWING_CPU_ISA`` named when the
    process started.
    """
    level: str = ops.cpu_isa()
    return level


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Chooses the backend for a ``with`` block.

    >>> with lacewing.backend("reference"):
    ...     z = lacewing.sparse_mul(x, y, info)
    """
    previous = get_backend()
    set_backend(name)
    try:
        yield
    finally:
        set_backend(previous)
