"""Files of sparse tensors: Matrix Market, FROSTT and SciPy's npz. ``torch.save`` takes every tensor as it is."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

import numpy as np
import torch
from torch import Tensor

from ._library import ops
from ._tensor_arguments import sizes_of
from .interop import from_arrays, from_blocks, from_places, to_scipy
from .tensor import SparseTensor

_Path = str | os.PathLike[str]


def read_mtx(path: _Path, dtype: torch.dtype | None = None) -> SparseTensor:
    """The matrix of a Matrix Market file, in COO with its entries in the file's order.

    Real and pattern files give float64, integer ones int64, complex ones complex128, or ``dtype``. Of symmetric,
    skew-symmetric and hermitian matrices both triangles are there. A damaged file gives an error with its line.
    """
    matrix = SparseTensor(ops.read_mtx(os.fspath(path)))
    return matrix if dtype is None else _cast(path, matrix, dtype)


def _inner(op: str, sparse: object) -> Tensor:
    if not isinstance(sparse, SparseTensor):
        raise TypeError(f"[lacewing.{op}] the tensor must be a SparseTensor, not {type(sparse).__name__}")
    return sparse._inner


def write_mtx(sparse: SparseTensor, path: _Path) -> None:
    """Writes a matrix with fill 0 to a Matrix Market file; booleans as a pattern. Numbers read back the same."""
    ops.write_mtx(_inner("write_mtx", sparse), os.fspath(path))


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
    """The matrix of a file of ``scipy.sparse.save_npz``: CSR and CSC as GCRS and GCCS, others as COO or GCRS.

    The arrays are looked at before anything is made of them; one that announces more bytes than the file can hold is
    refused before memory is taken.
    """
    try:
        arrays = _npz_arrays(path)
        format = str(arrays["format"].astype(str).item())
        if format not in _NPZ:
            raise ValueError(f"there is no format {format!r}")
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, KeyError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"[lacewing.load_npz] {path}: it is no file of a sparse matrix: {error}") from error
    try:
        shape = arrays["shape"]
        if shape.ndim != 1 or shape.dtype.kind not in "iu":
            raise ValueError(f"[lacewing.load_npz] shape must be integers, not {shape.dtype} of shape {shape.shape}")
        return _NPZ[format](arrays, [int(size) for size in shape])
    except KeyError as error:
        raise ValueError(
            f"[lacewing.load_npz] {path}: a {format} matrix has an array {error}, which is missing"
        ) from error
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"[lacewing.load_npz] {path}: its arrays are no sparse matrix: {error}") from error


_Arrays = dict[str, Any]


def _npz_arrays(path: _Path) -> _Arrays:
    """The arrays of a file, each of which announces no more bytes than it has."""
    largest_ratio = 1032  # of deflate
    with zipfile.ZipFile(path) as file:
        for member in file.infolist():
            with file.open(member) as array:
                shape, bytes_each = _npy_header(member.filename, array)
            announced = math.prod(shape) * bytes_each
            held = min(member.file_size, largest_ratio * min(member.compress_size, os.path.getsize(path)))
            if announced > held:
                raise ValueError(f"{member.filename} of shape {shape} has {announced} bytes, but holds {held} at most")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _npy_header(name: str, array: IO[bytes]) -> tuple[tuple[int, ...], int]:
    version = np.lib.format.read_magic(array)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} is of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(array)
    if dtype.hasobject:
        raise ValueError(f"{name} holds objects of Python, not numbers")
    return shape, dtype.itemsize


def _compressed(compressed: str) -> Callable[[_Arrays, list[int]], SparseTensor]:
    def make(arrays: _Arrays, shape: list[int]) -> SparseTensor:
        return from_arrays(arrays["indptr"], arrays["indices"], arrays["data"], shape, compressed)

    return make


def _blocked(arrays: _Arrays, shape: list[int]) -> SparseTensor:
    return from_blocks(arrays["indptr"], arrays["indices"], arrays["data"], shape)


def _coordinates(arrays: _Arrays, shape: list[int]) -> SparseTensor:
    places = arrays["coords"] if "coords" in arrays else (arrays["row"], arrays["col"])
    return from_places(places, arrays["data"], shape)


def _diagonals(arrays: _Arrays, shape: list[int]) -> SparseTensor:
    """Element (j - k, j) is element j of the row of offset k."""
    data, offsets = arrays["data"], arrays["offsets"]
    if data.ndim != 2 or offsets.ndim != 1 or len(data) != len(offsets) or len(shape) != 2:
        raise ValueError(f"[lacewing.load_npz] data of shape {data.shape} need as many offsets, not {offsets.shape}")
    inside = (offsets > -shape[0]) & (offsets < shape[1])
    data, offsets = data[inside, : shape[1]], offsets[inside]
    columns = np.broadcast_to(np.arange(data.shape[1]), data.shape)
    rows = columns - offsets[:, None].astype(np.int64)
    held = (rows >= 0) & (rows < shape[0]) & (data != 0)
    return from_places((rows[held], columns[held]), data[held], shape)


_NPZ: Final[dict[str, Callable[[_Arrays, list[int]], SparseTensor]]] = {
    "csr": _compressed("rows"),
    "csc": _compressed("columns"),
    "bsr": _blocked,
    "coo": _coordinates,
    "dia": _diagonals,
}


def save_npz(sparse: SparseTensor, path: _Path) -> None:
    """Writes a matrix with fill 0 as ``scipy.sparse.save_npz`` does, in its own format."""
    import scipy.sparse  # type: ignore[import-untyped]

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
