"""spconv's submanifold layer (pip package spconv), where it is installed, in a process of its own.

Its wheel brings an OpenMP runtime beside torch's: in one process the waiting threads of one slow down the other, and
all contenders with it. Here it has the machine to itself while it runs, and sleeps while others do.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from benchmarks.memory import peak_bytes
from lacewing.conv import weight_to_user

SIZE = (3, 3, 3)


def installed() -> bool:
    """Whether the package is there; importing it is left to its process."""
    return importlib.util.find_spec("spconv") is not None


class SpconvProcess:
    """A process with a worker in it, which is the only one to touch spconv."""

    def __init__(self, worker: type) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, torch.get_num_threads(), worker), daemon=True)
        self._process.start()

    def _ask(self, *words: Any) -> Any:
        self._pipe.send(words)
        good, answer = self._pipe.recv()
        if not good:
            raise RuntimeError(f"spconv's process: {answer}")
        return answer


class Spconv(SpconvProcess):
    """A process that keeps voxels, their kernel map, a layer and its inputs, and runs what it is asked to."""

    def __init__(self) -> None:
        super().__init__(_Worker)

    def set_voxels(self, voxels: Tensor) -> None:
        """(n, 4) int32; its map is built when a layer first runs."""
        self._ask("set_voxels", voxels.numpy())

    def set_layer(self, weight: Tensor, features: Tensor, upstream: Tensor | None) -> None:
        """Weight (27, 1, Cin, Cout), the features, and the upstream gradient where there is a backward pass."""
        arrays = [None if t is None else t.detach().numpy() for t in (weight, features, upstream)]
        self._ask("set_layer", *arrays)

    def run(self) -> None:
        """The layer, forward and where an upstream gradient is set backward."""
        self._ask("run")

    def results(self, threads: int | None = None) -> tuple[Tensor, ...]:
        """What a run gives: the value, and the gradients of features and weight laid out as ours."""
        return tuple(torch.from_numpy(array) for array in self._ask("results", threads))

    def peak(self) -> int:
        """The peak memory of a run."""
        return int(self._ask("peak"))

    def build_map(self) -> None:
        """The kernel map of a submanifold 3^3 layer."""
        self._ask("build_map")

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Source and target rows of that map."""
        source, target = (torch.from_numpy(array) for array in self._ask("pairs"))
        return source, target


def _serve(pipe: Connection, threads: int, kind: type) -> None:
    torch.set_num_threads(threads)
    worker = kind()
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:  # the other side is done
            return
        try:
            pipe.send((True, getattr(worker, name)(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class SpconvWorker:
    """The other side: everything that touches spconv."""

    def __init__(self) -> None:
        import spconv.pytorch as spconv
        from spconv.pytorch import ops

        if not torch.cuda.is_available():
            # Its backward pass asks for a CUDA stream even on the CPU, where it does not use it.
            ops.get_current_stream = lambda: 0
        self.spconv, self.ops = spconv, ops


class _Worker(SpconvWorker):
    """With one layer."""

    def set_voxels(self, array: Any) -> None:
        voxels = torch.from_numpy(array)
        low = voxels.amin(0)
        low[0] = 0
        self.voxels = (voxels - low).contiguous()
        self.shape = [int(v) + 3 for v in self.voxels[:, 1:].amax(0)]
        self.batch = int(voxels[:, 0].max()) + 1
        self.maps: dict[str, Any] = {}

    def set_layer(self, weight: Any, features: Any, upstream: Any) -> None:
        internal = torch.from_numpy(weight)
        self.layer = self.spconv.SubMConv3d(*internal.shape[2:], 3, bias=False, indice_key="map")
        self.layer.weight = torch.nn.Parameter(weight_to_user(internal, SIZE).movedim(1, -1).contiguous())
        self.features = torch.from_numpy(features).requires_grad_(upstream is not None)
        self.upstream = None if upstream is None else torch.from_numpy(upstream)

    def run(self) -> None:
        self._run()

    def _run(self) -> tuple[Tensor, ...]:
        x = self.spconv.SparseConvTensor(self.features, self.voxels, self.shape, self.batch)
        x.indice_dict = self.maps
        with torch.set_grad_enabled(self.upstream is not None):
            y = self.layer(x)
        self.maps = y.indice_dict  # the layer fills a copy
        out = y.features
        if self.upstream is None:
            return (out,)
        return (out.detach(), *torch.autograd.grad(out, (self.features, self.layer.weight), self.upstream))

    def results(self, threads: int | None) -> list[Any]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        results = list(self._run())
        torch.set_num_threads(before)
        if self.upstream is not None:
            results[2] = results[2].movedim(0, -1).flatten(0, 2)[:, None].contiguous()
        return [result.numpy() for result in results]

    def peak(self) -> int:
        return peak_bytes(self._run, torch.device("cpu"))

    def build_map(self) -> None:
        self._build_map()

    def _build_map(self) -> Any:
        algorithm = self.spconv.ConvAlgo.Native
        one, zero = [1] * 3, [0] * 3
        return self.ops.get_indice_pairs(
            self.voxels, self.batch, self.shape, algorithm, [3] * 3, one, one, one, zero, True, False
        )

    def pairs(self) -> list[Any]:
        source, target = self._build_map()[1].flatten(1)  # (2, taps, voxels), -1 where there is none
        return [rows[source >= 0].numpy() for rows in (source, target)]
