"""Sparse tensors of torch and of SciPy, to and from those of this library."""

from __future__ import annotations

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
        starts, plain, values = (_tensor(a) for a in (matrix.indptr, matrix.indices, matrix.data))
        compressed = "rows" if matrix.format == "csr" else "columns"
        return sparse_gcs_tensor(starts, plain, values, matrix.shape, compressed=compressed)
    if matrix.format == "bsr":
        return from_scipy(matrix.tocsr())
    coo = matrix.tocoo()
    places = coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)
    rows = [np.asarray(p) for p in places]
    for row in rows:
        if row.dtype.kind not in "iu":
            raise TypeError(f"[lacewing.from_scipy] indices must be integers, not {row.dtype}")
    indices = torch.stack([_tensor(row).to(torch.int64) for row in rows])
    return sparse_coo_tensor(indices, _tensor(coo.data), coo.shape)


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
