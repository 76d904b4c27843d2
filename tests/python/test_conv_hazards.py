"""Convolution where something is unusual: no channels, plans that were damaged, rows that do not belong, traces."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from lacewing.conv import (
    ConvolutionPlan,
    ConvUnit,
    GlobalPool,
    InverseConv,
    SparseConv,
    SparseConvTranspose,
    SparsePool,
    SubmanifoldConv,
    VoxelBatchNorm,
    VoxelTensor,
    max_unpool,
    sparse_conv,
    unique_voxels,
)


def line(*places: int) -> Tensor:
    """Voxels of one axis."""
    return torch.tensor([[0, place] for place in places], dtype=torch.int32).reshape(-1, 2)


def cloud(seed: int, axes: int = 3) -> Tensor:
    """Distinct voxels in random order."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-4, 4, (60, axes), generator=generator)
    voxels, _ = unique_voxels(torch.cat([torch.zeros(60, 1, dtype=torch.long), drawn], 1).int())
    return voxels[torch.randperm(len(voxels), generator=generator)]


@pytest.mark.parametrize("algorithm", ["tiles", "gather_gemm_scatter"])
@pytest.mark.parametrize("kernel", [2, 3])
def test_without_input_channels_the_bias_is_left(algorithm: str, kernel: int) -> None:
    plan = ConvolutionPlan.build(line(*range(185)), kernel).with_algorithm(algorithm)
    torch.full((185, 8), torch.nan)  # memory that is found again, where it is not written

    y = sparse_conv(torch.zeros(185, 0), torch.zeros(kernel, 1, 0, 8), plan, torch.ones(8))

    assert torch.equal(y, torch.ones(185, 8))
    x = torch.ones(185, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(sparse_conv(x, torch.zeros(kernel, 1, 8, 0), plan).sum(), x)
    assert torch.equal(grad, torch.zeros(185, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_of_a_single_bias_has_the_same_bits_for_every_number_of_threads(dtype: torch.dtype) -> None:
    plan = ConvolutionPlan.build(line(*range(60_000)), 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60_000, 2, generator=generator).to(dtype)
    upstream = torch.randn(60_000, 1, generator=generator).to(dtype)
    weight = torch.ones(1, 1, 2, 1, dtype=dtype)
    bias = torch.zeros(1, dtype=dtype, requires_grad=True)
    before, grads = torch.get_num_threads(), []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        grads += torch.autograd.grad(sparse_conv(x, weight, plan, bias), bias, upstream)
    torch.set_num_threads(before)

    assert all(torch.equal(grad, grads[0]) for grad in grads)
    torch.testing.assert_close(grads[0].double(), upstream.double().sum(0), rtol=1e-2, atol=1e-1)


def test_rows_of_max_unpool_must_be_sources_of_their_targets() -> None:
    plan = ConvolutionPlan.build(line(0, 1, 2, 3), 2, 2, targets="strided")
    values = torch.ones(2, 1)

    with pytest.raises(ValueError, match="a row is not one of the source voxels of its target"):
        max_unpool(values, torch.tensor([[3], [2]]), plan)
    assert max_unpool(values, torch.tensor([[1], [-1]]), plan).flatten().tolist() == [0, 1, 0, 0]


def damaged(change: Callable[[dict[str, object]], None], plan: ConvolutionPlan) -> ConvolutionPlan:
    """The plan as it is loaded where what was saved is changed."""
    state = {name: copy.deepcopy(value) for name, value in plan.__getstate__().items()}
    if plan.target is plan.source:
        state["target"] = state["source"]
    change(state)
    loaded = object.__new__(ConvolutionPlan)
    loaded.__setstate__(state)
    return loaded


def move(row: int, voxel: tuple[int, int]) -> Callable[[dict[str, object]], None]:
    def change(state: dict[str, object]) -> None:
        source = state["source"]
        assert isinstance(source, Tensor)
        source[row] = torch.tensor(voxel, dtype=torch.int32)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (move(1, (0, 0)), "repeats"),
        (move(1, (0, 1)), "its pairs are not those of its coordinates"),
        (move(1, (-5, 10)), "batch"),
        (lambda state: state.update(dilation=(10,)), "its pairs are not those of its coordinates"),
        (
            lambda state: state.update(target=torch.flip(state["source"], [0])),
            "are not a pair|its middle tap leads to other voxels",
        ),
    ],
)
def test_damaged_plans_are_refused(change: Callable[[dict[str, object]], None], sentence: str) -> None:
    plan = ConvolutionPlan.build(line(0, 10, 20), 3)
    pickle.loads(pickle.dumps(plan))

    with pytest.raises((RuntimeError, ValueError), match=rf"\[lacewing.convolution_plan\] .*({sentence})"):
        damaged(change, plan)


def test_pairs_are_copies() -> None:
    plan = ConvolutionPlan.build(line(0, 1, 2), 3)
    expected = sparse_conv(torch.ones(3, 1), torch.ones(3, 1, 1, 1), plan)

    for rows in plan.pairs(0):
        rows.fill_(10**9)

    assert torch.equal(sparse_conv(torch.ones(3, 1), torch.ones(3, 1, 1, 1), plan), expected)


@pytest.mark.parametrize("coordinates", [torch.tensor([[0.0, 16777216.0]]), torch.tensor([[0, 16777217]]), [[0, 1]]])
def test_coordinates_beside_a_plan_must_be_int32(coordinates: object) -> None:
    plan = ConvolutionPlan.build(line(16777217), 1)

    with pytest.raises(ValueError, match="coordinates must be a tensor of int32, not"):
        sparse_conv(torch.ones(1, 1), torch.ones(1, 1, 1, 1), plan, coordinates=coordinates)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [True, False])
