"""Features on voxels, with the plans that a network has built for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._plan import check_tensor
from .plan import ConvolutionPlan, Geometry, PerAxis, Targets, check_algorithm, per_axis, version_of

_Identity = tuple[int, int]


def _identity(tensor: Tensor) -> _Identity:
    """A tensor and how often it was changed in place."""
    return id(tensor), version_of(tensor)


class PlanCache:
    """The plans of one set of clouds: layers with the same coordinates and kernel share one.

    Coordinates are known by their tensor and its version, not by their values: the cache keeps them, and one that was
    changed in place gets new plans (tensors of inference mode do not tell, nor does memory that is written past torch).
    All strided layers with one stride lead to the same tensor of coarse coordinates, whatever their kernel. Copies and
    pickles of a cache are empty: their tensors are others.
    """

    def __init__(self, algorithm: str = "automatic") -> None:
        check_algorithm("PlanCache", algorithm)
        self.algorithm = algorithm
        self._plans: dict[tuple[_Identity, Geometry, object], ConvolutionPlan] = {}
        self._strided: dict[tuple[_Identity, tuple[int, ...]], ConvolutionPlan] = {}

    def __getstate__(self) -> dict[str, str]:
        return {"algorithm": self.algorithm}

    def __setstate__(self, state: dict[str, str]) -> None:
        PlanCache.__init__(self, state["algorithm"])

    def __len__(self) -> int:
        return len(self._plans)

    def plan(self, coordinates: Tensor, geometry: Geometry, targets: Targets | Tensor) -> ConvolutionPlan:
        """The plan of a convolution from these coordinates, built at the first call."""
        kernel_size, stride, dilation = geometry
        source = _identity(coordinates)
        strided = isinstance(targets, str) and targets == "strided"
        key = (source, geometry, _identity(targets) if isinstance(targets, Tensor) else targets)
        if key not in self._plans:
            known = self._strided.get((source, stride)) if strided else None
            plan = ConvolutionPlan.build(
                coordinates, kernel_size, stride, dilation, known.target if known and known.is_unchanged() else targets
            ).with_algorithm(self.algorithm)
            if strided:
                self._strided[source, stride] = plan
            self._plans[key] = plan
        return self._plans[key]

    def transposed(self, coordinates: Tensor, geometry: Geometry, targets: Tensor | None = None) -> ConvolutionPlan:
        """The plan of a transposed convolution from these coordinates, to all reachable ones where none are given."""
        key = (_identity(coordinates), geometry, ("transposed", targets if targets is None else _identity(targets)))
        if key not in self._plans:
            self._plans[key] = ConvolutionPlan.build_transposed(
                coordinates, *geometry, "reachable" if targets is None else targets
            ).with_algorithm(self.algorithm)
        return self._plans[key]

    def inverse(self, coordinates: Tensor, geometry: Geometry, layer: str = "InverseConv") -> ConvolutionPlan:
        """The reversal of the plan that led to these coordinates with this kernel; ``layer`` is who asks."""
        found: ConvolutionPlan | None = None
        kernel = "kernel_size {}, stride {} and dilation {}".format(*geometry)
        for plan in self._plans.values():
            if plan.target is coordinates and plan._geometry == geometry and not plan.is_transposed:
                if found is not None and found.source is not plan.source:
                    raise ValueError(f"[lacewing.{layer}] layers with {kernel} led to these voxels from different ones")
                found = plan
        if found is None:
            raise ValueError(f"[lacewing.{layer}] no layer with {kernel} led to these voxels")
        return found.transposed()


class _Clouds:
    """What tells the number of clouds: it was given, or it follows from these voxels and from those before."""

    def __init__(self, given: int | None, coordinates: Tensor, before: _Clouds | None = None) -> None:
        self.given, self._coordinates, self._before = given, coordinates, before
        self._count: int | None = given

    def count(self) -> int:
        if self._count is None:
            here = int(self._coordinates[:, 0].max()) + 1 if len(self._coordinates) else 0
            self._count = here if self._before is None else max(here, self._before.count())
        return self._count


class _History(NamedTuple):
    """What tells the number of clouds, and the plans that led to these voxels, the last one first."""

    clouds: _Clouds
    way: tuple[ConvolutionPlan, ...] = ()


@dataclasses.dataclass(init=False, repr=False, eq=False)
class VoxelTensor:
    """Features (voxels, C) on coordinates (voxels, 1 + axes), int32 with the batch index first; distinct voxels.

    ``stride`` tells how many units of the first level one step is, per axis: strided layers multiply it, transposed
    and inverse ones divide it, down to 1 (a layer that goes finer than the first level leaves it at 1). Layers return
    tensors that share the cache, so plans are built once for a cloud. It is a dataclass, in which FSDP2, DDP and others
    find the tensors.

    >>> x = VoxelTensor(features, coordinates)
    >>> y = SubmanifoldConv(4, 32)(x)
    """

    features: Tensor
    coordinates: Tensor
    stride: tuple[int, ...]
    cache: PlanCache
    _history: _History

    def __init__(
        self,
        features: Tensor,
        coordinates: Tensor,
        batch_size: int | None = None,
        stride: PerAxis = 1,
        cache: PlanCache | None = None,
        _history: _History | None = None,
    ) -> None:
        check_tensor("VoxelTensor", "features", features)
        check_tensor("VoxelTensor", "coordinates", coordinates)
        if features.layout != torch.strided:
            raise ValueError(f"[lacewing.VoxelTensor] features must be a dense tensor, not one of {features.layout}")
        if coordinates.dim() != 2 or coordinates.shape[1] < 2 or coordinates.dtype != torch.int32:
            raise ValueError(
                f"[lacewing.VoxelTensor] coordinates must be int32 of shape (voxels, 1 + axes), not {coordinates.dtype}"
                f" of shape {tuple(coordinates.shape)}"
            )
        if features.dim() != 2 or len(features) != len(coordinates):
            raise ValueError(
                f"[lacewing.VoxelTensor] features of shape {tuple(features.shape)} do not have one row for each of the "
                f"{len(coordinates)} voxels"
            )
        self.features = features
        self.coordinates = coordinates
        self.stride = per_axis("VoxelTensor", "stride", stride, self.axes)
        if len(self.stride) != self.axes or not all(step > 0 for step in self.stride):
            raise ValueError(f"[lacewing.VoxelTensor] stride must be {self.axes} positive integers, not {stride!r}")
        if batch_size is not None and (not hasattr(batch_size, "__index__") or batch_size < 0):
            raise ValueError(f"[lacewing.VoxelTensor] batch_size must be an integer of at least 0, not {batch_size!r}")
        if cache is not None and not isinstance(cache, PlanCache):
            raise TypeError(f"[lacewing.VoxelTensor] cache must be a PlanCache, not {type(cache).__name__}")
        self.cache = PlanCache() if cache is None else cache
        self._history = _History(_Clouds(batch_size, coordinates)) if _history is None else _history

    @property
    def axes(self) -> int:
        """The number of spatial axes."""
        return self.coordinates.shape[1] - 1

    @property
    def batch_size(self) -> int:
        """The number of clouds: as given, or one more than the largest batch index.

        Batch indices of the voxels that layers and ``prune`` came from count too: a cloud that lost all of its voxels
        is still one of the batch.
        """
        return self._history.clouds.count()

    @property
    def offsets(self) -> Tensor:
        """(batch_size + 1,): where the rows of each cloud begin. Raises ValueError where rows are not grouped so."""
        batch = self.coordinates[:, 0]
        if len(batch) and (int(batch[0]) < 0 or int(batch[-1]) >= self.batch_size or bool((batch.diff() < 0).any())):
            raise ValueError(
                f"[lacewing.VoxelTensor] the rows are not grouped by batch indices 0 to {self.batch_size - 1}"
            )
        counts = torch.bincount(batch, minlength=self.batch_size)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def replace(self, features: Tensor) -> VoxelTensor:
        """Other features on the same voxels."""
        return self.on(features, self.coordinates, self.stride)

    def map(self, function: Callable[[Tensor], Tensor]) -> VoxelTensor:
        """The function of the features, on the same voxels."""
        return self.replace(function(self.features))

    def on(self, features: Tensor, coordinates: Tensor, stride: tuple[int, ...]) -> VoxelTensor:
        """Features on other voxels of the same clouds; shares the cache."""
        clouds = self._history.clouds
        if coordinates is not self.coordinates and clouds.given is None:
            clouds = _Clouds(None, coordinates, clouds)
        return VoxelTensor(features, coordinates, None, stride, self.cache, self._history._replace(clouds=clouds))

    def through(self, plan: ConvolutionPlan, features: Tensor, stride: tuple[int, ...]) -> VoxelTensor:
        """Features on the plan's targets; the plan is remembered as the way here, so that layers find the way back."""
        result = self.on(features, plan.target, stride)
        if not plan.is_transposed and plan.target is not plan.source:
            result._history = result._history._replace(way=(plan, *self._history.way))
        return result

    def way_back(self, geometry: Geometry, layer: str) -> ConvolutionPlan:
        """The reversal of the plan with this kernel that these features came by, or else of the cache's."""
        for plan in self._history.way:
            if plan.target is self.coordinates and plan._geometry == geometry:
                return plan.transposed()
        return self.cache.inverse(self.coordinates, geometry, layer)

    def check_coordinates(self, coordinates: Tensor) -> None:
        """An error where these are not the tensor's coordinates."""
        if self.coordinates is not coordinates and not torch.equal(self.coordinates, coordinates):
            raise ValueError(
                f"[lacewing.VoxelTensor] the two tensors lie on different voxels ({len(coordinates)} and "
                f"{len(self.coordinates)} of them)"
            )

    def _check_same(self, other: VoxelTensor) -> None:
        if not isinstance(other, VoxelTensor):
            raise TypeError(f"[lacewing.VoxelTensor] the other must be a VoxelTensor, not {type(other).__name__}")
        other.check_coordinates(self.coordinates)
        if other.stride != self.stride:
            raise ValueError(
                f"[lacewing.VoxelTensor] the two tensors have the strides {self.stride} and {other.stride}"
            )

    def __add__(self, other: VoxelTensor) -> VoxelTensor:
        self._check_same(other)
        return self.replace(self.features + other.features)

    def cat(self, other: VoxelTensor) -> VoxelTensor:
        """Both tensors' channels side by side; both must lie on the same voxels."""
        self._check_same(other)
        return self.replace(torch.cat([self.features, other.features], 1))

    def prune(self, mask: Tensor) -> VoxelTensor:
        """The voxels where the mask (voxels,) of booleans is true."""
        if not isinstance(mask, Tensor):
            raise TypeError(f"[lacewing.VoxelTensor] mask must be a tensor, not {type(mask).__name__}")
        if mask.dtype != torch.bool or mask.shape != (len(self.coordinates),):
            raise ValueError(
                f"[lacewing.VoxelTensor] mask must be {len(self.coordinates)} booleans, not {mask.dtype} of shape "
                f"{tuple(mask.shape)}"
            )
        return self.on(self.features[mask], self.coordinates[mask], self.stride)

    def to(self, target: torch.device | str | torch.dtype) -> VoxelTensor:
        """The tensor on another device, with an empty cache, or with features of another dtype, on the same voxels."""
        if isinstance(target, torch.dtype):
            return self.map(lambda features: features.to(target))
        if not isinstance(target, (torch.device, str)):
            raise TypeError(f"[lacewing.VoxelTensor] to() takes a device or a dtype, not {target!r}")
        if self.coordinates.to(target) is self.coordinates:
            return self.replace(self.features.to(target))
        cache = PlanCache(self.cache.algorithm)
        history = _History(self._history.clouds)
        return VoxelTensor(self.features.to(target), self.coordinates.to(target), None, self.stride, cache, history)

    def __len__(self) -> int:
        return len(self.coordinates)

    def __repr__(self) -> str:
        shape = f"{len(self)} voxels, {self.features.shape[1]} channels"
        return f"VoxelTensor({shape}, axes={self.axes}, stride={self.stride}, {self.features.dtype})"
