"""MinkUNet18 on spconv's CPU path (pip package spconv), where it is installed, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.memory import peak_bytes
from benchmarks.peers.spconv_layer import SpconvProcess, SpconvWorker
from lacewing.conv import SparseConv, SubmanifoldConv

LEVELS = 4


class SpconvUNet(SpconvProcess):
    """A process that keeps the network and its inputs, and runs it; kernel maps are built anew in every run."""

    def __init__(self) -> None:
        super().__init__(_Worker)

    def set_net(self, state: Mapping[str, Tensor], voxels: Tensor, features: Tensor, training: bool) -> None:
        """The state dict of our MinkUNet18, and what it runs on."""
        arrays = {name: value.detach().numpy() for name, value in state.items()}
        self._ask("set_net", arrays, voxels.numpy(), features.numpy(), training)

    def run(self) -> None:
        """Inference, or the forward and backward pass of a training step."""
        self._ask("run")

    def results(self, threads: int) -> tuple[Tensor]:
        """What a run gives: the scores, or the gradient of the stem's weight laid out as ours."""
        return (torch.from_numpy(self._ask("results", threads)),)

    def peak(self) -> int:
        """The peak memory of a run."""
        return int(self._ask("peak"))


class _Worker(SpconvWorker):
    """With the network: our modules tell the shapes and hold batch norms, spconv's layers take their place."""

    def set_net(self, state: Any, voxels: Any, features: Any, training: bool) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
        from networks.minkunet import minkunet18

        self.net = minkunet18()
        self.net.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        self.net.train(training)
        # On a grid of whole coarsest cells, so that all levels fit.
        cell = 2**LEVELS
        coordinates = torch.from_numpy(voxels)
        low = coordinates.amin(0).div(cell, rounding_mode="floor") * cell
        low[0] = 0
        self.voxels = (coordinates - low).contiguous()
        self.shape = [(int(v) // cell + 1) * cell for v in self.voxels[:, 1:].amax(0)]
        self.features, self.training = torch.from_numpy(features), training
        self.layers = nn.ModuleDict()
        self._layer("stem", self.net.stem.conv, 0)
        for level in range(LEVELS):
            self._layer(f"down{level}", self.net.down[level].conv, level)
            self._layer(f"up{level}", self.net.up[level].conv, LEVELS - 1 - level)
            for stage, at in ((self.net.encode[level], level + 1), (self.net.decode[level], LEVELS - 1 - level)):
                for block in stage:
                    for unit in (block.first, block.second, block.shortcut):
                        if not isinstance(unit, nn.Identity):
                            self._layer(str(id(unit.conv)), unit.conv, at)
        self._layer("head", self.net.head, 0)

    def _layer(self, name: str, ours: Any, level: int) -> None:
        """Our layer as spconv's, with its weight; layers of one level share their map as ours do."""
        kinds, size = self.spconv, ours.kernel_size[0]
        channels, bias = (ours.in_channels, ours.out_channels), ours.bias is not None
        if isinstance(ours, SubmanifoldConv):
            layer = kinds.SubMConv3d(*channels, size, bias=bias, indice_key=f"same{level}/{size}")
        elif isinstance(ours, SparseConv):
            layer = kinds.SparseConv3d(*channels, size, size, bias=bias, indice_key=f"down{level}")
        else:
            layer = kinds.SparseInverseConv3d(*channels, size, bias=bias, indice_key=f"down{level}")
        taken = ours.weight.detach()[:, 0]
        if size > 1:  # one tap is read as (Cin, Cout), whatever the shape says
            taken = taken.permute(2, 0, 1)
        layer.weight = nn.Parameter(taken.reshape(layer.weight.shape).contiguous())
        if bias:
            layer.bias = nn.Parameter(ours.bias.detach().clone())
        self.layers[name] = layer

    def _unit(self, name: str, unit: Any, x: Any, residual: Any = None) -> Any:
        y = self.layers[name](x)
        features = nn.functional.batch_norm(
            y.features,
            unit.norm.running_mean,
            unit.norm.running_var,
            unit.norm.weight,
            unit.norm.bias,
            self.training,
        )
        if residual is not None:
            features = features + residual.features
        return y.replace_feature(torch.relu(features) if unit.relu else features)

    def _stage(self, stage: Any, x: Any) -> Any:
        for block in stage:
            first = self._unit(str(id(block.first.conv)), block.first, x)
            identity = isinstance(block.shortcut, nn.Identity)
            side = x if identity else self._unit(str(id(block.shortcut.conv)), block.shortcut, x)
            x = self._unit(str(id(block.second.conv)), block.second, first, side)
        return x

    def _forward(self) -> Tensor:
        x = self.spconv.SparseConvTensor(self.features, self.voxels, self.shape, 1)
        levels = [self._unit("stem", self.net.stem, x)]
        for level in range(LEVELS):
            down = self._unit(f"down{level}", self.net.down[level], levels[-1])
            levels.append(self._stage(self.net.encode[level], down))
        y = levels.pop()
        for level in range(LEVELS):
            y = self._unit(f"up{level}", self.net.up[level], y)
            y = y.replace_feature(torch.cat([y.features, levels.pop().features], 1))
            y = self._stage(self.net.decode[level], y)
        scores: Tensor = self.layers["head"](y).features
        return scores

    def _run(self) -> Tensor:
        if not self.training:
            with torch.no_grad():
                return self._forward()
        self.layers.zero_grad(set_to_none=True)
        self.net.zero_grad(set_to_none=True)
        out = self._forward()
        labels = torch.arange(len(out)) % out.shape[1]
        nn.functional.cross_entropy(out, labels).backward()
        grad: Tensor = self.layers["stem"].weight.grad
        return grad

    def run(self) -> None:
        self._run()

    def results(self, threads: int) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        result = self._run()
        torch.set_num_threads(before)
        if self.training:  # (Cout, *kernel, Cin) as (taps, 1, Cin, Cout)
            result = result.flatten(1, -2).permute(1, 2, 0)[:, None]
        return result.contiguous().numpy()

    def peak(self) -> int:
        return peak_bytes(self._run, torch.device("cpu"))
