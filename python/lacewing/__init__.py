"""Lacewing: differentiable sparse tensor operations for PyTorch."""

from . import attention, conv, etp, formula, products
from ._library import ops
from ._tensor_arguments import undefined
from .attention import *  # noqa: F403
from .backend import backend, cpu_isa, get_backend, set_backend
from .densify import densify_policy, record_densified, set_densify_policy
from .files import load_npz, read_mtx, read_tns, save_npz, write_mtx, write_tns
from .formula import *  # noqa: F403
from .generate import contiguous_order, diags, eye, random, strided
from .info import (
    SparseProductInfo,
    SparseProductInfos,
    SparseScaleInfo,
    SparseScaleInfos,
    derive_backward,
    sparse_product_info,
    sparse_product_infos,
    sparse_scale_infos,
)
from .interop import from_scipy, from_torch
from .memory import get_kept_memory_limit, kept_memory, set_kept_memory_limit
from .plots import spy
from .products import *  # noqa: F403
from .raw import indexed_scale_segment
from .scale import SparseScale, sparse_scale
from .tensor import (
    SparseTensor,
    from_additive,
    is_sparse_tensor,
    sparse_coo_tensor,
    sparse_gcs_tensor,
    to_sparse,
)

__version__ = "0.1.0"

__all__ = [
    "SparseProductInfo",
    "SparseProductInfos",
    "SparseScale",
    "SparseScaleInfo",
    "SparseScaleInfos",
    "SparseTensor",
    "backend",
    "contiguous_order",
    "conv",
    "cpu_isa",
    "densify_policy",
    "derive_backward",
    "diags",
    "etp",
    "eye",
    "from_additive",
    "from_scipy",
    "from_torch",
    "get_backend",
    "get_kept_memory_limit",
    "indexed_scale_segment",
    "is_sparse_tensor",
    "kept_memory",
    "load_npz",
    "ops",
    "random",
    "read_mtx",
    "read_tns",
    "record_densified",
    "save_npz",
    "set_backend",
    "set_densify_policy",
    "set_kept_memory_limit",
    "sparse_coo_tensor",
    "sparse_gcs_tensor",
    "sparse_product_info",
    "sparse_product_infos",
    "sparse_scale",
    "sparse_scale_infos",
    "spy",
    "strided",
    "to_sparse",
    "undefined",
    "write_mtx",
    "write_tns",
]
__all__ += attention.__all__
__all__ += formula.__all__
__all__ += products.__all__
