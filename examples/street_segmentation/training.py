"""Scans as voxels with labels, the network, its training, and the intersection over union."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from networks.minkunet import MinkUNet
from torch import Tensor, nn

from lacewing.conv import CLASSES, VoxelTensor, quantize, reduce_voxels, synthetic_scan

VOXEL = 0.15
"""Metres."""
WEIGHTS = (1.0, 1.0, 4.0, 1.0, 1.5)
"""Of the classes in the loss: a scan has few points on poles."""
HELD_OUT = 100_000
"""The first seed of the held-out scans; those of training count from 0."""


class Scene(NamedTuple):
    """A scan as the network reads it."""

    points: Tensor  # (points, 4): x, y, z, intensity
    classes: Tensor  # (points,)
    voxels: Tensor  # (voxels, 4)
    features: Tensor  # (voxels, 4): height, intensity, distance, one
    labels: Tensor  # (voxels,): the class of most of a voxel's points
    inverse: Tensor  # (points,): the voxel of each point


def make_scene(seed: int, azimuths: int = 2048) -> Scene:
    """A generated scan; per voxel the means of its points' features."""
    points, classes = synthetic_scan(seed, azimuths=azimuths)
    distance = points[:, :2].norm(dim=1)
    raw = torch.stack([points[:, 2] / 3, points[:, 3], distance / 40, torch.ones_like(distance)], 1)
    votes = torch.nn.functional.one_hot(classes, len(CLASSES)).float()
    merged, voxels, inverse = reduce_voxels(torch.cat([raw, votes], 1), quantize(points[:, :3], VOXEL), "mean")
    return Scene(points, classes, voxels, merged[:, :4].contiguous(), merged[:, 4:].argmax(1), inverse)


def make_network() -> MinkUNet:
    """A MinkUNet with one block on each stage and planes up to 64."""
    return MinkUNet(4, len(CLASSES), planes=(16, 32, 48, 64, 48, 32, 32, 32), blocks=(1,) * 8, stem=3)


def predict(net: nn.Module, scene: Scene) -> Tensor:
    """(points,): the class of each point's voxel."""
    net.eval()
    with torch.no_grad():
        scores: Tensor = net(VoxelTensor(scene.features, scene.voxels, 1)).features
    return scores.argmax(1)[scene.inverse]


def intersection_over_union(found: Tensor, expected: Tensor) -> Tensor:
    """(classes,): of two classes of each point; NaN for a class that is in neither."""
    pairs = torch.bincount(expected * len(CLASSES) + found, minlength=len(CLASSES) ** 2)
    confusion = pairs.view(len(CLASSES), len(CLASSES)).double()
    hit = confusion.diagonal()
    return hit / (confusion.sum(0) + confusion.sum(1) - hit)


@dataclass
class Run:
    """What a training left."""

    net: MinkUNet
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    scores: Tensor = field(default_factory=lambda: torch.zeros(len(CLASSES)))


def train(
    steps: int,
    budget_s: float,
    tell: Callable[[Run], None],
    seed: int = 0,
    rate: float = 4e-3,
    azimuths: int = 2048,
) -> Run:
    """A new scan at every step, until the steps are done or the time is up; the rate falls to zero over both."""
    torch.manual_seed(seed)
    run = Run(make_network())
    optimizer = torch.optim.AdamW(run.net.parameters(), lr=rate, weight_decay=1e-3)
    loss_of = nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS))
    started = time.monotonic()
    for step in range(steps):
        spent = time.monotonic() - started
        if spent > budget_s:
            break
        done = max(step / steps, spent / budget_s)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - done)
        scene = make_scene(step, azimuths)
        run.net.train()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(run.net(VoxelTensor(scene.features, scene.voxels, 1)).features, scene.labels)
        loss.backward()
        optimizer.step()
        run.losses.append(float(loss.detach()))
        run.seconds = time.monotonic() - started
        tell(run)
    return run


def evaluate(net: nn.Module, scans: int, azimuths: int = 2048) -> Tensor:
    """(classes,): the intersection over union over all points of held-out scans."""
    scenes = [make_scene(HELD_OUT + k, azimuths) for k in range(scans)]
    found = torch.cat([predict(net, scene) for scene in scenes])
    return intersection_over_union(found, torch.cat([scene.classes for scene in scenes]))
