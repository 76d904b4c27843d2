"""Convolution plans: which source voxel meets which target voxel under which tap, found once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .._library import ops

Targets = Literal["same", "strided", "reachable"]
"""The rule that makes target coordinates; a tensor gives them instead."""

PerAxis = int | Sequence[int]

ALGORITHMS = ("automatic", "tiles", "gather_gemm_scatter")
_REVERSED = 1
_ALGORITHM = 6
_HEADER = 7


def per_axis(op: str, name: str, value: PerAxis, axes: int) -> tuple[int, ...]:
    """One integer per axis; a single one is for all."""
    values = (value,) * axes if isinstance(value, int) else tuple(value)
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise TypeError(f"[lacewing.{op}] {name} must hold integers, not {value!r}")
    return values


def _axes(op: str, coordinates: object) -> int:
    if not isinstance(coordinates, Tensor):
        raise TypeError(f"[lacewing.{op}] coordinates must be a tensor, not {type(coordinates).__name__}")
    return coordinates.shape[1] - 1 if coordinates.dim() == 2 else 0


def _geometry_of(
    op: str, coordinates: object, kernel_size: PerAxis, stride: PerAxis, dilation: PerAxis
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
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
    devices and pass through ``torch.compile``.

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

    _array: Tensor
    _meta: tuple[int, ...]

    @staticmethod
    def _make(
        array: Tensor,
        meta: tuple[int, ...],
        source: Tensor,
        target: Tensor,
        geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    ) -> ConvolutionPlan:
        plan = object.__new__(ConvolutionPlan)
        plan._array, plan._meta, plan.source, plan.target = array, meta, source, target
        plan.kernel_size, plan.stride, plan.dilation = geometry
        return plan

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
            array, meta, _ = ops.sparse_conv_plan(coordinates, targets, *geometry, "given", op)
            target = targets
        else:
            if targets not in ("same", "strided", "reachable"):
                raise ValueError(
                    f"[lacewing.{op}] targets must be a tensor, 'same', 'strided' or 'reachable', not {targets!r}"
                )
            array, meta, made = ops.sparse_conv_plan(coordinates, None, *geometry, targets, op)
            target = coordinates if targets == "same" else made
        return ConvolutionPlan._make(array, tuple(meta.tolist()), coordinates, target, geometry)

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
            array, meta, _ = ops.sparse_conv_plan(targets, coordinates, *geometry, "given", op)
            fine = targets
        else:
            if targets != "reachable":
                raise ValueError(f"[lacewing.{op}] targets must be a tensor or 'reachable', not {targets!r}")
            array, meta, fine = ops.sparse_conv_plan(None, coordinates, *geometry, "reachable", op)
        return ConvolutionPlan._make(array, tuple(meta.tolist()), fine, coordinates, geometry).transposed()

    def transposed(self) -> ConvolutionPlan:
        """The same pairs with source and target exchanged; shares all memory, costs nothing."""
        meta = (*self._meta[:3], self._meta[3] ^ _REVERSED, *self._meta[4:])
        return self._make(self._array, meta, self.target, self.source, self._geometry)

    def with_algorithm(self, algorithm: str) -> ConvolutionPlan:
        """The same plan with an algorithm pinned: ``"automatic"``, ``"tiles"`` or ``"gather_gemm_scatter"``.

        Automatic takes the tiles on the CPU and gather-GEMM-scatter on CUDA.
        """
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"[lacewing.convolution_plan] algorithm must be one of {', '.join(ALGORITHMS)}, not {algorithm!r}"
            )
        meta = (*self._meta[:_ALGORITHM], ALGORITHMS.index(algorithm), *self._meta[_ALGORITHM + 1 :])
        return self._make(self._array, meta, self.source, self.target, self._geometry)

    def to(self, device: torch.device | str) -> ConvolutionPlan:
        """The plan on another device."""
        source = self.source.to(device)
        target = source if self.target is self.source else self.target.to(device)
        return self._make(self._array.to(device), self._meta, source, target, self._geometry)

    def check_source(self, coordinates: Tensor) -> None:
        """Raises ValueError where features on these coordinates are not features on the plan's source, row by row."""
        if coordinates is self.source or torch.equal(coordinates, self.source):
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
    def _geometry(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return self.kernel_size, self.stride, self.dilation

    @property
    def is_transposed(self) -> bool:
        """Whether it goes from coarse to fine voxels."""
        return bool(self._meta[3] & _REVERSED)

    @property
    def algorithm(self) -> str:
        """The algorithm that is pinned, or ``"automatic"``."""
        return ALGORITHMS[self._meta[_ALGORITHM]]

    @property
    def device(self) -> torch.device:
        """Where the plan lies."""
        return self._array.device

    @property
    def taps(self) -> int:
        """The number of taps: the product of kernel_size."""
        return self._meta[2]

    @property
    def pair_count(self) -> int:
        """How many pairs all taps have together."""
        return self._meta[-1]

    def pairs(self, tap: int) -> tuple[Tensor, Tensor]:
        """Source and target rows of a tap, as views; both increase in the sorted order of the voxels."""
        begin, end = self._meta[_HEADER + tap], self._meta[_HEADER + tap + 1]
        fine, coarse = self._array[begin:end], self._array[self.pair_count + begin : self.pair_count + end]
        return (coarse, fine) if self.is_transposed else (fine, coarse)

    def __repr__(self) -> str:
        arrow = f"{len(self.source)} -> {len(self.target)} voxels, {self.pair_count} pairs"
        kernel = f"kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}"
        return f"ConvolutionPlan({arrow}, {kernel}, transposed={self.is_transposed}, algorithm={self.algorithm!r})"

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


_LEAVES = ("_array", "source", "target")


def _flatten(plan: ConvolutionPlan) -> tuple[list[Any], Any]:
    return [getattr(plan, name) for name in _LEAVES], (plan._meta, plan._geometry)


def _flatten_with_keys(plan: ConvolutionPlan) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(plan)
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(_LEAVES, leaves, strict=True)], context


def _unflatten(leaves: Any, context: Any) -> ConvolutionPlan:
    array, source, target = leaves
    meta, geometry = context
    return ConvolutionPlan._make(array, tuple(meta), source, target, geometry)


pytree.register_pytree_node(
    ConvolutionPlan,
    _flatten,
    _unflatten,
    serialized_type_name="lacewing.ConvolutionPlan",
    flatten_with_keys_fn=_flatten_with_keys,
)
