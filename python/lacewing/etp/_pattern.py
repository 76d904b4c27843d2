"""Sparse patterns: fixed places, trainable values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._library import ops
from .._plan import Plan, arguments, integer
from ..info import as_index
from ._arguments import parts_of, plain

Indices = Tensor | Sequence[int]
_OP = "etp.SparsePattern"


def _index(argument: str, values: Indices) -> Tensor:
    index = as_index(_OP, argument, values)
    if index is None:
        raise TypeError(f"[lacewing.{_OP}] {argument} must be a tensor or a list of integers")
    return index


def _shape(shape: object) -> tuple[int, int]:
    if isinstance(shape, (tuple, list)) and len(shape) == 2:
        return integer(_OP, "shape[0]", shape[0]), integer(_OP, "shape[1]", shape[1])
    raise TypeError(f"[lacewing.{_OP}] shape must be (inputs, outputs), not {shape!r}")


class SparsePattern:
    """The fixed places of a sparse matrix W of shape (I, O): entry p lies at (row[p], col[p]) = (input, output).

    Built by ``coo``, ``csr`` or ``csc``. Values are (nse,), in the order in which the entries were given. Indices are
    checked, copied and sorted once. Places may repeat: each is an entry of its own.

    >>> pattern = SparsePattern.coo([0, 0, 2], [1, 0, 1], (3, 2))
    >>> pattern.nse
    3
    """

    def __init__(self, handle: Any) -> None:
        self._set(handle)

    def _set(self, handle: Any) -> None:
        self._handle = handle
        rows, cols = handle.shape()
        self.shape: tuple[int, int] = (rows, cols)
        self.row: Tensor = handle.row()
        self.col: Tensor = handle.col()
        # What the forward product and its two gradients take: torch.compile sees these instead of the handle.
        self._plans = Plan.split(*handle.plans())

    @classmethod
    def coo(cls, row: Indices, col: Indices, shape: tuple[int, int]) -> SparsePattern:
        """From the row and the column of each entry."""
        return cls(torch.classes.lacewing.EtpPattern("coo", _index("row", row), _index("col", col), *_shape(shape)))

    @classmethod
    def csr(cls, crow: Indices, col: Indices, shape: tuple[int, int]) -> SparsePattern:
        """From row pointers (I + 1,) and the column of each entry."""
        return cls(torch.classes.lacewing.EtpPattern("csr", _index("crow", crow), _index("col", col), *_shape(shape)))

    @classmethod
    def csc(cls, ccol: Indices, row: Indices, shape: tuple[int, int]) -> SparsePattern:
        """From column pointers (O + 1,) and the row of each entry."""
        return cls(torch.classes.lacewing.EtpPattern("csc", _index("ccol", ccol), _index("row", row), *_shape(shape)))

    @property
    def nse(self) -> int:
        """The number of entries."""
        return self.row.shape[0]

    @property
    def format(self) -> str:
        """``"coo"``, ``"csr"`` or ``"csc"``: what it was built from."""
        name: str = self._handle.format()
        return name

    @property
    def device(self) -> torch.device:
        """Where the indices lie."""
        return self.row.device

    def to(self, device: torch.device | str) -> SparsePattern:
        """The pattern on another device."""
        return SparsePattern(self._handle.to(str(device)))

    def with_data(self, data: Tensor) -> SparseMatrix:
        """The same pattern with values: (nse,), floating."""
        plain("with_data", "values", data)
        self._handle.check(data)
        return SparseMatrix(self, data)

    def matmul(self, x: Tensor, values: Tensor) -> Tensor:
        """``x @ sparse(values)``: (..., I) -> (..., O), differentiable to any order for both."""
        plain("SparsePattern.matmul", "x", x)
        plain("SparsePattern.matmul", "values", values)
        if not torch.compiler.is_compiling():
            y: Tensor = self._handle.matmul(x, values)
            return y
        flat = x.reshape(-1, self.shape[0])
        out: Tensor = ops.sparse_scavec(values, flat.t().contiguous(), None, *arguments(*self._plans), False)
        return out.t().reshape(*x.shape[:-1], self.shape[1])

    def sampled_outer(self, x: Tensor, g: Tensor) -> Tensor:
        """``dw[p] = x[row p] * g[col p]``, summed over the batch: (I,), (O,) or (B, I), (B, O) -> (nse,)."""
        plain("sampled_outer", "x", x)
        plain("sampled_outer", "g", g)
        dw: Tensor = self._handle.sampled_outer(x, g)
        return dw

    def yw_to_w(self, y: Tensor, t: Tensor) -> Tensor:
        """``t[k] * y[row k]``: y (I,), t (nse,), each with a batch in front and states behind where it has them."""
        plain("yw_to_w", "y", y)
        plain("yw_to_w", "t", t)
        out: Tensor = self._handle.yw_to_w(y, t)
        return out

    def yw_to_w_transposed(self, y: Tensor, t: Tensor) -> Tensor:
        """``t[k] * y[col k]``: y (O,), t (nse,), each with a batch in front and states behind where it has them."""
        plain("yw_to_w_transposed", "y", y)
        plain("yw_to_w_transposed", "t", t)
        out: Tensor = self._handle.yw_to_w_transposed(y, t)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {"row": self.row, "col": self.col, "shape": self.shape, "format": self.format}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Entries of a compressed pattern are sorted by the compressed index, whose pointers are its counts.
        row, col, shape = parts_of("SparsePattern", state, "row", "col", "shape")
        format = state.get("format", "coo")
        first, second = (col, row) if format == "csc" else (row, col)
        if format != "coo":
            counts = torch.bincount(first, minlength=shape[1] if format == "csc" else shape[0])
            first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        self._set(torch.classes.lacewing.EtpPattern(format, first, second, *shape))

    def __repr__(self) -> str:
        return f"SparsePattern({self.format}, shape={self.shape}, nse={self.nse})"


@dataclass(frozen=True)
class SparseMatrix:
    """A pattern with values (nse,)."""

    pattern: SparsePattern
    data: Tensor

    def with_data(self, data: Tensor) -> SparseMatrix:
        """The same pattern with other values."""
        return self.pattern.with_data(data)

    def to_dense(self) -> Tensor:
        """(I, O), differentiable; entries at one place add."""
        dense: Tensor = self.pattern._handle.to_dense(self.data)
        return dense

    def __rmatmul__(self, x: Tensor) -> Tensor:
        return self.pattern.matmul(x, self.data)
