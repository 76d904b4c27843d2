"""Layers on VoxelTensors."""

from __future__ import annotations

import math
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

from .._plan import check_tensor, integer
from .functional import ConvFinish, sparse_conv, sparse_conv_unit, weight_from_user, weight_to_user
from .plan import ConvolutionPlan, Geometry, PerAxis, check_plan, per_axis
from .pooling import PoolMode, global_pool, pool, unpool
from .tensor import VoxelTensor


class _Options(TypedDict, total=False):
    """What every convolution takes by keyword."""

    dilation: PerAxis
    groups: int
    bias: bool
    axes: int
    device: torch.device | str | None
    dtype: torch.dtype | None


def _voxels(layer: nn.Module, x: object) -> VoxelTensor:
    """A layer's input is a VoxelTensor."""
    if not isinstance(x, VoxelTensor):
        raise TypeError(f"[lacewing.{type(layer).__name__}] the input must be a VoxelTensor, not {type(x).__name__}")
    return x


class _Kernel(nn.Module):
    """Kernel size, stride and dilation of a layer."""

    def __init__(self, axes: int, kernel_size: PerAxis, stride: PerAxis, dilation: PerAxis) -> None:
        super().__init__()
        name = type(self).__name__
        if not 1 <= integer(name, "axes", axes) <= 4:
            raise ValueError(f"[lacewing.{name}] axes must lie in [1, 4], not {axes}")
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, axes)
        self.stride = per_axis(name, "stride", stride, axes)
        self.dilation = per_axis(name, "dilation", dilation, axes)
        for key in ("kernel_size", "stride", "dilation"):
            values = getattr(self, key)
            if len(values) != axes or min(values) < 1:
                raise ValueError(f"[lacewing.{name}] {key} must be {axes} positive integers, not {values}")

    @property
    def geometry(self) -> Geometry:
        """Kernel size, stride and dilation, as plans take them."""
        return self.kernel_size, self.stride, self.dilation

    def _coarser(self, x: VoxelTensor) -> tuple[int, ...]:
        return tuple(a * b for a, b in zip(x.stride, self.stride, strict=True))

    def _finer(self, x: VoxelTensor) -> tuple[int, ...]:
        return tuple(max(1, a // b) for a, b in zip(x.stride, self.stride, strict=True))


class _Conv(_Kernel):
    """A convolution's parameters. The weight lies in the internal layout; state dicts hold the user layout."""

    _transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis = 2,
        stride: PerAxis = 2,
        *,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        axes: int = 3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(axes, kernel_size, stride, dilation)
        name = type(self).__name__
        in_channels = integer(name, "in_channels", in_channels)
        out_channels = integer(name, "out_channels", out_channels)
        groups = integer(name, "groups", groups)
        if min(in_channels, out_channels) < 1:
            raise ValueError(f"[lacewing.{name}] channels must be positive, not {in_channels} and {out_channels}")
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"[lacewing.{name}] {groups} groups do not divide {in_channels} input and {out_channels} output "
                "channels"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        shape = (math.prod(self.kernel_size), groups, in_channels // groups, out_channels // groups)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()
        self.register_state_dict_post_hook(_save_user_layout)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_load_user_layout)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(fan in) as torch's convolutions; fan in counts the outputs of transposed layers."""
        taps, _, cin, cout = self.weight.shape
        bound = 1 / math.sqrt(max(1, taps * (cout if self._transposed else cin)))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As any module's, but for memory formats: the four dims of the weight are not those of images."""
        result = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        weight = self._parameters.get("weight")
        if weight is not None and not weight.is_contiguous():
            weight.data = weight.data.contiguous()
        return result

    @property
    def user_weight(self) -> Tensor:
        """The weight in the user layout, as a view where there is one group."""
        return weight_to_user(self.weight, self.kernel_size, self._transposed)

    def _plan(self, x: VoxelTensor) -> ConvolutionPlan:
        """The plan that the layer takes from these voxels."""
        raise NotImplementedError

    def _run(self, x: VoxelTensor, plan: ConvolutionPlan, finish: ConvFinish | None = None) -> VoxelTensor:
        name = type(self).__name__
        check_plan(name, plan)
        if (plan._geometry, plan.is_transposed) != (self.geometry, self._transposed):
            text = "kernel_size {}, stride {}, dilation {}"
            of_plan = text.format(*plan._geometry) + (", transposed" if plan.is_transposed else "")
            of_layer = text.format(*self.geometry) + (", transposed" if self._transposed else "")
            raise ValueError(f"[lacewing.{name}] the plan has {of_plan}, but the layer has {of_layer}")
        plan.check_source(x.coordinates)
        stride = self._finer(x) if self._transposed else self._coarser(x)
        if finish is None:
            return x.through(plan, sparse_conv(x.features, self.weight, plan, self.bias), stride)
        return x.through(plan, sparse_conv_unit(x.features, self.weight, plan, self.bias, finish), stride)

    def extra_repr(self) -> str:
        """What the layer's line shows."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return text + (f", dilation={self.dilation}, groups={self.groups}, bias={self.bias is not None}")


def _save_user_layout(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    assert isinstance(module, _Conv)
    weight = state.get(prefix + "weight")
    # A parametrised or pruned layer keeps its weight by other names, in the internal layout.
    if isinstance(weight, Tensor):
        state[prefix + "weight"] = weight_to_user(weight, module.kernel_size, module._transposed)


def _load_user_layout(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    assert isinstance(module, _Conv)
    key, errors = prefix + "weight", rest[-1]
    weight = state.get(key)
    if not isinstance(weight, Tensor):
        return
    own = module.user_weight
    if weight.shape == own.shape:
        state[key] = weight_from_user(weight, module.groups, module._transposed)
        return
    errors.append(
        f"size mismatch for {key}: copying a param with shape {weight.shape} from checkpoint, the shape in current "
        f"model is {own.shape}."
    )
    state[key] = module.weight.detach()


class SubmanifoldConv(_Conv):
    """A convolution that keeps the voxels: sites that were empty stay empty."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: PerAxis = 3, **options: Unpack[_Options]
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, 1, **options)

    def _plan(self, x: VoxelTensor) -> ConvolutionPlan:
        return x.cache.plan(x.coordinates, self.geometry, "same")

    def forward(self, x: VoxelTensor, *, plan: ConvolutionPlan | None = None) -> VoxelTensor:
        """Cin channels to Cout, on the same voxels; over a plan that was built before, where one is given."""
        _voxels(self, x)
        if plan is None:
            plan = self._plan(x)
        elif check_plan("SubmanifoldConv", plan).target is not plan.source and not torch.equal(
            plan.target, plan.source
        ):
            raise ValueError("[lacewing.SubmanifoldConv] the plan leads to other voxels than it comes from")
        return self._run(x, plan)


class _ConvOnto(_Conv):
    """A convolution to targets that can be given."""

    def _plan(self, x: VoxelTensor, targets: Tensor | None = None) -> ConvolutionPlan:
        raise NotImplementedError

    def forward(
        self, x: VoxelTensor, targets: Tensor | None = None, *, plan: ConvolutionPlan | None = None
    ) -> VoxelTensor:
        """To the layer's targets, to the coordinates that are given, or over a plan that was built before."""
        _voxels(self, x)
        name = type(self).__name__
        if targets is not None:
            check_tensor(name, "targets", targets)
        if targets is not None and plan is not None:
            raise ValueError(f"[lacewing.{name}] a plan has its targets: give one of targets and plan")
        return self._run(x, self._plan(x, targets) if plan is None else plan)


class SparseConv(_ConvOnto):
    """A convolution to the voxels floor(voxel / stride), or with ``targets="reachable"`` to all that a tap reaches."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis = 2,
        stride: PerAxis = 2,
        *,
        targets: Literal["strided", "reachable"] = "strided",
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, **options)
        self.targets: Literal["strided", "reachable"] = targets

    def _plan(self, x: VoxelTensor, targets: Tensor | None = None) -> ConvolutionPlan:
        return x.cache.plan(x.coordinates, self.geometry, self.targets if targets is None else targets)


class SparseConvTranspose(_ConvOnto):
    """A transposed convolution onto given voxels, or to every reachable one (generative) where none are given.

    Those that are not wanted are taken away with ``VoxelTensor.prune``.
    """

    _transposed = True

    def _plan(self, x: VoxelTensor, targets: Tensor | None = None) -> ConvolutionPlan:
        return x.cache.transposed(x.coordinates, self.geometry, targets)


class InverseConv(_Conv):
    """Back along the SparseConv with the same kernel that led here, onto the voxels that it came from."""

    _transposed = True

    def _plan(self, x: VoxelTensor) -> ConvolutionPlan:
        return x.way_back(self.geometry, "InverseConv")

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        """To the voxels before the matching SparseConv; shares its plan."""
        return self._run(x, self._plan(_voxels(self, x)))


class SparsePool(_Kernel):
    """Sum, mean or maximum over windows, to the voxels floor(voxel / stride)."""

    def __init__(
        self, mode: PoolMode, kernel_size: PerAxis = 2, stride: PerAxis = 2, *, dilation: PerAxis = 1, axes: int = 3
    ) -> None:
        super().__init__(axes, kernel_size, stride, dilation)
        self.mode: PoolMode = mode

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        """The same channels on coarser voxels."""
        plan = _voxels(self, x).cache.plan(x.coordinates, self.geometry, "strided")
        plan.check_source(x.coordinates)
        return x.through(plan, pool(x.features, plan, self.mode), self._coarser(x))


class SparseUnpool(_Kernel):
    """Back along the SparsePool or SparseConv with the same kernel: each voxel gets the mean of those it went to."""

    def __init__(self, kernel_size: PerAxis = 2, stride: PerAxis = 2, *, dilation: PerAxis = 1, axes: int = 3) -> None:
        super().__init__(axes, kernel_size, stride, dilation)

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        """The same channels on the finer voxels."""
        back = _voxels(self, x).way_back(self.geometry, "SparseUnpool")
        back.check_source(x.coordinates)
        return x.through(back, unpool(x.features, back.transposed()), self._finer(x))


class GlobalPool(nn.Module):
    """(voxels, C) to (batch_size, C): sum, mean or maximum over each cloud."""

    def __init__(self, mode: PoolMode = "avg") -> None:
        super().__init__()
        self.mode: PoolMode = mode

    def forward(self, x: VoxelTensor) -> Tensor:
        """A plain tensor, one row for each cloud."""
        return global_pool(_voxels(self, x).features, x.coordinates[:, 0], x.batch_size, self.mode)


class VoxelBatchNorm(nn.BatchNorm1d):
    """Batch normalisation over all voxels of all clouds."""

    def forward(self, x: VoxelTensor) -> VoxelTensor:  # type: ignore[override]
        """The same voxels."""
        return _voxels(self, x).map(super().forward)


class ConvUnit(nn.Module):
    """``relu(norm(conv(x)) + residual)``, with or without each of them.

    ``conv`` is one of the convolutions of this module. Where the norm goes by its running statistics (``eval()``) and
    nothing needs a gradient, it is one pass: on the CPU a tile of the result is finished while it is in cache. Forward
    hooks of ``conv`` and ``norm`` are honoured: with one, the layers are called one after the other.

    >>> unit = ConvUnit(SubmanifoldConv(32, 32, bias=False), VoxelBatchNorm(32))
    >>> y = unit(unit(x), residual=x)
    """

    def __init__(self, conv: _Conv, norm: VoxelBatchNorm | None = None, relu: bool = True) -> None:
        super().__init__()
        if not isinstance(conv, _Conv):
            raise TypeError(f"[lacewing.ConvUnit] conv must be a convolution of lacewing, not {type(conv).__name__}")
        if norm is not None and not isinstance(norm, VoxelBatchNorm):
            raise TypeError(f"[lacewing.ConvUnit] norm must be a VoxelBatchNorm or None, not {type(norm).__name__}")
        self.conv, self.norm, self.relu = conv, norm, relu

    def forward(self, x: VoxelTensor, residual: VoxelTensor | None = None) -> VoxelTensor:
        """On the voxels that the convolution leads to; ``residual`` must lie on those."""
        _voxels(self, x)
        norm = self.norm
        by_batch = norm is not None and (norm.training or norm.running_mean is None)
        plain = all(_is_plain(layer) for layer in (self.conv, norm) if layer is not None)
        if residual is not None:
            self._check_residual(x, _voxels(self, residual).features)
        if by_batch or not plain:
            y: VoxelTensor = self.conv(x)
            y = y if norm is None else norm(y)
            y = y if residual is None else y + residual
            # A hook may have kept the tensor; else nobody has it, and no gradient reads it.
            return y.map(torch.relu_ if plain else torch.relu) if self.relu else y
        plan = self.conv._plan(x)
        if residual is not None:
            _voxels(self, residual).check_coordinates(plan.target)
        return self.conv._run(x, plan, ConvFinish(norm, None if residual is None else residual.features, self.relu))

    def _check_residual(self, x: VoxelTensor, residual: Tensor) -> None:
        """The same in every mode, whatever an addition would make of it."""
        if residual.shape[1] != self.conv.out_channels:
            raise ValueError(
                f"[lacewing.ConvUnit] the residual has {residual.shape[1]} channels, but there are "
                f"{self.conv.out_channels} output channels"
            )
        if residual.dtype != x.features.dtype and not torch.is_autocast_enabled(residual.device.type):
            raise ValueError(
                f"[lacewing.ConvUnit] the residual has dtype {residual.dtype} but features have {x.features.dtype}"
            )

    def extra_repr(self) -> str:
        """What the layer's line shows."""
        return f"relu={self.relu}"


def _is_plain(layer: nn.Module) -> bool:
    """A layer of this module as it is: no hook, no hook of all modules, and no forward of another class."""
    own = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    hooks = (*own, all_modules._global_forward_hooks, all_modules._global_forward_pre_hooks)
    return type(layer).__module__ == __name__ and "forward" not in vars(layer) and not any(hooks)


class Pointwise(nn.Module):
    """Any module of (voxels, C) features, on the features of a VoxelTensor: ``Pointwise(nn.ReLU())``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        """The same voxels."""
        return _voxels(self, x).map(self.module)
