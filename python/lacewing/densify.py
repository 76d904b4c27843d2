"""When ops may turn sparse tensors into strided ones by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._library import ops

_DEFAULT_WARN = 64 << 20
_DEFAULT_RAISE = 4 << 30
_NO_LIMIT = 2**63 - 1


def _limits(mode: str, limit: int | None) -> list[int]:
    if limit is not None and not hasattr(limit, "__index__"):
        raise TypeError(f"[lacewing.densify_policy] limit must be a number of bytes, not {limit!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"[lacewing.densify_policy] limit must not be negative, not {limit}")
    if mode == "allow":
        return [_NO_LIMIT, _NO_LIMIT]
    if mode == "warn":
        bytes_ = _DEFAULT_WARN if limit is None else limit
        return [bytes_, max(bytes_, _DEFAULT_RAISE)]
    if mode == "raise":
        bytes_ = _DEFAULT_RAISE if limit is None else limit
        return [bytes_, bytes_]
    raise ValueError(f'[lacewing.densify_policy] mode must be "allow", "warn" or "raise", not "{mode}"')


def set_densify_policy(mode: str, limit: int | None = None) -> None:
    """Chooses, for the process, what happens when an op has to densify above ``limit`` bytes.

    ``"warn"`` warns above the limit (64 MiB) and raises above 4 GiB or the limit, ``"raise"`` raises above it (4 GiB),
    ``"allow"`` does neither. ``LACEWING_DENSIFY=raise:16MiB`` gives the policy that a process starts with.
    """
    ops.set_densify_policy(_limits(mode, limit), False)


@contextmanager
def densify_policy(mode: str, limit: int | None = None) -> Iterator[None]:
    """``set_densify_policy`` for a ``with`` block, in this thread.

    >>> with lacewing.densify_policy("raise", 16 << 20):
    ...     y = torch.softmax(s, 1)
    """
    previous = ops.densify_policy() if ops.has_scoped_densify_policy() else []
    ops.set_densify_policy(_limits(mode, limit), True)
    try:
        yield
    finally:
        ops.set_densify_policy(previous, True)


@contextmanager
def record_densified() -> Iterator[list[str]]:
    """Lists the ops that densify in a ``with`` block, in this thread; the list is filled when the block ends."""
    recorded: list[str] = []
    ops.record_densified(True)
    try:
        yield recorded
    finally:
        recorded.extend(ops.record_densified(False))
