"""Files of sparse tensors: Matrix Market, FROSTT and SciPy's npz. ``torch.save`` takes every tensor as it is."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ._library import ops
from ._tensor_arguments import sizes_of
from .interop import from_scipy, to_scipy
from .tensor import SparseTensor

_Path = str | os.PathLike[str]


def read_mtx(path: _Path, dtype: torch.dtype | None = None) -> SparseTensor:
    """The matrix of a Matrix Market file, in COO with its entries in the file's order.

    Real and pattern files give float64, integer ones int64, complex ones complex128, or ``dtype``. Of symmetric,
    skew-symmetric and hermitian matrices both triangles are there. A damaged file gives an error with its line.
    """
    matrix = SparseTensor(ops.read_matrix_market(os.fspath(path)))
    return matrix if dtype is None else _cast(path, matrix, dtype)


def _inner(op: str, sparse: object) -> Tensor:
    if not isinstance(sparse, SparseTensor):
        raise TypeError(f"[lacewing.{op}] the tensor must be a SparseTensor, not {type(sparse).__name__}")
    return sparse._inner


def write_mtx(sparse: SparseTensor, path: _Path) -> None:
    """Writes a matrix with fill 0 to a Matrix Market file; booleans as a pattern. Numbers read back the same."""
    ops.write_matrix_market(_inner("write_mtx", sparse), os.fspath(path))


def read_tns(path: _Path, size: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> SparseTensor:
    """The tensor of a FROSTT file, float64 or ``dtype``, in COO. Without ``size``: the largest indices.

    Values of an integer ``dtype`` are read as integers.
    """
    shape = None if size is None else sizes_of("read_tns", "size", size)
    return SparseTensor(ops.read_tns(os.fspath(path), shape, dtype))


def write_tns(sparse: SparseTensor, path: _Path) -> None:
    """Writes a tensor of real numbers with fill 0 to a FROSTT file. Numbers read back the same."""
    ops.write_tns(_inner("write_tns", sparse), os.fspath(path))


def load_npz(path: _Path) -> SparseTensor:
    """The matrix of a file of ``scipy.sparse.save_npz``: CSR and CSC as GCRS and GCCS."""
    import scipy.sparse  # type: ignore[import-untyped]

    try:
        matrix = scipy.sparse.load_npz(os.fspath(path))
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, KeyError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"[lacewing.load_npz] {path}: it is no file of a sparse matrix: {error}") from error
    try:
        return from_scipy(matrix)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"[lacewing.load_npz] {path}: its arrays are no sparse matrix: {error}") from error


def save_npz(sparse: SparseTensor, path: _Path) -> None:
    """Writes a matrix with fill 0 as ``scipy.sparse.save_npz`` does, in its own format."""
    import scipy.sparse

    scipy.sparse.save_npz(os.fspath(path), to_scipy(sparse))


def _cast(path: _Path, sparse: SparseTensor, dtype: torch.dtype) -> SparseTensor:
    cast = sparse.to(dtype)
    assert isinstance(cast, SparseTensor)
    integers = sparse.dtype == torch.int64 and not dtype.is_floating_point and not dtype.is_complex
    if integers and dtype != torch.bool:
        given, kept = sparse.values(), cast.values()
        if not torch.equal(kept.to(torch.int64), given) or (dtype == torch.uint64 and bool((given < 0).any())):
            raise ValueError(f"[lacewing.read_mtx] {path}: it has values that do not fit into {dtype}")
    return cast