def test_a_unit_takes_the_same_residuals_in_every_mode(training: bool) -> None:
    unit = ConvUnit(SubmanifoldConv(4, 8, axes=1), VoxelBatchNorm(8)).train(training)
    x = VoxelTensor(torch.randn(4, 4), line(0, 1, 2, 3))

    with pytest.raises(ValueError, match="the residual has 1 channels, but there are 8 output channels"):
        unit(x, residual=x.replace(torch.ones(4, 1)))
    with pytest.raises(ValueError, match=r"the residual has dtype torch.float64 but features have torch.float32"):
        unit(x, residual=x.replace(torch.ones(4, 8, dtype=torch.float64)))


def test_a_unit_honours_hooks_of_all_modules() -> None:
    unit = ConvUnit(SubmanifoldConv(4, 8, axes=1), VoxelBatchNorm(8)).eval()
    seen: list[str] = []
    hook = register_module_forward_hook(lambda layer, *_: seen.append(type(layer).__name__))
    try:
        unit(VoxelTensor(torch.randn(4, 4), line(0, 1, 2, 3)))
    finally:
        hook.remove()

    assert seen == ["SubmanifoldConv", "VoxelBatchNorm", "ConvUnit"]


@pytest.mark.parametrize("read", [False, True])
def test_clouds_without_voxels_stay_in_the_batch(read: bool) -> None:
    coordinates = torch.tensor([[0, 1], [1, 1]], dtype=torch.int32)
    x = VoxelTensor(torch.ones(2, 1), coordinates)
    assert not read or x.batch_size == 2

    pruned = x.prune(coordinates[:, 0] == 0)

    assert pruned.batch_size == 2
    assert pruned.offsets.tolist() == [0, 1, 1]


def test_offsets_need_grouped_rows_and_batch_sizes_are_counts() -> None:
    mixed = torch.tensor([[1, 0], [0, 0]], dtype=torch.int32)

    with pytest.raises(ValueError, match="the rows are not grouped by batch indices 0 to 1"):
        _ = VoxelTensor(torch.ones(2, 1), mixed).offsets
    with pytest.raises(ValueError, match="the rows are not grouped by batch indices 0 to 0"):
        _ = VoxelTensor(torch.ones(2, 1), mixed.flip(0), batch_size=1).offsets
    for size in (-1, "a"):
        with pytest.raises(ValueError, match="batch_size must be an integer of at least 0"):
            VoxelTensor(torch.ones(2, 1), mixed, batch_size=size)  # type: ignore[arg-type]


