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
