"""The scan generator has the statistics of recorded scans, and the example networks run on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from lacewing.conv import CLASSES, ConvolutionPlan, VoxelTensor, quantize, synthetic_scan, unique_voxels

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from networks.minkunet import center_point_encoder, minkunet18, minkunet42
from street_segmentation.training import evaluate, intersection_over_union, train


@pytest.mark.parametrize("seed", [0, 3, 7, 25, 28])
def test_statistics(seed: int) -> None:
    points, classes = synthetic_scan(seed)
    voxels, _ = unique_voxels(quantize(points[:, :3], 0.05))
    neighbours, count = [], len(voxels)
    for _ in range(5):
        neighbours.append(ConvolutionPlan.build(voxels, 3).pair_count / len(voxels))
        voxels = ConvolutionPlan.build(voxels, 2, 2, targets="strided").target

    assert 75_000 <= count <= 95_000
    assert 3.3 <= neighbours[0] <= 7.4
    assert 8 <= neighbours[2] <= 11
    assert 9 <= neighbours[4] <= 11
    assert sorted(classes.unique().tolist()) == list(range(len(CLASSES)))
    assert points.isfinite().all()


def test_the_same_scan_for_every_number_of_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = synthetic_scan(5, 16, 128)
        torch.set_num_threads(3)
        three = synthetic_scan(5, 16, 128)
    finally:
        torch.set_num_threads(threads)

    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
    assert not torch.equal(one[0], synthetic_scan(6, 16, 128)[0])


def test_bad_input() -> None:
    with pytest.raises(RuntimeError, match="beams and azimuths must be positive and objects not negative, not 0, 8"):
        synthetic_scan(0, 0, 8)


@pytest.mark.parametrize("make", [minkunet18, minkunet42])
def test_unets_come_back_to_their_voxels(make) -> None:
    voxels, _ = unique_voxels(quantize(synthetic_scan(1, 8, 64)[0][:, :3], 0.5))
    x = VoxelTensor(torch.randn(len(voxels), 4), voxels)
    net = make()

    out = net(x)
    out.features.sum().backward()

    assert out.coordinates is x.coordinates
    assert out.features.shape == (len(voxels), 20)
    assert all(p.grad is not None for p in net.parameters())


def test_center_point_encoder() -> None:
    voxels, _ = unique_voxels(quantize(synthetic_scan(1, 8, 64)[0][:, :3], 0.5))
    x = VoxelTensor(torch.randn(len(voxels), 4), voxels)

    out = center_point_encoder()(x)

    assert out.stride == (8, 8, 8)
    assert out.features.shape == (len(out), 128)


def test_intersection_over_union_by_hand() -> None:
    expected = torch.tensor([0, 0, 0, 1, 1, 2])
    found = torch.tensor([0, 0, 1, 1, 2, 2])

    scores = intersection_over_union(found, expected)

    torch.testing.assert_close(scores[:3], torch.tensor([2 / 3, 1 / 3, 1 / 2], dtype=torch.float64))
    assert scores[3:].isnan().all()


def test_the_segmentation_example_trains() -> None:
    steps = []

    run = train(3, 60.0, lambda run: steps.append(run.losses[-1]), azimuths=128)

    assert run.losses == steps
    assert run.losses[-1] < run.losses[0]
    assert evaluate(run.net, 1, azimuths=128).shape == (len(CLASSES),)
