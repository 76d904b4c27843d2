"""Builders of sparse patterns."""

from __future__ import annotations

from os import PathLike, fspath

from torch import Tensor

from .._library import ops
from .._plan import check_flag, integer
from ._arguments import number
from ._pattern import SparsePattern


def fixed_degree(
    inputs: int, outputs: int, degree: int, *, seed: int, fan_out: bool = False, self_connections: bool = True
) -> SparsePattern:
    """Every output has ``degree`` distinct random inputs (with ``fan_out``: every input that many outputs).

    Without ``self_connections``, entry (i, i) is left out. The same seed gives the same pattern everywhere.
    """
    given = {"inputs": inputs, "outputs": outputs, "degree": degree, "seed": seed}
    check_flag("etp.fixed_degree", "fan_out", fan_out)
    check_flag("etp.fixed_degree", "self_connections", self_connections)
    counts = (integer("etp.fixed_degree", name, value) for name, value in given.items())
    return SparsePattern(ops.etp_fixed_degree(*counts, fan_out, self_connections))


def small_world(neurons: int, degree: int, rewire: float, *, seed: int) -> SparsePattern:
    """Watts-Strogatz: a ring where every neuron hears its ``degree`` (even) nearest.

    Each connection moves to a random distinct source with probability ``rewire``; no neuron hears itself.
    """
    op = "etp.small_world"
    counts = integer(op, "neurons", neurons), integer(op, "degree", degree)
    return SparsePattern(
        ops.etp_small_world(*counts, number("small_world", "rewire", rewire), integer(op, "seed", seed))
    )


def read_mtx(path: str | PathLike[str]) -> tuple[SparsePattern, Tensor]:
    """The pattern and the float64 values (1 where it has none) of a Matrix Market coordinate file.

    Rows are inputs, columns are outputs.
    """
    handle, values = ops.etp_read_matrix_market(fspath(path))
    return SparsePattern(handle), values
