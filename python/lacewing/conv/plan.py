"""Convolution plans: which source voxel meets which target voxel under which tap, found once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, SupportsIndex

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .._library import ops
from .._plan import as_index_number, integer, outside_transforms, unwrapped

Targets = Literal["same", "strided", "reachable"]
"""The rule that makes target coordinates; a tensor gives them instead."""

PerAxis = SupportsIndex | Sequence[SupportsIndex]
Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Kernel size, stride and dilation."""

ALGORITHMS = ("automatic", "tiles", "gather_gemm_scatter")


def per_axis(op: str, name: str, value: PerAxis, axes: int) -> tuple[int, ...]:
    """One integer per axis; a single one is for all."""
    if not isinstance(value, (tuple, list)):  # torch.compile cannot follow an error of operator.index
        try:
            return (as_index_number(value),) * axes
        except TypeError:
            pass
    try:
        return tuple(as_index_number(v) for v in value)  # type: ignore[union-attr]
    except TypeError:
        raise TypeError(f"[lacewing.{op}] {name} must hold integers, not {value!r}") from None


def _build_map(
    fine: Tensor | None, coarse: Tensor | None, geometry: Geometry, targets: str
) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """The plan's array, its numbers, and the coordinates that were made; kept beyond any transform."""
    if any(not -(2**63) <= number < 2**63 for numbers in geometry for number in numbers):
        raise ValueError("[lacewing.convolution_plan] kernel_size, stride and dilation must fit 64 bits")
    with outside_transforms():
        fine, coarse = (given if given is None else unwrapped(given) for given in (fine, coarse))
        array, sizes, made = ops.sparse_conv_plan(fine, coarse, *geometry, targets, "convolution_plan")
    return array, tuple(sizes), made


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; tensors of inference mode and of a trace do not tell."""
    silent = torch.compiler.is_compiling() or not isinstance(tensor, Tensor) or tensor.is_inference()
    return 0 if silent else tensor._version


def check_plan(op: str, plan: object) -> ConvolutionPlan:
    """A plan is a ConvolutionPlan."""
    if not isinstance(plan, ConvolutionPlan):
        raise TypeError(f"[lacewing.{op}] plan must be a ConvolutionPlan, not {type(plan).__name__}")
    return plan


def check_algorithm(op: str, algorithm: object) -> None:
    """An algorithm is one of those names."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"[lacewing.{op}] algorithm must be one of {', '.join(ALGORITHMS)}, not {algorithm!r}")


def _axes(op: str, coordinates: object) -> int:
    if not isinstance(coordinates, Tensor):
        raise TypeError(f"[lacewing.{op}] coordinates must be a tensor, not {type(coordinates).__name__}")
    if coordinates.device.type == "meta":
        raise ValueError(f"[lacewing.{op}] coordinates on the meta device have no values, which a plan needs")
    return coordinates.shape[1] - 1 if coordinates.dim() == 2 else 0


def _geometry_of(op: str, coordinates: object, kernel_size: PerAxis, stride: PerAxis, dilation: PerAxis) -> Geometry:
    """Kernel size, stride and dilation, one number for each axis of the coordinates."""
    axes = _axes(op, coordinates)
    return (
        per_axis(op, "kernel_size", kernel_size, axes),
        per_axis(op, "stride", stride, axes),
        per_axis(op, "dilation", dilation, axes),
    )


