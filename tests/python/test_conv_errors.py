"""Bad input to plans and convolutions: one sentence each."""

from __future__ import annotations

import pytest
import torch

from conv_support import cloud, random
from lacewing.conv import ConvolutionPlan, quantize, reduce_voxels, sparse_conv, unique_voxels

LIMIT = 2**31


def voxels(*rows, dtype=torch.int32) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


@pytest.mark.parametrize(
    ("coordinates", "options", "sentence"),
    [
        (voxels([0, 1], [0, 2], [0, 1]), {}, r"coordinates\[2\] = \(0, 1\) repeats coordinates\[0\]: voxels must be"),
        (voxels([0, 1], [-1, 2]), {}, r"coordinates\[1\] = \(-1, 2\) has a negative batch index"),
        (voxels([0, 1], dtype=torch.int64), {}, r"coordinates must have dtype int32, not int64"),
        (voxels([0.0, 1.0], dtype=torch.float32), {}, r"coordinates must have dtype int32, not float32"),
        (voxels([0] * 6), {}, r"must be \(voxels, 1 \+ axes\) with 1 to 4 axes, not of shape \(1, 6\)"),
        (voxels([0]), {}, r"must be \(voxels, 1 \+ axes\) with 1 to 4 axes, not of shape \(1, 1\)"),
        (torch.zeros(4, dtype=torch.int32), {}, r"not of shape \(4,\)"),
        (voxels([0, 1]), {"kernel_size": 0}, r"kernel_size\[0\] = 0 must lie in \[1, 2\^24\]"),
        (voxels([0, 1]), {"stride": 0, "targets": "strided"}, r"stride\[0\] = 0 must lie in"),
        (voxels([0, 1]), {"dilation": -2}, r"dilation\[0\] = -2 must lie in"),
        (voxels([0, 1]), {"stride": 2}, r"a submanifold convolution has stride 1, not \(2,\)"),
        (voxels([0, 1]), {"kernel_size": (3, 3)}, r"kernel_size has 2 entries, but the coordinates have 1 axes"),
        (voxels([0, 1]), {"kernel_size": 2**20}, r"has more than 65536 taps"),
        (
            voxels([0, -LIMIT, -LIMIT], [0, LIMIT - 1, LIMIT - 1]),
            {},
            r"\(the kernel's reach included\) need 66 bits, but a packed voxel has 63",
        ),
        (voxels([0, LIMIT - 1]), {"targets": "reachable"}, r"the coordinate 2147483648 on axis 0, which does not fit"),
        (voxels([0, 1]), {"targets": voxels([0, 1, 1])}, r"the two sets of coordinates have 1 and 2 axes"),
        (voxels([0, 1]), {"targets": voxels([0, 1], [0, 1])}, r"coarse coordinates\[1\] = \(0, 1\) repeats"),
        (voxels([0, 1]), {"targets": "all"}, r"targets must be a tensor, 'same', 'strided' or 'reachable', not 'all'"),
        (voxels([0, 1]), {"kernel_size": 1.5}, r"kernel_size must hold integers|is not iterable"),
        ([[0, 1]], {}, r"coordinates must be a tensor, not list"),
    ],
)
def test_plans_refuse(coordinates, options, sentence: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=sentence):
        ConvolutionPlan.build(coordinates, **options)


def test_generative_refuses_what_does_not_fit() -> None:
    with pytest.raises(RuntimeError, match=r"the coordinate 4294967294 on axis 0, which does not fit int32"):
        ConvolutionPlan.build_transposed(voxels([0, LIMIT - 1]), 2, 2)


def test_voxels_on_the_limits() -> None:
    coordinates = voxels([0, LIMIT - 1, 0], [0, LIMIT - 2, 0], [0, -LIMIT, 0], [3, -LIMIT, 1])

    plan = ConvolutionPlan.build(coordinates, 3)

    found = sorted((s, t) for tap in range(9) for s, t in zip(*(p.tolist() for p in plan.pairs(tap)), strict=True))
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (3, 3)]


PLAN = ConvolutionPlan.build(cloud(10, 2), 3)


@pytest.mark.parametrize(
    ("features", "weight", "options", "sentence"),
    [
        (random(9, 2), random(9, 1, 2, 3), {}, r"features of shape \(9, 2\) do not belong to this plan: its source"),
        (random(10, 3), random(9, 1, 2, 3), {}, r"have 3 channels, but weight of shape \(9, 1, 2, 3\) takes 2"),
        (random(10, 2), random(8, 1, 2, 3), {}, r"has 8 taps, but the plan has 9"),
        (random(10, 2), random(9, 2, 3), {}, r"weight must be \(taps, groups, in/groups, out/groups\), not of shape"),
        (random(10, 2), random(9, 1, 2, 3, dtype=torch.float32), {}, r"weight has dtype float32 but features have flo"),
        (random(10, 2).long(), random(9, 1, 2, 3), {}, r"must have dtype float16, bfloat16, float32 or float64, not"),
        (random(10), random(9, 1, 2, 3), {}, r"features must have 2 dimensions, not shape \(10,\)"),
        (random(10, 2), random(9, 1, 2, 3), {"bias": random(2)}, r"bias has 2 entries, but there are 3 output chann"),
        (random(10, 2), random(9, 1, 2, 3), {"bias": random(3, 1)}, r"bias must have 1 dimension, not shape \(3, 1\)"),
        (random(10, 2), random(3, 2, 3, 3), {"layout": "user", "groups": 2}, r"2 groups do not divide the 3 channels"),
        (random(10, 2), random(3, 2, 3), {"layout": "user"}, r"does not end with the plan's kernel_size \(3, 3\)"),
        (random(10, 2), random(9, 1, 2, 3), {"layout": "hwc"}, r"layout must be 'internal' or 'user', not 'hwc'"),
        ([1.0], random(9, 1, 2, 3), {}, r"features must be a tensor, not list"),
    ],
)
def test_convolution_refuses(features, weight, options, sentence: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=sentence):
        sparse_conv(features, weight, PLAN, **options)


