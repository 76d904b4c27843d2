"""Lacewing: differentiable sparse tensor operations for PyTorch."""

from ._library import ops
from .backend import backend, cpu_isa, get_backend, set_backend
from .info import (
    SparseProductInfo,
    SparseScaleInfo,
    derive_backward,
    sparse_product_info,
    sparse_product_infos,
    sparse_scale_infos,
)
from .product import (
    SparseInner,
    SparseMatTVec,
    SparseMul,
    SparseOuter,
    SparseScaVec,
    SparseVecMat,
    SparseVecSca,
    sparse_inner,
    sparse_mat_t_vec,
    sparse_mul,
    sparse_outer,
    sparse_scavec,
    sparse_vecmat,
    sparse_vecsca,
    workspace_bytes,
)
from .raw import (
    indexed_inner_scale_gather,
    indexed_mat_t_vec_scale_gather,
    indexed_mul_scale_gather,
    indexed_outer_scale_gather,
    indexed_scale_segment,
    indexed_scavec_scale_gather,
    indexed_vecmat_scale_gather,
    indexed_vecsca_scale_gather,
)
from .scale import SparseScale, sparse_scale

__version__ = "0.1.0"

__all__ = [
    "SparseInner",
    "SparseMatTVec",
    "SparseMul",
    "SparseOuter",
    "SparseProductInfo",
    "SparseScaVec",
    "SparseScale",
    "SparseScaleInfo",
    "SparseVecMat",
    "SparseVecSca",
    "backend",
    "cpu_isa",
    "derive_backward",
    "get_backend",
    "indexed_inner_scale_gather",
    "indexed_mat_t_vec_scale_gather",
    "indexed_mul_scale_gather",
    "indexed_outer_scale_gather",
    "indexed_scale_segment",
    "indexed_scavec_scale_gather",
    "indexed_vecmat_scale_gather",
    "indexed_vecsca_scale_gather",
    "ops",
    "set_backend",
    "sparse_inner",
    "sparse_mat_t_vec",
    "sparse_mul",
    "sparse_outer",
    "sparse_product_info",
    "sparse_product_infos",
    "sparse_scale",
    "sparse_scale_infos",
    "sparse_scavec",
    "sparse_vecmat",
    "sparse_vecsca",
    "workspace_bytes",
]
