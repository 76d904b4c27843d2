"""Scans for the convolution workloads: recorded ones from a folder, and a generated one."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from lacewing.conv import quantize, synthetic_scan, unique_voxels

VOXEL = 0.05
FOLDER = "LACEWING_SCANS"


def clouds(device: torch.device, quick: bool = False) -> dict[str, Tensor]:
    """Sorted voxels (n, 4) by name: every .bin file (float32 x, y, z, intensity) in $LACEWING_SCANS, and a made one."""
    folder = os.environ.get(FOLDER)
    found = {}
    for path in sorted(Path(folder).glob("*.bin")) if folder else []:
        raw = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).view(-1, 4)
        found[path.stem] = raw[:, :3]
    found["synthetic"] = synthetic_scan(seed=1)[0][:, :3]
    if quick:
        found = {"synthetic": synthetic_scan(seed=1, beams=16, azimuths=256)[0][:, :3]}
    return {name: unique_voxels(quantize(points, VOXEL))[0].to(device) for name, points in found.items()}
