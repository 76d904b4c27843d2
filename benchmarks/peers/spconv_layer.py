"""spconv's submanifold layer (pip package spconv), where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lacewing.conv import weight_to_user

SIZE = (3, 3, 3)


def find() -> Any | None:
    """The module spconv.pytorch, or None."""
    try:
        import spconv.pytorch as spconv
        from spconv.pytorch import ops
    except (ImportError, OSError):
        return None
    if not torch.cuda.is_available():
        # Its backward pass asks for a CUDA stream even on the CPU, where it does not use it.
        ops.get_current_stream = lambda: 0
    return spconv


class Cloud:
    """Voxels as spconv takes them: not negative, with its kernel map built once."""

    def __init__(self, spconv: Any, voxels: Tensor) -> None:
        low = voxels.amin(0)
        low[0] = 0
        self.spconv = spconv
        self.voxels = (voxels - low).contiguous()
        self.shape = [int(v) + 3 for v in self.voxels[:, 1:].amax(0)]
        self.batch = int(voxels[:, 0].max()) + 1
        self.maps: dict[str, Any] = {}

    def tensor(self, features: Tensor) -> Any:
        x = self.spconv.SparseConvTensor(features, self.voxels, self.shape, self.batch)
        x.indice_dict = self.maps
        return x

    def build_map(self) -> Any:
        """Its kernel map of a submanifold 3^3 layer."""
        from spconv.pytorch import ops

        algorithm = self.spconv.ConvAlgo.Native
        one, zero = [1] * 3, [0] * 3
        return ops.get_indice_pairs(
            self.voxels, self.batch, self.shape, algorithm, [3] * 3, one, one, one, zero, True, False
        )

    def layer(self, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """features, weight (27, 1, Cin, Cout) -> result; the map is kept between calls."""
        layer = self.spconv.SubMConv3d(*weight.shape[2:], 3, bias=False, indice_key="map")
        own = weight_to_user(weight, SIZE).movedim(1, -1).contiguous()
        layer.weight = torch.nn.Parameter(own)

        def run(features: Tensor) -> Tensor:
            result: Tensor = layer(self.tensor(features)).features
            return result

        run.parameter = layer.weight  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]
