"""Sparse convolution of point clouds in 1 to 4 dimensions, by plans."""

from .functional import sparse_conv, sparse_conv_workspace, weight_from_user, weight_to_user
from .plan import ConvolutionPlan, Targets
from .voxels import quantize, reduce_voxels, unique_voxels

__all__ = [
    "ConvolutionPlan",
    "Targets",
    "quantize",
    "reduce_voxels",
    "sparse_conv",
    "sparse_conv_workspace",
    "unique_voxels",
    "weight_from_user",
    "weight_to_user",
]
