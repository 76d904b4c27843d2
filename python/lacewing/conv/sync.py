"""Batch normalisation over the voxels of all ranks."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .layers import VoxelBatchNorm, _voxels
from .tensor import VoxelTensor


class SyncVoxelBatchNorm(VoxelBatchNorm):
    """Batch normalisation over all voxels of all clouds of all ranks of ``process_group`` (default: the whole world).

    As nn.SyncBatchNorm, on any device: every rank calls it as often as the others, and one without voxels takes part.
    Two collectives of C and C + 1 float64 numbers each way; what one process would compute, to rounding. Where there
    is no process group, in evaluation, and on one rank it is VoxelBatchNorm.

    >>> network = convert_sync_batchnorm(network)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_group = process_group

    def forward(self, x: VoxelTensor) -> VoxelTensor:  # type: ignore[override]
        """The same voxels."""
        by_batch = self.training or self.running_mean is None
        if not by_batch or not dist.is_initialized() or dist.get_world_size(self.process_group) == 1:
            return super().forward(x)
        return _voxels(self, x).map(self._normalised)

    def _sum_over_ranks(self, part: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        return cast(Tensor, all_reduce(part, group=self.process_group))  # type: ignore[no-untyped-call]

    def _normalised(self, features: Tensor) -> Tensor:
        if features.shape[1] != self.num_features:
            raise ValueError(
                f"[lacewing.SyncVoxelBatchNorm] the features have {features.shape[1]} channels, not {self.num_features}"
            )
        numbers = features if features.dtype == torch.float64 else features.float()
        sums = numbers.sum(0, dtype=torch.float64)
        totals = self._sum_over_ranks(torch.cat([sums.new_full((1,), len(features)), sums]))
        count = totals[0].detach()
        if count <= 1:
            raise ValueError(
                f"[lacewing.SyncVoxelBatchNorm] training needs more than one voxel on all ranks together, not {count:g}"
            )
        mean = totals[1:] / count
        centred = numbers - mean.to(numbers.dtype)
        variance = self._sum_over_ranks(centred.square().sum(0, dtype=torch.float64)) / count
        self._track(mean.detach(), variance.detach() * (count / (count - 1)))
        result = centred * (variance + self.eps).rsqrt().to(numbers.dtype)
        if self.affine:
            result = result * self.weight + self.bias
        return result.to(features.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def convert_sync_batchnorm(module: nn.Module, process_group: Any = None) -> nn.Module:
    """The module with a SyncVoxelBatchNorm in place of each VoxelBatchNorm, of the same parameters and buffers.

    torch's ``nn.SyncBatchNorm.convert_sync_batchnorm`` puts layers there that take no voxels; call it for the layers of
    a network on strided tensors after this one, on those layers.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"[lacewing.convert_sync_batchnorm] module must be a module, not {type(module).__name__}")
    if isinstance(module, SyncVoxelBatchNorm):
        module.process_group = process_group
        return module
    if isinstance(module, VoxelBatchNorm):
        made = SyncVoxelBatchNorm.__new__(SyncVoxelBatchNorm)
        made.__dict__ = module.__dict__ | {"process_group": process_group}
        return made
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child, process_group))
    return module
