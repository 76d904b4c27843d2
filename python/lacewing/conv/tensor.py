"""Features on voxels, with the plans that a network has built for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .plan import ConvolutionPlan, Targets

Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class PlanCache:
    """The plans of one set of clouds: layers with the same coordinates and kernel share one.

    Coordinates are known by their tensor, not by their values: the cache keeps them. All strided layers with one stride
    lead to the same tensor of coarse coordinates, whatever their kernel.
    """

    def __init__(self, algorithm: str = "automatic") -> None:
        self.algorithm = algorithm
        self._plans: dict[tuple[int, Geometry, object], ConvolutionPlan] = {}
        self._strided: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def plan(self, coordinates: Tensor, geometry: Geometry, targets: Targets | Tensor) -> ConvolutionPlan:
        """The plan of a convolution from these coordinates, built at the first call."""
        kernel_size, stride, dilation = geometry
        wanted = id(targets) if isinstance(targets, Tensor) else targets
        key = (id(coordinates), geometry, wanted)
        if key not in self._plans:
            known = self._strided.get((id(coordinates), stride)) if targets == "strided" else None
            plan = ConvolutionPlan.build(
                coordinates, kernel_size, stride, dilation, targets if known is None else known
            ).with_algorithm(self.algorithm)
            if targets == "strided":
                self._strided[id(coordinates), stride] = plan.target
            self._plans[key] = plan
        return self._plans[key]

    def transposed(self, coordinates: Tensor, geometry: Geometry, targets: Tensor | None = None) -> ConvolutionPlan:
        """The plan of a transposed convolution from these coordinates, to all reachable ones where none are given."""
        key = (id(coordinates), geometry, ("transposed", id(targets)))
        if key not in self._plans:
            self._plans[key] = ConvolutionPlan.build_transposed(
                coordinates, *geometry, "reachable" if targets is None else targets
            ).with_algorithm(self.algorithm)
        return self._plans[key]

    def inverse(self, coordinates: Tensor, geometry: Geometry) -> ConvolutionPlan:
        """The reversal of the plan that led to these coordinates with this kernel."""
        for plan in self._plans.values():
            if plan.target is coordinates and plan._geometry == geometry and not plan.is_transposed:
                return plan.transposed()
        kernel_size, stride, dilation = geometry
        raise ValueError(
            f"[lacewing.InverseConv] no layer with kernel_size {kernel_size}, stride {stride} and dilation {dilation} "
            "led to these voxels"
        )


class VoxelTensor:
    """Features (voxels, C) on coordinates (voxels, 1 + axes), int32 with the batch index first; distinct voxels.

    ``stride`` tells how many units of the first level one step is, per axis. Layers return tensors that share the
    cache, so plans are built once for a cloud.

    >>> x = VoxelTensor(features, coordinates)
    >>> y = SubmanifoldConv(4, 32)(x)
    """

    def __init__(
        self,
        features: Tensor,
        coordinates: Tensor,
        batch_size: int | None = None,
        stride: int | Sequence[int] = 1,
        cache: PlanCache | None = None,
    ) -> None:
        if coordinates.dim() != 2 or coordinates.dtype != torch.int32:
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
        self.stride = (stride,) * self.axes if isinstance(stride, int) else tuple(stride)
        self.cache = PlanCache() if cache is None else cache
        self._batch_size = batch_size

    @property
    def axes(self) -> int:
        """The number of spatial axes."""
        return self.coordinates.shape[1] - 1

    @property
    def batch_size(self) -> int:
        """The number of clouds: as given, or one more than the largest batch index."""
        if self._batch_size is None:
            self._batch_size = int(self.coordinates[:, 0].max()) + 1 if len(self.coordinates) else 0
        return self._batch_size

    @property
    def offsets(self) -> Tensor:
        """(batch_size + 1,): where the rows of each cloud begin; the coordinates must be grouped by batch index."""
        counts = torch.bincount(self.coordinates[:, 0], minlength=self.batch_size)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def replace(self, features: Tensor) -> VoxelTensor:
        """Other features on the same voxels."""
        return VoxelTensor(features, self.coordinates, self._batch_size, self.stride, self.cache)

    def map(self, function: Callable[[Tensor], Tensor]) -> VoxelTensor:
        """The function of the features, on the same voxels."""
        return self.replace(function(self.features))

    def on(self, features: Tensor, coordinates: Tensor, stride: tuple[int, ...]) -> VoxelTensor:
        """Features on other voxels of the same clouds; shares the cache."""
        return VoxelTensor(features, coordinates, self._batch_size, stride, self.cache)

    def _check_same(self, other: VoxelTensor) -> None:
        if self.coordinates is not other.coordinates and not torch.equal(self.coordinates, other.coordinates):
            raise ValueError(
                f"[lacewing.VoxelTensor] the two tensors lie on different voxels ({len(self.coordinates)} and "
                f"{len(other.coordinates)} of them)"
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
        if mask.dtype != torch.bool or mask.shape != (len(self.coordinates),):
            raise ValueError(
                f"[lacewing.VoxelTensor] mask must be {len(self.coordinates)} booleans, not {mask.dtype} of shape "
                f"{tuple(mask.shape)}"
            )
        return self.on(self.features[mask], self.coordinates[mask], self.stride)

    def to(self, device: torch.device | str) -> VoxelTensor:
        """The tensor on another device, with an empty cache."""
        return VoxelTensor(
            self.features.to(device),
            self.coordinates.to(device),
            self._batch_size,
            self.stride,
            PlanCache(self.cache.algorithm),
        )

    def __len__(self) -> int:
        return len(self.coordinates)

    def __repr__(self) -> str:
        shape = f"{len(self)} voxels, {self.features.shape[1]} channels"
        return f"VoxelTensor({shape}, axes={self.axes}, stride={self.stride}, {self.features.dtype})"
