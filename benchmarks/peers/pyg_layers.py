"""Graph layers of PyTorch Geometric (pip package torch_geometric), where it is installed, over given weights."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

PYG, PYG_CSR = "PyG", "PyG on torch CSR"


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("torch_geometric") is not None


def gat(weight: Tensor, of_source: Tensor, of_destination: Tensor) -> Any:
    """GATConv without self loops and bias; weight (in, heads * channels), the other two (heads, channels)."""
    heads, channels = of_source.shape
    layers: Any = importlib.import_module("torch_geometric.nn")
    layer = layers.GATConv(weight.shape[0], channels, heads, add_self_loops=False, bias=False)
    return _with_weights(
        layer, {"lin.weight": weight.T, "att_src": of_source.unsqueeze(0), "att_dst": of_destination.unsqueeze(0)}
    )


def gcn(weight: Tensor) -> Any:
    """GCNConv over edge weights as they are; weight (in, out)."""
    layers: Any = importlib.import_module("torch_geometric.nn")
    return _with_weights(layers.GCNConv(*weight.shape, normalize=False, bias=False), {"lin.weight": weight.T})


def _with_weights(layer: Any, weights: dict[str, Tensor]) -> Any:
    """A function that runs the layer with these tensors as its parameters, so that gradients flow to them."""
    layer = layer.to(next(iter(weights.values())).device)
    unknown = set(weights) - set(dict(layer.named_parameters()))
    if unknown:
        raise RuntimeError(f"this version of torch_geometric has no parameters {sorted(unknown)}")
    return lambda *args: torch.func.functional_call(layer, weights, args)
