"""Weights of other libraries: their layouts as ours.

| style | layout of the stored weight | order of the taps |
| --- | --- | --- |
| ``"spconv"`` (2.x) | (Cout, *kernel, Cin) | last axis fastest |
| ``"spconv1"`` (1.x) | (*kernel, Cin, Cout) | last axis fastest |
| ``"minkowski"`` | (taps, Cin, Cout), or (Cin, Cout) for one tap | first axis fastest |
| ``"torchsparse"`` | (taps, Cin, Cout), or (Cin, Cout) for one tap | first axis fastest if taps is odd |

spconv 2.x multiplies by the weight of a layer with one tap as (Cin, Cout), whatever its shape says, unless the layer
has a stride.
MinkowskiEngine's even kernels begin at the voxel itself, ours (and torchsparse's) earlier above size 2: such weights
are refused.

Only tensors are converted: the packages need not be installed. Batch norms and linear layers keep their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from .._plan import check_tensor
from .functional import weight_to_user
from .layers import Pointwise, _Conv
from .plan import PerAxis, per_axis

Style = Literal["spconv", "spconv1", "minkowski", "torchsparse"]
_STYLES = ("spconv", "spconv1", "minkowski", "torchsparse")


def convert_weight(weight: Tensor, style: Style, kernel_size: PerAxis, *, strided: bool = False) -> Tensor:
    """A weight of another library as (taps, 1, Cin, Cout), the internal layout; ``strided``: its layer has a stride."""
    if style not in _STYLES:
        raise ValueError(f"[lacewing.convert_weight] style must be one of {', '.join(_STYLES)}, not {style!r}")
    check_tensor("convert_weight", "weight", weight)
    kernel_size = per_axis("convert_weight", "kernel_size", kernel_size, 3)
    axes, taps = len(kernel_size), math.prod(kernel_size)
    if style == "spconv":
        _check(weight, weight.dim() == axes + 2 and tuple(weight.shape[1:-1]) == kernel_size, style, kernel_size)
        if taps == 1 and not strided:  # it reads the numbers of such a weight in their order, as (Cin, Cout)
            return weight.contiguous().view(1, 1, weight.shape[-1], weight.shape[0])
        return weight.flatten(1, -2).permute(1, 2, 0).contiguous()[:, None]
    if style == "spconv1":
        _check(weight, weight.dim() == axes + 2 and tuple(weight.shape[:axes]) == kernel_size, style, kernel_size)
        return weight.reshape(taps, 1, *weight.shape[-2:]).contiguous()
    matrices = weight[None] if weight.dim() == 2 else weight
    _check(weight, matrices.dim() == 3 and matrices.shape[0] == taps, style, kernel_size)
    if style == "minkowski" and any(k % 2 == 0 and k > 2 for k in kernel_size):
        raise ValueError(
            f"[lacewing.convert_weight] even kernels above 2 of style minkowski reach other voxels than ours: "
            f"{kernel_size}"
        )
    if taps % 2 or style == "minkowski":
        reversed_axes = matrices.reshape(*reversed(kernel_size), *matrices.shape[-2:])
        matrices = reversed_axes.permute(*reversed(range(axes)), axes, axes + 1).reshape(taps, *matrices.shape[-2:])
    return matrices.contiguous()[:, None]


def _check(weight: Tensor, good: bool, style: str, kernel_size: tuple[int, ...]) -> None:
    if not good:
        raise ValueError(
            f"[lacewing.convert_weight] a weight of shape {tuple(weight.shape)} is not of style {style} with "
            f"kernel_size {kernel_size}"
        )


def _renamed(key: str, layers: Mapping[str, nn.Module]) -> str:
    """The name that our model has for MinkowskiEngine's ``norm.bn.weight`` or ``head.linear.weight``."""
    prefix, _, name = key.rpartition(".")
    outer, _, inner = prefix.rpartition(".")
    if prefix in layers or inner not in ("bn", "linear") or outer not in layers:
        return key
    kept = [outer, "module", name] if isinstance(layers[outer], Pointwise) else [outer, name]
    return ".".join(part for part in kept if part)


def convert_state_dict(state: Mapping[str, Tensor], style: Style, model: nn.Module) -> dict[str, Tensor]:
    """A state dict of another library, renamed and laid out for ``model.load_state_dict``.

    Both must name their layers alike. ``kernel`` (MinkowskiEngine, torchsparse) becomes ``weight``, a bias of shape
    (1, Cout) loses its first dim, and the ``bn`` and ``linear`` inside of MinkowskiEngine's layers become our layer
    itself, or the ``module`` inside of a Pointwise.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"[lacewing.convert_state_dict] state must be a mapping, not {type(state).__name__}")
    layers = dict(model.named_modules())
    converted = {}
    for given, value in state.items():
        key = _renamed(given, layers)
        prefix, _, name = key.rpartition(".")
        layer = layers.get(prefix)
        if isinstance(layer, _Conv) and name in ("weight", "kernel"):
            internal = convert_weight(value, style, layer.kernel_size, strided=math.prod(layer.stride) > 1)
            if tuple(internal.shape) != tuple(layer.weight.shape):
                raise ValueError(
                    f"[lacewing.convert_state_dict] {given} of shape {tuple(value.shape)} does not fit the layer "
                    f"{layer.in_channels} -> {layer.out_channels} with {layer.groups} groups"
                )
            user = weight_to_user(internal, layer.kernel_size, layer._transposed)
            converted[f"{prefix}.weight" if prefix else "weight"] = user
        elif isinstance(layer, _Conv) and name == "bias":
            converted[key] = value.reshape(-1)
        else:
            converted[key] = value
    return converted
