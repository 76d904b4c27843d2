"""The memory of large results on the CPU, which is kept for the next ones."""

from __future__ import annotations

from ._library import ops


def kept_memory() -> int:
    """The bytes that are kept now, in use by nobody."""
    held: int = ops.kept_memory()
    return held


def get_kept_memory_limit() -> int:
    """The most bytes that are kept."""
    limit: int = ops.get_kept_memory_limit()
    return limit


def set_kept_memory_limit(limit: int) -> None:
    """Sets the most bytes that are kept, for the process.

    Memory from the operating system comes cleared, page by page: for a large result that can cost more than what is
    computed. So results and workspaces on the CPU of 1 MiB or more that were freed are kept, up to this limit, and
    handed out again. A process starts with a thirty-second of the machine's memory, 1 GiB at most, or with what the
    environment variable ``LACEWING_KEPT_MEMORY`` says in bytes; 0 frees everything and keeps nothing.
    """
    ops.set_kept_memory_limit(limit)
