"""Bad input to plans and convolutions: one sentence each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conv_support import cloud, random
from lacewing.conv import (
    ConvFinish,
    ConvolutionPlan,
    PlanCache,
    SparseConv,
    SparseConvTranspose,
    SparseUnpool,
    SubmanifoldConv,
    VoxelBatchNorm,
    VoxelTensor,
    convert_state_dict,
    convert_weight,
    global_pool,
    max_pool,
    pool,
    quantize,
    reduce_voxels,
    sparse_conv,
    sparse_conv_unit,
    sparse_conv_workspace,
    sum_pool,
    synthetic_scan,
    unique_voxels,
    unpool,
    weight_from_user,
    weight_to_user,
)

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
        (voxels([0, 1]), {"kernel_size": 1.5}, r"kernel_size must hold integers, not 1\.5"),
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

    with pytest.raises(RuntimeError, match="sizes are not the description of a convolution plan"):
        torch.ops.lacewing.sparse_conv(x, weight, None, PLAN._array, PLAN._sizes[:-1])
    with pytest.raises(RuntimeError, match=r"plan has \d+ entries, but its description says"):
        torch.ops.lacewing.sparse_conv(x, weight, None, PLAN._array[:-1], PLAN._sizes)
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
        (torch.tensor([[1.0]]), 0.0, r"voxel_size must be positive and finite, not 0"),
        (torch.tensor([[1.0]]), float("inf"), r"voxel_size must be positive and finite, not inf"),
        (torch.zeros(2, 5), 1.0, r"points have 5 axes, but voxels have 1 to 4"),
        (torch.zeros(2, 0), 1.0, r"points have 0 axes, but voxels have 1 to 4"),
        (torch.tensor(1.0), 1.0, r"points must be floats of shape \(points, axes\), not float32 of shape \(\)"),
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
    for batch in (-1, 2**31, torch.tensor([0, 2**32, 1]), torch.tensor([0, -7, 1], dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"batch index -?\d+ does not lie in \[0, 2\^31\)"):
            quantize(points, 0.1, batch)
    with pytest.raises(TypeError, match="points must be a tensor, not list"):
        quantize([[0.0]], 0.1)
    with pytest.raises(TypeError, match="voxel_size must hold numbers, not 'a'"):
        quantize(points, "a")


def test_numbers_of_numpy_are_numbers() -> None:
    points = random(5, 3)

    assert torch.equal(quantize(points, np.float32(0.5)), quantize(points, 0.5))
    assert torch.equal(quantize(points, np.array([0.5, 0.25, 1.0])), quantize(points, [0.5, 0.25, 1.0]))
    assert SparseConv(4, 4, np.int64(3)).kernel_size == (3, 3, 3)
    assert SparseConv(4, 4, np.array([3, 2, 1])).kernel_size == (3, 2, 1)
    assert SparseConv(np.int64(4), np.int32(4), groups=np.int64(2)).weight.shape == (8, 2, 2, 2)
    assert torch.equal(synthetic_scan(np.int64(3), 4, 16, 4)[0], synthetic_scan(3, 4, 16, 4)[0])
    assert convert_weight(random(6, 3, 3, 3, 4), "spconv", [3, 3, 3]).shape == (27, 1, 4, 6)
    assert convert_weight(random(6, 3, 3, 3, 4), "spconv", 3).shape == (27, 1, 4, 6)
    assert ConvolutionPlan.build(cloud(10, 2), np.int32(3))._sizes == ConvolutionPlan.build(cloud(10, 2), 3)._sizes


X = VoxelTensor(random(10, 4, dtype=torch.float32), cloud(10, 2))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: reduce_voxels([1.0], X.coordinates), "features must be a tensor, not list"),
        (lambda: reduce_voxels(X.features, [1]), "coordinates must be a tensor, not list"),
        (lambda: unique_voxels([1]), "coordinates must be a tensor, not list"),
        (lambda: max_pool(X.features, None), "plan must be a ConvolutionPlan, not NoneType"),
        (lambda: unpool(X.features, "x"), "plan must be a ConvolutionPlan, not str"),
        (lambda: sum_pool([1.0], PLAN), "features must be a tensor, not list"),
        (lambda: global_pool([1.0], X.coordinates, 1), "features must be a tensor, not list"),
        (lambda: global_pool(X.features, X.coordinates[:, 0], -1), "batch_size must not be negative, not -1"),
        (lambda: sparse_conv(random(10, 2), random(9, 1, 2, 3), PLAN, [1.0]), "bias must be a tensor, not list"),
        (lambda: SparseConv(4, 4, 1.5), "kernel_size must hold integers, not 1.5"),
        (lambda: SparseConv(4, 4, "a"), "kernel_size must hold integers, not 'a'"),
        (lambda: SparseConv(4, 4, True), "kernel_size must hold integers, not True"),
        (lambda: SparseConv(-4, 4), "channels must be positive, not -4 and 4"),
        (lambda: SparseConv(4, 4.0), "out_channels must be an integer, not 4.0"),
        (lambda: SparseConv(4, 4, groups=None), "groups must be an integer, not None"),
        (lambda: SparseConv(4, 4, axes=None), "axes must be an integer, not None"),
        (lambda: SparseConv(4, 4, axes=2)(X, [[0, 0, 0]]), "SparseConv] targets must be a tensor, not list"),
        (lambda: SparseConvTranspose(4, 4, axes=2)(X, 3), "SparseConvTranspose] targets must be a tensor, not int"),
        (lambda: SubmanifoldConv(4, 4, axes=2)(X, plan="x"), "plan must be a ConvolutionPlan, not str"),
        (lambda: SparseConv(4, 4, axes=2)(X, plan=""), "plan must be a ConvolutionPlan, not str"),
        (lambda: SparseConv(4, 4)(X.features), "SparseConv] the input must be a VoxelTensor, not Tensor"),
        (lambda: VoxelBatchNorm(4)(X.features), "VoxelBatchNorm] the input must be a VoxelTensor, not Tensor"),
        (lambda: VoxelTensor([1.0], X.coordinates), "features must be a tensor, not list"),
        (lambda: VoxelTensor(X.features.to_sparse(), X.coordinates), "features must be a dense tensor, not one of"),
        (lambda: VoxelTensor(X.features, X.coordinates, stride=(1, 2, 3)), "stride must be 2 positive integers"),
        (lambda: VoxelTensor(X.features, X.coordinates, stride=0), "stride must be 2 positive integers, not 0"),
        (lambda: PlanCache("bogus"), "algorithm must be one of automatic, tiles, gather_gemm_scatter, not 'bogus'"),
        (lambda: SparseUnpool(axes=2)(X), "[lacewing.SparseUnpool] no layer with kernel_size (2, 2), stride (2, 2)"),
        (lambda: VoxelTensor(X.features, X.coordinates[:, :0]), "must be int32 of shape (voxels, 1 + axes)"),
        (lambda: VoxelTensor(X.features, X.coordinates, cache=[]), "cache must be a PlanCache, not list"),
        (lambda: X + VoxelTensor(X.features, X.coordinates, stride=2), "have the strides (1, 1) and (2, 2)"),
        (lambda: X.to(1.5), "to() takes a device or a dtype, not 1.5"),
        (lambda: PLAN.to(torch.bfloat16), "device must be a torch.device or its name, not torch.bfloat16"),
        (lambda: PLAN.pairs(None), "tap must be an integer, not None"),
        (lambda: ConvolutionPlan.build(X.coordinates, 2**70), "kernel_size, stride and dilation must fit 64 bits"),
        (lambda: ConvolutionPlan.build(X.coordinates.to("meta")), "coordinates on the meta device have no values"),
        (lambda: ConvolutionPlan.build(X.coordinates.to_sparse()), "must be a dense tensor, not one of layout Sparse"),
        (lambda: unique_voxels(X.coordinates.to_sparse()), "coordinates must be a dense tensor, not one of layout"),
        (lambda: sparse_conv(random(10, 2).to_sparse(), random(9, 1, 2, 3), PLAN), "features must be a dense tensor"),
        (lambda: sparse_conv(random(10, 2), random(9, 1, 2, 3).to_sparse(), PLAN), "weight must be a dense tensor"),
        (lambda: sparse_conv(random(10, 2), random(9, 0, 2, 3), PLAN), "weight of shape (9, 0, 2, 3) has no groups"),
        (lambda: sum_pool(random(10, 2).to_sparse(), PLAN), "features must be a dense tensor, not one of layout"),
        (lambda: pool(X.features, PLAN, None), "mode must be a string, not NoneType"),
        (lambda: global_pool(X.features, X.coordinates[:, 0], None), "batch_size must be an integer, not None"),
        (lambda: global_pool(X.features, X.coordinates[:, 0], 1, 3), "mode must be a string, not int"),
        (lambda: reduce_voxels(X.features, X.coordinates, None), "reduction must be a string, not NoneType"),
        (lambda: quantize(X.features, 0.1, None), "batch must be an integer or a tensor, not None"),
        (lambda: sparse_conv_unit(X.features, X.features, PLAN, None, None), "finish must be a ConvFinish"),
        (lambda: sparse_conv_unit(X.features, X.features, PLAN, [1], ConvFinish()), "bias must be a tensor, not list"),
        (lambda: convert_state_dict(None, "spconv", SparseConv(4, 4)), "state must be a mapping, not NoneType"),
        (lambda: weight_to_user(None, (3,)), "weight must be a tensor, not NoneType"),
        (lambda: weight_to_user(random(3, 3), (3,)), "weight must be (taps, groups, in/groups, out/groups), not of"),
        (lambda: weight_from_user(random(4, 4, 3), 1.5), "groups must be an integer, not 1.5"),
        (lambda: X.cat(X.features), "the other must be a VoxelTensor, not Tensor"),
        (lambda: weight_from_user([1.0]), "weight must be a tensor, not list"),
        (lambda: weight_from_user(random(3)), "a weight of shape (3,) is not in the user layout"),
        (lambda: sparse_conv_workspace([1.0], X.features, PLAN), "features must be a tensor, not list"),
        (lambda: sparse_conv_workspace(X.features, X.features, None), "plan must be a ConvolutionPlan, not NoneType"),
        (lambda: synthetic_scan(1.5), "seed must be an integer, not 1.5"),
        (lambda: synthetic_scan(2**70), "seed does not fit 64 bits: 1180591620717411303424"),
        (lambda: synthetic_scan(0, 2**40, 2**40), "are too many: there can be 2^31 - 1 rays and objects"),
    ],
)
def test_arguments_of_the_wrong_kind(call, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as refused:
        call()
    assert str(refused.value).startswith("[lacewing.")
    assert sentence in str(refused.value)


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


def test_voxels_on_meta_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"\[lacewing.unique_voxels\] coordinates on the meta device have no values"):
        unique_voxels(torch.zeros(3, 4, dtype=torch.int32, device="meta"))