class ConvolutionPlan:
    """The pairs (source voxel, target voxel) of each tap, sorted and tiled; immutable, for any number of layers.

    One relation holds per axis: ``fine = stride * coarse + dilation * (tap - (kernel_size - 1) // 2)``. A plan from
    ``ConvolutionPlan.build`` goes from fine to coarse voxels, a transposed one back, over the same memory. Coordinates
    are int32 tensors (voxels, 1 + axes) with the batch index first and 1 to 4 axes. Plans pickle, copy, move between
    devices and pass through ``torch.compile``. A plan keeps the tensors of coordinates that it was built from; where
    one is changed in place, the plan refuses to check voxels from then on.

    >>> plan = ConvolutionPlan.build(coordinates, kernel_size=3)
    >>> out = sparse_conv(features, weight, plan)
    """

    source: Tensor
    """(source voxels, 1 + axes): the coordinates that features come on."""
    target: Tensor
    """(target voxels, 1 + axes): the coordinates of the result."""
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    is_transposed: bool
    """Whether it goes from coarse to fine voxels."""

    _array: Tensor
    _sizes: tuple[int, ...]
    _reversed: tuple[int, ...]
    _versions: tuple[int, int]

    @staticmethod
    def _make(
        array: Tensor,
        sizes: tuple[int, ...],
        source: Tensor,
        target: Tensor,
        geometry: Geometry,
        is_transposed: bool = False,
        versions: tuple[int, int] | None = None,
        reversed_sizes: tuple[int, ...] | None = None,
    ) -> ConvolutionPlan:
        plan = object.__new__(ConvolutionPlan)
        kernel_size, stride, dilation = geometry
        state = {"_array": array, "_sizes": sizes, "source": source, "target": target, "is_transposed": is_transposed}
        state |= {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        state["_reversed"] = reversed_sizes or tuple(ops.conv_plan_reversed(sizes))
        state["_versions"] = (version_of(source), version_of(target)) if versions is None else versions
        for name, value in state.items():
            object.__setattr__(plan, name, value)
        return plan

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"[lacewing.convolution_plan] a plan is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"[lacewing.convolution_plan] a plan is immutable: {name} cannot be deleted")

    def __init__(self) -> None:
        raise TypeError("[lacewing.ConvolutionPlan] use ConvolutionPlan.build or ConvolutionPlan.build_transposed")

    @staticmethod
    def build(
        coordinates: Tensor,
        kernel_size: PerAxis = 3,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        targets: Targets | Tensor = "same",
    ) -> ConvolutionPlan:
        """The plan of a convolution from these coordinates.

        ``targets``: ``"same"`` keeps the coordinates (submanifold), ``"strided"`` takes the unique
        ``floor(coordinate / stride)``, ``"reachable"`` every voxel that a tap leads to (complete support), a tensor
        gives them. Raises RuntimeError with one sentence for coordinates that repeat or do not fit.
        """
        op = "convolution_plan"
        geometry = _geometry_of(op, coordinates, kernel_size, stride, dilation)
        if isinstance(targets, Tensor):
            array, sizes, _ = _build_map(coordinates, targets, geometry, "given")
            target = targets
        else:
            if not isinstance(targets, str) or targets not in ("same", "strided", "reachable"):
                raise ValueError(
                    f"[lacewing.{op}] targets must be a tensor, 'same', 'strided' or 'reachable', not {targets!r}"
                )
            array, sizes, made = _build_map(coordinates, None, geometry, targets)
            target = coordinates if targets == "same" else made
        return ConvolutionPlan._make(array, sizes, coordinates, target, geometry)

    @staticmethod
    def build_transposed(
        coordinates: Tensor,
        kernel_size: PerAxis = 2,
        stride: PerAxis = 2,
        dilation: PerAxis = 1,
        targets: Literal["reachable"] | Tensor = "reachable",
    ) -> ConvolutionPlan:
        """The plan of a transposed convolution from these (coarse) coordinates to fine ones.

        ``targets``: ``"reachable"`` makes every fine voxel that a tap leads to (generative); a tensor gives them.
        """
        op = "convolution_plan"
        geometry = _geometry_of(op, coordinates, kernel_size, stride, dilation)
        if isinstance(targets, Tensor):
            array, sizes, _ = _build_map(targets, coordinates, geometry, "given")
            fine = targets
        else:
            if not isinstance(targets, str) or targets != "reachable":
                raise ValueError(f"[lacewing.{op}] targets must be a tensor or 'reachable', not {targets!r}")
            array, sizes, fine = _build_map(None, coordinates, geometry, "reachable")
        return ConvolutionPlan._make(array, sizes, fine, coordinates, geometry).transposed()

    def transposed(self) -> ConvolutionPlan:
        """The same pairs with source and target exchanged; shares all memory, costs nothing."""
        return self._with(self._reversed, self._sizes, transposed=True)

    def with_algorithm(self, algorithm: str) -> ConvolutionPlan:
        """The same plan with an algorithm pinned: ``"automatic"``, ``"tiles"`` or ``"gather_gemm_scatter"``.

        Automatic takes the tiles on the CPU, on CUDA the tensor cores for half types and else gather-GEMM-scatter.
        """
        check_algorithm("convolution_plan", algorithm)
        sizes, back = (tuple(ops.conv_plan_with(numbers, algorithm)) for numbers in (self._sizes, self._reversed))
        return self._with(sizes, back)

    def _with(
        self, sizes: tuple[int, ...], reversed_sizes: tuple[int, ...], transposed: bool = False
    ) -> ConvolutionPlan:
        """The same pairs by other numbers."""
        ends, versions = (self.source, self.target), self._versions
        if transposed:
            ends, versions = ends[::-1], versions[::-1]
        direction = self.is_transposed != transposed
        return self._make(self._array, sizes, *ends, self._geometry, direction, versions, reversed_sizes)

    def to(self, device: torch.device | str) -> ConvolutionPlan:
        """The plan on another device."""
        if not isinstance(device, (torch.device, str)):
            raise TypeError(f"[lacewing.convolution_plan] device must be a torch.device or its name, not {device!r}")
        self._check_unchanged()
        source = self.source.to(device)
        target = source if self.target is self.source else self.target.to(device)
        return self._make(
            self._array.to(device),
            self._sizes,
            source,
            target,
            self._geometry,
            self.is_transposed,
            None,
            self._reversed,
        )

    def is_unchanged(self) -> bool:
        """Whether the coordinates are what they were when the plan was built, as far as their versions tell."""
        current = version_of(self.source), version_of(self.target)
        return current == self._versions or torch.compiler.is_compiling()

    def _check_unchanged(self) -> None:
        if not self.is_unchanged():
            raise ValueError(
                "[lacewing.convolution_plan] the coordinates of the plan were changed in place after it was built"
            )

    def check_source(self, coordinates: Tensor) -> None:
        """Raises ValueError where features on these coordinates are not features on the plan's source, row by row."""
        self._check_unchanged()
        if coordinates is self.source:
            return
        if not isinstance(coordinates, Tensor) or coordinates.dtype != torch.int32:
            kind = coordinates.dtype if isinstance(coordinates, Tensor) else type(coordinates).__name__
            raise ValueError(f"[lacewing.convolution_plan] coordinates must be a tensor of int32, not {kind}")
        if torch.equal(coordinates, self.source):
            return
        if coordinates.shape != self.source.shape:
            raise ValueError(
                f"[lacewing.convolution_plan] coordinates of shape {tuple(coordinates.shape)} are not the plan's "
                f"source coordinates of shape {tuple(self.source.shape)}"
            )
        row = int((coordinates != self.source).any(1).nonzero()[0])
        raise ValueError(
            f"[lacewing.convolution_plan] the plan belongs to other coordinates: coordinates[{row}] = "
            f"{tuple(coordinates[row].tolist())}, but its source has {tuple(self.source[row].tolist())} there"
        )

    @property
    def _geometry(self) -> Geometry:
        return self.kernel_size, self.stride, self.dilation

    @property
    def algorithm(self) -> str:
        """The algorithm that is pinned, or ``"automatic"``."""
        name: str = ops.conv_plan_algorithm(self._sizes)
        return name

    @property
    def device(self) -> torch.device:
        """Where the plan lies."""
        return self._array.device

    @property
    def taps(self) -> int:
        """The number of taps: the product of kernel_size."""
        return math.prod(self.kernel_size)

    @property
    def pair_count(self) -> int:
        """How many pairs all taps have together."""
        count: int = ops.conv_plan_pair_count(self._sizes)
        return count

    def pairs(self, tap: int) -> tuple[Tensor, Tensor]:
        """Source and target rows of a tap, copied; both increase in the sorted order of the voxels."""
        source, target = ops.conv_plan_pairs(self._array, self._sizes, integer("convolution_plan", "tap", tap))
        return source, target

    def __repr__(self) -> str:
        arrow = f"{len(self.source)} -> {len(self.target)} voxels, {self.pair_count} pairs"
        kernel = f"kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}"
        return f"ConvolutionPlan({arrow}, {kernel}, transposed={self.is_transposed}, algorithm={self.algorithm!r})"

    def __getstate__(self) -> dict[str, Any]:
        self._check_unchanged()
        return {name: value for name, value in self.__dict__.items() if name not in _DERIVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = (*_LEAVES, "_sizes", "kernel_size", "stride", "dilation")
        missing = [name for name in names if name not in state]
        if missing:
            raise ValueError(f"[lacewing.convolution_plan] this is not a plan as it was saved: {missing[0]} is missing")
        array, source, target, sizes, *geometry = (state[name] for name in names)
        for name in names:
            kinds = Tensor if name in _LEAVES else tuple
            if not isinstance(state[name], kinds) or (kinds is tuple and not all(type(v) is int for v in state[name])):
                raise ValueError(
                    f"[lacewing.convolution_plan] this is not a plan as it was saved: {name} is no "
                    f"{'tensor' if kinds is Tensor else 'tuple of integers'}"
                )
        if not isinstance(array, FakeTensor):
            ops.check_conv_plan(array, source, target, sizes, *geometry)
        kernel_size, stride, dilation = geometry
        transposed = bool(ops.conv_plan_is_reversed(sizes))
        plan = self._make(array, sizes, source, target, (kernel_size, stride, dilation), transposed)
        self.__dict__.update(plan.__dict__)


# So that torch.load takes saved plans with its default, weights_only=True.
torch.serialization.add_safe_globals([ConvolutionPlan])

_LEAVES = ("_array", "source", "target")
_DERIVED = ("_versions", "_reversed", "is_transposed")


def _flatten(plan: ConvolutionPlan) -> tuple[list[Any], Any]:
    return [getattr(plan, name) for name in _LEAVES], (plan._sizes, plan._reversed, plan.is_transposed, plan._geometry)


def _flatten_with_keys(plan: ConvolutionPlan) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(plan)
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(_LEAVES, leaves, strict=True)], context


def _unflatten(leaves: Any, context: Any) -> ConvolutionPlan:
    array, source, target = leaves
    sizes, reversed_sizes, transposed, geometry = context
    return ConvolutionPlan._make(array, tuple(sizes), source, target, geometry, transposed, None, tuple(reversed_sizes))


def _to_json(context: Any) -> Any:
    sizes, reversed_sizes, transposed, geometry = context
    return [list(sizes), list(reversed_sizes), transposed, [list(values) for values in geometry]]


def _from_json(context: Any) -> Any:
    sizes, reversed_sizes, transposed, geometry = context
    return tuple(sizes), tuple(reversed_sizes), transposed, tuple(tuple(values) for values in geometry)


pytree.register_pytree_node(
    ConvolutionPlan,
    _flatten,
    _unflatten,
    serialized_type_name="lacewing.ConvolutionPlan",
    to_dumpable_context=_to_json,
    from_dumpable_context=_from_json,
    flatten_with_keys_fn=_flatten_with_keys,
)