def test_a_plan_of_other_integers_is_refused() -> None:
    x, weight = random(10, 2), random(9, 1, 2, 3)

    with pytest.raises(RuntimeError, match="meta is not the description of a convolution plan"):
        torch.ops.lacewing.sparse_conv(x, weight, None, PLAN._array, PLAN._meta[:-1])
    with pytest.raises(RuntimeError, match=r"plan has \d+ entries, but its description says"):
        torch.ops.lacewing.sparse_conv(x, weight, None, PLAN._array[:-1], PLAN._meta)
    with pytest.raises(TypeError, match="plan must be a ConvolutionPlan, not Tensor"):
        sparse_conv(x, weight, PLAN._array)
    with pytest.raises(TypeError, match=r"use ConvolutionPlan\.build"):
        ConvolutionPlan()
    with pytest.raises(ValueError, match="algorithm must be one of automatic, tiles, gather_gemm_scatter, not 'fast'"):
        PLAN.with_algorithm("fast")


def test_a_plan_of_other_coordinates_is_refused(device: str) -> None:
    coordinates = cloud(10, 2, device=device)
    moved = coordinates.clone()
    moved[3, 1] += 50
    plan = ConvolutionPlan.build(coordinates, 3)
    x, weight = random(10, 2, device=device), random(9, 1, 2, 3, device=device)
    there, here = (tuple(c[3].tolist()) for c in (moved, coordinates))

    assert torch.equal(sparse_conv(x, weight, plan, coordinates=coordinates.clone()), sparse_conv(x, weight, plan))
    with pytest.raises(ValueError, match="the plan belongs to other coordinates") as refused:
        sparse_conv(x, weight, plan, coordinates=moved)
    assert f"coordinates[3] = {there}, but its source has {here} there" in str(refused.value)
    with pytest.raises(ValueError, match=r"coordinates of shape \(9, 3\) are not the plan's source .* \(10, 3\)"):
        sparse_conv(x, weight, plan, coordinates=coordinates[:9])


def test_quantization() -> None:
    points = torch.tensor([[0.05, -0.01], [0.09, -0.05], [0.11, 0.0]])

    coordinates = quantize(points, 0.1, 3)
    unique, inverse = unique_voxels(coordinates)

    assert coordinates.tolist() == [[3, 0, -1], [3, 0, -1], [3, 1, 0]]
    assert unique.tolist() == [[3, 0, -1], [3, 1, 0]]
    assert inverse.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("points", "size", "sentence"),
    [
        (torch.tensor([[float("nan")]]), 1.0, r"points\[0\] = \(nan\) does not fit an int32 voxel"),
        (torch.tensor([[0.0], [1e10]]), 1.0, r"points\[1\] = \(1e\+10\) does not fit"),
        (torch.tensor([[1.0]]), 0.0, r"voxel_size must be positive, not 0"),
        (torch.tensor([[1]]), 1.0, r"points must be floats of shape \(points, axes\)"),
    ],
)
def test_quantization_refuses(points, size, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        quantize(points, size)


def test_quantization_refuses_bad_batches() -> None:
    points = torch.zeros(3, 2)

    with pytest.raises(ValueError, match=r"3 points have batch indices of shape \(2,\)"):
        quantize(points, 0.1, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="batch must have dtype int32 or int64, not float32"):
        quantize(points, 0.1, torch.zeros(3))
    with pytest.raises(ValueError, match="voxel_size has 3 entries, but the points have 2 axes"):
        quantize(points, [0.1, 0.1, 0.1])


@pytest.mark.parametrize("reduction", ["sum", "mean", "first"])
def test_merging_duplicates(reduction: str, device: str) -> None:
    coordinates = torch.randint(-2, 2, (50, 3), dtype=torch.int32).abs().to(device)
    features = random(50, 4, device=device).requires_grad_()

    merged, unique, inverse = reduce_voxels(features, coordinates, reduction)

    assert torch.equal(unique[inverse], coordinates)
    for row in range(len(unique)):
        mine = features[inverse == row]
        expected = {"sum": mine.sum(0), "mean": mine.mean(0), "first": mine[0]}[reduction]
        torch.testing.assert_close(merged[row], expected)
    assert torch.autograd.gradcheck(lambda f: reduce_voxels(f, coordinates, reduction)[0], features)
