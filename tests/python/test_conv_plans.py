"""Convolution plans as values: views of one tensor, changed coordinates, damaged files, inference mode."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from conv_support import cloud, random
from lacewing.conv import (
    ConvolutionPlan,
    PlanCache,
    SparseConv,
    SparsePool,
    SubmanifoldConv,
    VoxelTensor,
    max_pool,
    sparse_conv,
)


def line(length: int) -> torch.Tensor:
    """Voxels 0, 1, ... on one axis."""
    return torch.arange(length, dtype=torch.int32)[:, None] * torch.tensor([0, 1], dtype=torch.int32)


def pairs_of(plan: ConvolutionPlan) -> list[tuple[int, int, int]]:
    return [(tap, *pair) for tap in range(plan.taps) for pair in torch.stack(plan.pairs(tap), 1).tolist()]


@pytest.mark.parametrize("build", [ConvolutionPlan.build, ConvolutionPlan.build_transposed])
def test_views_of_one_tensor_are_not_the_same_voxels(build, device: str) -> None:
    voxels = line(30).to(device)
    a, b, _ = voxels.split(10)

    for source, target in ((a, b), (voxels, voxels[5:]), (voxels, voxels[::3]), (voxels, voxels[:1]), (a, voxels)):
        found = build(source, 3, 1, targets=target)
        expected = build(source.clone(), 3, 1, targets=target.clone())
        assert pairs_of(found) == pairs_of(expected)
    assert len(pairs_of(build(a, 3, 1, targets=b))) == 1
    with pytest.raises(RuntimeError, match=r"repeats"):
        build(voxels, 3, 1, targets=voxels[:1].expand(2, 2))


def test_equal_voxels_are_the_same_wherever_they_lie(device: str) -> None:
    voxels = cloud(20, 2, device=device)

    assert ConvolutionPlan.build(voxels, 3, targets=voxels.clone())._sizes == ConvolutionPlan.build(voxels, 3)._sizes


def test_layers_and_pools_onto_views(device: str) -> None:
    voxels = line(30).to(device)
    x = VoxelTensor(random(30, 2, device=device), voxels)
    conv = SparseConv(2, 3, 3, 1, axes=1, dtype=torch.float64, device=device)

    found, expected = (conv(x, targets=target).features for target in (voxels[:4], voxels[:4].clone()))

    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    onto = ConvolutionPlan.build(voxels, 3, targets=voxels[:1])
    torch.testing.assert_close(max_pool(x.features, onto)[0], x.features[:2].max(0).values, rtol=0, atol=0)


def test_plans_are_immutable() -> None:
    plan = ConvolutionPlan.build(line(4), 3)

    with pytest.raises(AttributeError, match="a plan is immutable: kernel_size cannot be set"):
        plan.kernel_size = (5,)  # type: ignore[misc]
    with pytest.raises(AttributeError, match="a plan is immutable: source cannot be deleted"):
        del plan.source


def test_coordinates_changed_in_place_are_noticed(device: str) -> None:
    voxels = line(6).to(device)
    x = VoxelTensor(random(6, 2, device=device), voxels)
    conv = SubmanifoldConv(2, 2, 3, axes=1, dtype=torch.float64, device=device)
    plan = x.cache.plan(voxels, conv.geometry, "same")
    conv(x)
    SparsePool("sum", axes=1)(x)

    voxels[:, 1] *= 10  # no neighbours any more

    expected = x.features @ conv.weight[1, 0] + conv.bias
    torch.testing.assert_close(conv(x).features, expected)
    assert len(SparsePool("sum", axes=1)(x)) == 6
    for use in (
        lambda: conv(x, plan=plan),
        lambda: plan.transposed().check_source(voxels),
        lambda: plan.with_algorithm("tiles").check_source(voxels),
        lambda: pickle.dumps(plan),
        lambda: plan.to("cpu"),
    ):
        with pytest.raises(ValueError, match="the coordinates of the plan were changed in place after it was built"):
            use()


def test_taps_out_of_range() -> None:
    plan = ConvolutionPlan.build(line(4), 3)

    for tap in (-1, 3):
        with pytest.raises(IndexError, match=rf"tap {tap} is out of range: there are 3"):
            plan.pairs(tap)


def integers(position: int, value: int):
    def change(state) -> None:
        meta = list(state["_sizes"])
        meta[position] = value
        state["_sizes"] = tuple(meta)

    return change


def entry(position: int, value: int):
    def change(state) -> None:
        state["_array"][position] = value

    return change


def other(**values):
    return lambda state: state.update(values)


DAMAGES = {
    "row far away": (entry(2, 10_000_000), "fine row 10000000 of tap 0 is out of range"),
    "row negative": (entry(2, -1), "fine row -1 of tap 0 is out of range"),
    "rows exchanged": (lambda s: s["_array"][:2].copy_(s["_array"][:2].flip(0)), "rows of tap 0 are out of order"),
    "tile": (entry(-1, 3), "the coarse tiles of tap 2 do not cover its pairs"),
    "array too short": (lambda s: s.update(_array=s["_array"][:-1]), "its array is int32 of shape"),
    "array of longs": (lambda s: s.update(_array=s["_array"].long()), "its array is int64 of shape"),
    "offsets": (integers(8, 10_000), "its description does not fit together"),
    "longest tap 0": (integers(5, 0), "its description does not fit together"),
    "longest tap -7": (integers(5, -7), "its description does not fit together"),
    "identity tap": (integers(4, 0), "its description does not fit together"),
    "flags": (integers(3, 64), "its description does not fit together"),
    "algorithm": (integers(6, 3), "its description does not fit together"),
    "no integers": (other(_sizes=()), "its description does not fit together"),
    "kernel of 7": (other(kernel_size=(7,)), r"kernel_size \(7,\) has 7 taps, but the description says 3"),
    "kernel of 0": (other(kernel_size=(0,)), r"kernel_size\[0\] = 0 must lie in"),
    "stride of two axes": (other(stride=(1, 1)), "stride has 2 entries, but the coordinates have 1 axes"),
    "other stride": (other(stride=(2,)), "are not a pair of tap"),
    "source of another size": (lambda s: s.update(source=s["source"][:-1]), r"coordinates of shapes \(19, 2\)"),
    "source moved": (lambda s: s.update(source=s["source"] + 1), r"voxels \(\d, -?\d+\) and .* are not a pair of tap"),
    "nothing saved": (lambda s: s.pop("_sizes"), "_sizes is missing"),
    "meta of strings": (other(_sizes="abc"), "_sizes is no tuple of integers"),
    "no tensor": (other(target=3), "target is no tensor"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_plans_are_refused(damage: str) -> None:
    plan = ConvolutionPlan.build(torch.unique(cloud(20, 1, extent=30), dim=0), 3)
    state = copy.deepcopy(plan.__getstate__())
    change, sentence = DAMAGES[damage]
    change(state)

    with pytest.raises((RuntimeError, ValueError), match=sentence):
        object.__new__(ConvolutionPlan).__setstate__(state)


@pytest.mark.parametrize("targets", ["same", "strided", "reachable"])
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_whole_plans_are_taken(axes: int, targets: str, device: str) -> None:
    stride = 1 if targets == "same" else 2
    plan = ConvolutionPlan.build(cloud(700, axes, extent=700, device=device), 3, stride, 2, targets)  # several tiles

    for given in (plan, plan.transposed()):
        assert pickle.loads(pickle.dumps(given))._sizes == given._sizes


def test_torch_load_takes_plans_by_default(device: str) -> None:
    plan = ConvolutionPlan.build(cloud(20, 2, device=device), 3)
    buffer = io.BytesIO()
    torch.save({"plan": plan}, buffer)
    buffer.seek(0)

    loaded = torch.load(buffer)["plan"]

    assert loaded._sizes == plan._sizes
    loaded.check_source(plan.source)


def test_plans_of_inference_mode_can_be_trained_on(device: str) -> None:
    x = VoxelTensor(random(20, 2, device=device), cloud(20, 2, device=device))
    net = torch.nn.Sequential(
        SubmanifoldConv(2, 3, axes=2, dtype=torch.float64, device=device),
        SparseConv(3, 4, axes=2, dtype=torch.float64, device=device),
        SparsePool("max", axes=2),
    )

    with torch.inference_mode():
        expected = net(x).features.clone()
        inside = ConvolutionPlan.build(cloud(20, 2, device=device), 3)
    y = net(x).features
    y.sum().backward()
    weight = random(9, 1, 2, 3, device=device).requires_grad_()
    sparse_conv(x.features, weight, inside).sum().backward()

    torch.testing.assert_close(y, expected)
    assert all(p.grad is not None for p in (*net.parameters(), weight))


def test_an_exported_program_is_saved_with_its_plan(device: str) -> None:
    plan = ConvolutionPlan.build(cloud(12, 2, device=device), 3)
    x, weight = random(12, 2, device=device), random(9, 1, 2, 3, device=device)

    class Net(torch.nn.Module):
        def forward(self, x, weight, plan):
            return sparse_conv(x, weight, plan)

    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Net(), (x, weight, plan)), buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()

    torch.testing.assert_close(loaded(x, weight, plan), sparse_conv(x, weight, plan))


def test_copies_of_a_cache_are_empty() -> None:
    x = VoxelTensor(random(20, 2), cloud(20, 2))
    down = SparseConv(2, 2, axes=2, dtype=torch.float64)
    y = down(x).map(torch.Tensor.detach)

    for other_x, other_y in (copy.deepcopy((x, y)), pickle.loads(pickle.dumps((x, y)))):
        assert len(other_x.cache) == 0
        assert other_x.cache is other_y.cache
        torch.testing.assert_close(down(other_x).features, y.features)
        assert torch.equal(other_y.way_back(down.geometry, "test").target, x.coordinates)
    assert copy.copy(PlanCache("tiles")).algorithm == "tiles"
