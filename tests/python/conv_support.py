"""Clouds, and two oracles of sparse convolution that share no code with the library: dictionaries and dense grids."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from lacewing.conv import ConvolutionPlan


@dataclass(frozen=True)
class Kernel:
    """Kernel size, stride and dilation, one entry per axis."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def offsets(self) -> list[tuple[int, ...]]:
        """fine - stride * coarse of each tap, in the order of the taps."""
        taps = itertools.product(*(range(k) for k in self.size))
        return [
            tuple(d * (t - (k - 1) // 2) for t, k, d in zip(tap, self.size, self.dilation, strict=True)) for tap in taps
        ]


def kernel(size, stride=1, dilation=1, axes: int | None = None) -> Kernel:
    """A Kernel; single numbers are for all axes."""
    axes = axes or next(len(v) for v in (size, stride, dilation) if isinstance(v, tuple))
    return Kernel(*((v,) * axes if isinstance(v, int) else v for v in (size, stride, dilation)))


def cloud(voxels: int, axes: int, extent: int = 6, batch: int = 2, seed: int = 0, device: str = "cpu") -> Tensor:
    """Distinct voxels around the origin, negative ones included, in random order."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(-extent, extent, (4 * voxels, axes), generator=generator)
    items = torch.randint(0, batch, (4 * voxels, 1), generator=generator)
    distinct = torch.unique(torch.cat([items, cells], 1), dim=0)
    order = torch.randperm(len(distinct), generator=generator)[:voxels]
    return distinct[order].int().to(device)


def random(*shape: int, seed: int = 1, dtype=torch.float64, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


def pairs(fine: Tensor, coarse: Tensor, k: Kernel) -> list[tuple[list[int], list[int]]]:
    """(fine rows, coarse rows) of each tap, by dictionary."""
    rows = {tuple(voxel): i for i, voxel in enumerate(fine.tolist())}
    found = []
    for offset in k.offsets():
        taps: tuple[list[int], list[int]] = ([], [])
        for j, (item, *voxel) in enumerate(coarse.tolist()):
            at = tuple(s * c + o for s, c, o in zip(k.stride, voxel, offset, strict=True))
            i = rows.get((item, *at))
            if i is not None:
                taps[0].append(i)
                taps[1].append(j)
        found.append(taps)
    return found


def oracle(features: Tensor, weight: Tensor, plan: ConvolutionPlan, bias: Tensor | None = None) -> Tensor:
    """The convolution over pairs found by dictionary, differentiable by torch; weight in the internal layout."""
    k = Kernel(plan.kernel_size, plan.stride, plan.dilation)
    fine, coarse = (plan.target, plan.source) if plan.is_transposed else (plan.source, plan.target)
    _, groups, cin, cout = weight.shape
    out = features.new_zeros(len(plan.target), groups, cout)
    x = features.reshape(len(features), groups, cin)
    for tap, (f, c) in enumerate(pairs(fine, coarse, k)):
        source, target = (c, f) if plan.is_transposed else (f, c)
        index = torch.tensor(target, dtype=torch.long, device=features.device)
        rows = torch.tensor(source, dtype=torch.long, device=features.device)
        out = out.index_add(0, index, torch.einsum("ngi,gio->ngo", x[rows], weight[tap]))
    out = out.reshape(len(plan.target), groups * cout)
    return out if bias is None else out + bias


def dense_conv(grid: Tensor, weight: Tensor, k: Kernel, groups: int) -> Tensor:
    """torch's dense convolution in 1 to 3 dimensions; in 4 the sum of 3-D ones over the taps of the first axis."""
    axes = len(k.size)
    if axes < 4:
        conv = getattr(torch.nn.functional, f"conv{axes}d")
        return conv(grid, weight, stride=k.stride, dilation=k.dilation, groups=groups)
    steps = (grid.shape[2] - k.dilation[0] * (k.size[0] - 1) - 1) // k.stride[0] + 1
    total = None
    for tap in range(k.size[0]):
        first = tap * k.dilation[0]
        slices = grid[:, :, first : first + k.stride[0] * (steps - 1) + 1 : k.stride[0]]
        folded = slices.movedim(2, 1).flatten(0, 1)
        out = torch.nn.functional.conv3d(folded, weight[:, :, tap], None, k.stride[1:], 0, k.dilation[1:], groups)
        out = out.unflatten(0, (-1, steps)).movedim(1, 2)
        total = out if total is None else total + out
    return total


def dense(features: Tensor, user_weight: Tensor, plan: ConvolutionPlan, groups: int = 1) -> Tensor:
    """The same by torch's dense convolution on a grid that holds both sides and the kernel's reach."""
    k = Kernel(plan.kernel_size, plan.stride, plan.dilation)
    fine, coarse = plan.source, plan.target
    stride = torch.tensor(k.stride)
    reach = torch.tensor([d * (size - 1) for size, d in zip(k.size, k.dilation, strict=True)])
    both = torch.cat([fine[:, 1:].cpu(), coarse[:, 1:].cpu() * stride]).long()
    low = torch.div(both.amin(0) - reach, stride, rounding_mode="floor") * stride
    size = both.amax(0) + reach - low + 1
    items = int(torch.cat([fine[:, 0], coarse[:, 0]]).max()) + 1
    grid = features.new_zeros(items, *size.tolist(), features.shape[1])
    at = (fine.long()[:, 1:] - low.to(fine.device)).unbind(1)
    grid = grid.index_put((fine[:, 0].long(), *at), features).movedim(-1, 1)
    padding = []
    for extent, d in reversed(list(zip(k.size, k.dilation, strict=True))):
        before = d * ((extent - 1) // 2)
        padding += [before, d * (extent - 1) - before]
    padded = torch.nn.functional.pad(grid, padding)
    out = dense_conv(padded, user_weight, k, groups)
    at = (coarse.long()[:, 1:] - torch.div(low, stride, rounding_mode="floor").to(coarse.device)).unbind(1)
    return out.movedim(1, -1)[(coarse[:, 0].long(), *at)]
