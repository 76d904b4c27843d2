"""Sparse convolution of point clouds in 1 to 4 dimensions, by plans."""

from .functional import (
    ConvFinish,
    sparse_conv,
    sparse_conv_unit,
    sparse_conv_workspace,
    weight_from_user,
    weight_to_user,
)
from .layers import (
    ConvUnit,
    GlobalPool,
    InverseConv,
    Pointwise,
    SparseConv,
    SparseConvTranspose,
    SparsePool,
    SparseUnpool,
    SubmanifoldConv,
    VoxelBatchNorm,
)
from .lidar import CLASSES, synthetic_scan
from .plan import ConvolutionPlan
from .pooling import (
    avg_pool,
    global_pool,
    max_pool,
    max_pool_with_indices,
    max_unpool,
    pool,
    sum_pool,
    unpool,
)
from .sync import SyncVoxelBatchNorm, convert_sync_batchnorm
from .tensor import PlanCache, VoxelTensor
from .voxels import quantize, reduce_voxels, unique_voxels
from .weights import convert_state_dict, convert_weight

__all__ = [
    "CLASSES",
    "ConvFinish",
    "ConvUnit",
    "ConvolutionPlan",
    "GlobalPool",
    "InverseConv",
    "PlanCache",
    "Pointwise",
    "SparseConv",
    "SparseConvTranspose",
    "SparsePool",
    "SparseUnpool",
    "SubmanifoldConv",
    "SyncVoxelBatchNorm",
    "VoxelBatchNorm",
    "VoxelTensor",
    "avg_pool",
    "convert_state_dict",
    "convert_sync_batchnorm",
    "convert_weight",
    "global_pool",
    "max_pool",
    "max_pool_with_indices",
    "max_unpool",
    "pool",
    "quantize",
    "reduce_voxels",
    "sparse_conv",
    "sparse_conv_unit",
    "sparse_conv_workspace",
    "sum_pool",
    "synthetic_scan",
    "unique_voxels",
    "unpool",
    "weight_from_user",
    "weight_to_user",
]
