"""Sparse tensors of torch and of SciPy, to and from those of this library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._library import ops
from .tensor import SparseTensor, sparse_coo_tensor, sparse_gcs_tensor

_SCIPY = {"coo": "coo", "gcrs": "csr", "gccs": "csc"}


def from_torch(sparse: Tensor) -> SparseTensor:
    """One of torch's sparse tensors (COO, CSR, CSC, BSR, BSC), with fill 0.

    COO, CSR and CSC share their memory with the result, as COO, GCRS and GCCS. A batch of matrices gets a batch dim;
    blocks become entries. Differentiable.
    """
    return SparseTensor(ops.tensor_from_torch(sparse))


def from_scipy(matrix: Any) -> SparseTensor:
    """A SciPy sparse array or matrix: CSR and CSC share their memory with the result, others are converted."""
    if not hasattr(matrix, "format") or not hasattr(matrix, "tocoo"):
        raise TypeError(
            f"[lacewing.from_scipy] a sparse matrix or array of SciPy is needed, not {type(matrix).__name__}"
        )
    if matrix.format in ("csr", "csc") and len(matrix.shape) == 2:
        compressed = "rows" if matrix.format == "csr" else "columns"
        return from_arrays(matrix.indptr, matrix.indices, matrix.data, matrix.shape, compressed)
    if matrix.format == "bsr":
        return from_blocks(matrix.indptr, matrix.indices, matrix.data, matrix.shape)
    coo = matrix.tocoo()
    return from_places(coo.coords if hasattr(coo, "coords") else (coo.row, coo.col), coo.data, coo.shape)


def from_arrays(starts: Any, plain: Any, data: Any, shape: Sequence[int], compressed: str) -> SparseTensor:
    """The matrix of the arrays of CSR or CSC, in their memory."""
    return sparse_gcs_tensor(_tensor(starts), _tensor(plain), _tensor(data), shape, compressed=compressed)


def from_places(places: Sequence[Any], data: Any, shape: Sequence[int]) -> SparseTensor:
    """The tensor of an array of indices for each dim."""
    rows = [np.asarray(p) for p in places]
    for row in rows:
        if row.dtype.kind not in "iu":
            raise TypeError(f"[lacewing.from_scipy] indices must be integers, not {row.dtype}")
    return sparse_coo_tensor(torch.stack([_tensor(row).to(torch.int64) for row in rows]), _tensor(data), shape)


def from_blocks(starts: Any, columns: Any, blocks: Any, shape: Sequence[int]) -> SparseTensor:
    """The matrix of the arrays of BSR, which SciPy converts without looking at them."""
    if blocks.ndim != 3 or starts.ndim != 1 or columns.ndim != 1 or len(shape) != 2:
        raise ValueError(
            "[lacewing.from_scipy] BSR needs blocks (nse, height, width), indices and a shape of two numbers, not "
            f"arrays of shapes {blocks.shape}, {columns.shape}, {starts.shape} and shape {tuple(shape)}"
        )
    if columns.dtype not in (np.int32, np.int64):
        raise TypeError(f"[lacewing.from_scipy] indices must be int32 or int64, not {columns.dtype}")
    arrays = _tensor(starts.astype(columns.dtype, copy=False)), _tensor(columns), _tensor(blocks)
    return from_torch(torch.sparse_bsr_tensor(*arrays, tuple(shape), check_invariants=False))


def to_scipy(sparse: SparseTensor, format: str | None = None) -> Any:
    """SciPy's sparse array: CSR of GCRS and CSC of GCCS share memory; the fill must be 0, entries must be numbers."""
    import scipy.sparse  # type: ignore[import-untyped]

    wanted = format or (_SCIPY[sparse.format] if sparse.dim() == 2 else "coo")
    if wanted not in _SCIPY.values():
        raise ValueError(f'[lacewing.to_scipy] format must be "coo", "csr" or "csc", not "{wanted}"')
    if len(sparse.values().shape) != 1:
        raise ValueError(
            f"[lacewing.to_scipy] entries must be numbers, not blocks of {tuple(sparse.values().shape[1:])}"
        )
    dtype = sparse.dtype
    if dtype.itemsize < (8 if dtype.is_complex else 4 if dtype.is_floating_point else 1):
        raise TypeError(f"[lacewing.to_scipy] SciPy has no sparse arrays of {dtype}: use to(torch.float32) first")
    if wanted != "coo" and sparse.dim() != 2:
        raise ValueError(f"[lacewing.to_scipy] {wanted} holds a matrix, not a tensor of shape {tuple(sparse.shape)}")
    layout = torch.sparse_coo if wanted == "coo" else torch.sparse_csr if wanted == "csr" else torch.sparse_csc
    held: Tensor = ops.tensor_to_torch(sparse._inner, layout, None).detach()  # refuses other fills
    if wanted == "coo":
        coords = tuple(row.numpy(force=True) for row in held._indices())
        return scipy.sparse.coo_array((held._values().numpy(force=True), coords), tuple(sparse.shape))
    by_row = wanted == "csr"
    make = scipy.sparse.csr_array if by_row else scipy.sparse.csc_array
    data = held.values().numpy(force=True)
    # SciPy's constructors copy indices that would fit into fewer bits.
    result = make(tuple(sparse.shape), dtype=data.dtype)
    result.data = data
    result.indptr = (held.crow_indices() if by_row else held.ccol_indices()).numpy(force=True)
    result.indices = (held.col_indices() if by_row else held.row_indices()).numpy(force=True)
    return result


def _tensor(array: Any) -> Tensor:
    writable = array if array.flags.writeable and array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(writable)
