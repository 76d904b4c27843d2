"""U-Nets of residual blocks on voxels, shaped as MinkUNet18 and MinkUNet42, and CenterPoint's encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from lacewing.conv import ConvUnit, InverseConv, SparseConv, SubmanifoldConv, VoxelBatchNorm, VoxelTensor

PLANES = (32, 64, 128, 256, 256, 128, 96, 96)


def unit(layer: type, cin: int, cout: int, *kernel: int, relu: bool = True, **options: Any) -> ConvUnit:
    """A convolution and a batch norm, and a ReLU unless it is a shortcut."""
    return ConvUnit(layer(cin, cout, *kernel, bias=False, **options), VoxelBatchNorm(cout), relu)


class Block(nn.Module):
    """Two submanifold 3^3 layers and a shortcut, by a 1^3 layer where the channels change."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.first = unit(SubmanifoldConv, cin, cout)
        self.second = unit(SubmanifoldConv, cout, cout)
        self.shortcut = unit(SubmanifoldConv, cin, cout, 1, relu=False) if cin != cout else nn.Identity()

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        y: VoxelTensor = self.second(self.first(x), residual=self.shortcut(x))
        return y


class MinkUNet(nn.Module):
    """Four levels down by 2^3 layers of stride 2 and back up by their inverses, with concatenated skips."""

    def __init__(
        self,
        in_channels: int = 4,
        classes: int = 20,
        planes: Sequence[int] = PLANES,
        blocks: Sequence[int] = (2,) * 8,
        stem: int = 5,
    ) -> None:
        super().__init__()
        width = planes[0]
        self.stem = unit(SubmanifoldConv, in_channels, width, stem)
        self.down, self.encode = nn.ModuleList(), nn.ModuleList()
        skips = [width]
        for level in range(4):
            self.down.append(unit(SparseConv, width, width, 2, 2))
            self.encode.append(_stage(width, planes[level], blocks[level]))
            width = planes[level]
            skips.append(width)
        self.up, self.decode = nn.ModuleList(), nn.ModuleList()
        skips.pop()
        for level in range(4, 8):
            self.up.append(unit(InverseConv, width, planes[level], 2, 2))
            self.decode.append(_stage(planes[level] + skips.pop(), planes[level], blocks[level]))
            width = planes[level]
        self.head = SubmanifoldConv(width, classes, 1)

    def forward(self, x: VoxelTensor) -> VoxelTensor:
        levels = [self.stem(x)]
        for down, encode in zip(self.down, self.encode, strict=True):
            levels.append(encode(down(levels[-1])))
        y = levels.pop()
        for up, decode in zip(self.up, self.decode, strict=True):
            y = decode(up(y).cat(levels.pop()))
        return self.head(y)


def _stage(cin: int, cout: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(*(Block(cin if i == 0 else cout, cout) for i in range(blocks)))


def minkunet18(in_channels: int = 4, classes: int = 20) -> MinkUNet:
    """Two blocks on each of the eight stages."""
    return MinkUNet(in_channels, classes)


def minkunet42(in_channels: int = 4, classes: int = 20) -> MinkUNet:
    """The same planes with more blocks: 56 convolutions on its longest path, where minkunet18 has 42."""
    return MinkUNet(in_channels, classes, blocks=(2, 3, 4, 6, 2, 2, 2, 2))


def center_point_encoder(in_channels: int = 4) -> nn.Sequential:
    """Submanifold blocks of 16, 32, 64 and 128 channels with strided 3^3 layers between."""
    layers: list[nn.Module] = [unit(SubmanifoldConv, in_channels, 16), Block(16, 16), Block(16, 16)]
    for cin, cout in ((16, 32), (32, 64), (64, 128)):
        down = unit(SparseConv, cin, cout, 3, 2, targets="reachable")
        layers += [down, Block(cout, cout), Block(cout, cout)]
    return nn.Sequential(*layers)
