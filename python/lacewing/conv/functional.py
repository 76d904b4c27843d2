"""The convolution itself, differentiable to any order, and the layouts of its weight."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn

from .._library import ops
from .._plan import check_flag, check_tensor, integer
from .plan import ConvolutionPlan, check_plan

Layout = Literal["internal", "user"]


def weight_from_user(weight: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """(Cout, Cin/groups, *kernel) to (taps, groups, Cin/groups, Cout/groups), contiguous.

    ``transposed``: from (Cin, Cout/groups, *kernel), the layout of torch's transposed convolutions.
    """
    check_tensor("sparse_conv", "weight", weight)
    result: Tensor = ops.weight_from_user(weight, integer("sparse_conv", "groups", groups), transposed)
    return result


def weight_to_user(weight: Tensor, kernel_size: tuple[int, ...], transposed: bool = False) -> Tensor:
    """(taps, groups, Cin/groups, Cout/groups) to the user layout, as a view where strides allow it."""
    check_tensor("sparse_conv", "weight", weight)
    result: Tensor = ops.weight_to_user(weight, kernel_size, transposed)
    return result


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    plan: ConvolutionPlan,
    bias: Tensor | None = None,
    *,
    layout: Layout = "internal",
    groups: int = 1,
    coordinates: Tensor | None = None,
) -> Tensor:
    """``out[target] = bias + sum over pairs of features[source] @ weight[tap]``, group by group.

    Shapes: features (source voxels, Cin), result (target voxels, Cout). Weight in the internal layout is (taps, groups,
    Cin/groups, Cout/groups), read as it lies; ``layout="user"`` takes (Cout, Cin/groups, *kernel_size), or (Cin,
    Cout/groups, *kernel_size) where the plan is transposed, and copies it in every call (``groups`` counts there only).
    Where ``coordinates`` of the features are given, they must be the plan's source, row by row.
    dtypes: float16 and bfloat16 (sums in float32), float32, float64. Differentiable to any order for features, weight
    and bias. Allocates the result and what ``sparse_conv_workspace`` tells. Deterministic: the same bits for every run
    and, but for the algorithm gather_gemm_scatter, for every number of threads.
    """
    check_plan("sparse_conv", plan)
    check_tensor("sparse_conv", "features", features)
    check_tensor("sparse_conv", "weight", weight)
    if bias is not None:
        check_tensor("sparse_conv", "bias", bias)
    if coordinates is not None:
        plan.check_source(coordinates)
    if layout == "user":
        expected = len(plan.kernel_size) + 2
        if weight.dim() != expected or tuple(weight.shape[2:]) != plan.kernel_size:
            raise ValueError(
                f"[lacewing.sparse_conv] weight of shape {tuple(weight.shape)} does not end with the plan's "
                f"kernel_size {plan.kernel_size} after two dims of channels"
            )
        weight = weight_from_user(weight, groups, plan.is_transposed)
    elif layout != "internal":
        raise ValueError(f"[lacewing.sparse_conv] layout must be 'internal' or 'user', not {layout!r}")
    result: Tensor = ops.sparse_conv(features, weight, bias, plan._array, plan._sizes)
    return result


class ConvFinish(NamedTuple):
    """What follows a convolution: ``relu(norm(sums) + residual)`` of what is given, the norm by running statistics."""

    norm: nn.BatchNorm1d | None = None
    residual: Tensor | None = None
    relu: bool = False


def sparse_conv_unit(
    features: Tensor, weight: Tensor, plan: ConvolutionPlan, bias: Tensor | None, finish: ConvFinish
) -> Tensor:
    """``relu(norm(sparse_conv(features, weight, plan, bias)) + residual)`` of what ``finish`` has; internal layout.

    One pass where nothing needs a gradient: on the CPU a tile of the result is finished while it is in cache. Else the
    ops that it stands for, with their gradients. Tiles round sums of float16 and bfloat16 once, at the end.
    """
    check_plan("sparse_conv_unit", plan)
    check_tensor("sparse_conv_unit", "features", features)
    check_tensor("sparse_conv_unit", "weight", weight)
    if not isinstance(finish, ConvFinish):
        raise TypeError(f"[lacewing.sparse_conv_unit] finish must be a ConvFinish, not {type(finish).__name__}")
    for name, given in (("bias", bias), ("the residual", finish.residual)):
        if given is not None:
            check_tensor("sparse_conv_unit", name, given)
    check_flag("sparse_conv_unit", "relu", finish.relu)
    norm = finish.norm
    if norm is not None and not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        raise TypeError(f"[lacewing.sparse_conv_unit] norm must be a batch norm, not {type(norm).__name__}")
    if norm is not None and norm.running_mean is None:
        raise ValueError("[lacewing.sparse_conv_unit] the norm has no running statistics")
    statistics = (None,) * 4 if norm is None else (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    eps = 0.0 if norm is None else norm.eps
    result: Tensor = ops.sparse_conv_unit(
        features, weight, bias, plan._array, plan._sizes, *statistics, eps, finish.residual, finish.relu
    )
    return result


def sparse_conv_workspace(features: Tensor, weight: Tensor, plan: ConvolutionPlan) -> int:
    """The bytes that ``sparse_conv`` allocates beside its result, for a weight in the internal layout."""
    check_plan("sparse_conv_workspace", plan)
    check_tensor("sparse_conv_workspace", "features", features)
    check_tensor("sparse_conv_workspace", "weight", weight)
    size: int = ops.sparse_conv_workspace(features, weight, plan._array, plan._sizes, False)
    return size
