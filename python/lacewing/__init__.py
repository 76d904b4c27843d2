"""Lacewing: differentiable sparse tensor operations for PyTorch."""

from . import conv, etp, product
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
from .product import *  # noqa: F403
from .raw import indexed_scale_segment
from .scale import SparseScale, sparse_scale

__version__ = "0.1.0"

__all__ = [
    "SparseProductInfo",
    "SparseScale",
    "SparseScaleInfo",
    "backend",
    "conv",
    "cpu_isa",
    "derive_backward",
    "etp",
    "get_backend",
    "indexed_scale_segment",
    "ops",
    "set_backend",
    "sparse_product_info",
    "sparse_product_infos",
    "sparse_scale",
    "sparse_scale_infos",
]
__all__ += product.__all__