def test_a_move_to_the_same_device_keeps_the_way_back() -> None:
    x = VoxelTensor(torch.randn(60, 2), line(*range(60)))
    down, up = SparseConv(2, 2, axes=1), InverseConv(2, 2, axes=1)

    assert torch.equal(up(down(x).to("cpu")).coordinates, x.coordinates)


@pytest.mark.parametrize("layer", [SparseConv, SparseConvTranspose])
def test_targets_and_a_plan_exclude_each_other(layer: type) -> None:
    x = VoxelTensor(torch.randn(4, 2), line(0, 1, 2, 3))
    plan = ConvolutionPlan.build(x.coordinates, 2, 2, targets="strided")

    with pytest.raises(ValueError, match="give one of targets and plan"):
        layer(2, 2, axes=1)(x, x.coordinates, plan=plan)


def test_networks_on_unsorted_voxels_compile() -> None:
    net = nn.Sequential(SubmanifoldConv(4, 8), SparseConv(8, 8), SubmanifoldConv(8, 8), InverseConv(8, 4))
    compiled = torch.compile(net, backend="eager")

    for seed in (0, 1):
        voxels = cloud(seed)
        x = torch.randn(len(voxels), 4)
        expected = net(VoxelTensor(x, voxels)).features
        torch.testing.assert_close(compiled(VoxelTensor(x, voxels)).features, expected)


def test_coarse_voxels_that_were_changed_are_made_anew() -> None:
    x = VoxelTensor(torch.ones(3, 1), line(0, 1, 4))
    SparsePool("sum", 2, 2, axes=1)(x).coordinates[:, 1] += 100

    y = SparsePool("sum", 3, 2, axes=1)(x)

    assert y.coordinates.tolist() == [[0, 0], [0, 2]]
    assert y.features.flatten().tolist() == [2.0, 1.0]


@pytest.mark.parametrize("read_before", [False, True])
def test_a_cloud_that_lost_its_voxels_is_still_one_of_the_batch(read_before: bool) -> None:
    x = VoxelTensor(torch.ones(2, 2), torch.tensor([[0, 0], [1, 1]], dtype=torch.int32))
    if read_before:
        assert x.batch_size == 2
    reachable = SparseConv(2, 2, 1, 2, targets="reachable", axes=1)(x)  # no tap leads from voxel 1
    given = SparseConv(2, 2, 2, 2, axes=1)(x, line(0))
    more = SparseConv(2, 2, 2, 2, axes=1)(x, torch.tensor([[4, 0]], dtype=torch.int32))

    assert len(reachable) == len(given) == 1
    for y in (reachable, given, x.prune(torch.tensor([True, False])), given.to("cpu"), given.replace(given.features)):
        assert GlobalPool()(y).shape == (2, 2)
    assert more.batch_size == 5
    assert VoxelTensor(x.features, x.coordinates, 7).prune(torch.tensor([False, False])).batch_size == 7


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_plans_that_a_transform_built_outlive_it(transform: str) -> None:
    coordinates = cloud(3)
    x = VoxelTensor(torch.randn(len(coordinates), 4), coordinates)
    net = nn.Sequential(SubmanifoldConv(4, 4), SparseConv(4, 4))

    def loss(features: Tensor) -> Tensor:
        return net(x.replace(features)).features.sum()

    if transform == "grad":
        torch.func.grad(loss)(x.features)
    else:
        torch.func.jvp(loss, (x.features,), (torch.ones_like(x.features),))

    assert len(x.cache) == 2
    for plan in x.cache._plans.values():
        assert torch.equal(pickle.loads(pickle.dumps(plan)).target, plan.target)
        assert torch.equal(copy.deepcopy(plan)._array, plan._array)


def test_memory_formats_do_not_reach_the_weight() -> None:
    layer = SubmanifoldConv(8, 8, groups=2, axes=2)
    before = layer.weight.detach().clone()

    moved = layer.to(memory_format=torch.channels_last)

    assert moved.weight.is_contiguous()
    assert moved.weight.requires_grad
    assert torch.equal(moved.weight, before)
    assert [name for name, _ in moved.named_parameters()] == ["weight", "bias"]
