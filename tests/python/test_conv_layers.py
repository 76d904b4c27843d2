"""Layers on VoxelTensors: shapes, sharing of plans, state dicts, and weights of other libraries."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from conv_support import cloud, dense, random
from lacewing.conv import (
    ConvolutionPlan,
    GlobalPool,
    InverseConv,
    Pointwise,
    SparseConv,
    SparseConvTranspose,
    SparsePool,
    SparseUnpool,
    SubmanifoldConv,
    VoxelBatchNorm,
    VoxelTensor,
    convert_state_dict,
    convert_weight,
    sparse_conv,
)


def voxels(device: str, axes: int = 3, count: int = 60, channels: int = 4, dtype=torch.float32) -> VoxelTensor:
    coordinates = cloud(count, axes, extent=4, device=device)
    return VoxelTensor(random(count, channels, dtype=dtype, device=device), coordinates)


def unet(device: str) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = SubmanifoldConv(4, 8)
            self.norm = VoxelBatchNorm(8)
            self.down = SparseConv(8, 16)
            self.mid = SubmanifoldConv(16, 16, groups=4)
            self.up = InverseConv(16, 8)
            self.head = SubmanifoldConv(16, 3, 1)

        def forward(self, x: VoxelTensor) -> VoxelTensor:
            fine = self.norm(self.stem(x)).map(torch.relu)
            coarse = self.mid(self.down(fine)).map(torch.relu)
            return self.head(self.up(coarse).cat(fine))

    torch.manual_seed(0)
    return Net().to(device)


def test_a_unet_trains_and_shares_plans(device: str) -> None:
    x = voxels(device)
    net = unet(device)

    out = net(x)
    out.features.square().mean().backward()

    assert out.coordinates is x.coordinates
    assert out.stride == (1, 1, 1)
    assert len(x.cache) == 4
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_state_dict_has_the_user_layout(device: str) -> None:
    net, other = unet(device), unet(device)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    state = net.state_dict()

    other.load_state_dict(state)

    assert state["stem.weight"].shape == (8, 4, 3, 3, 3)
    assert state["mid.weight"].shape == (16, 4, 3, 3, 3)
    assert state["up.weight"].shape == (16, 8, 2, 2, 2)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_user_weight_is_a_view() -> None:
    layer = SubmanifoldConv(2, 3, axes=2)

    assert layer.user_weight.shape == (3, 2, 3, 3)
    assert layer.user_weight.data_ptr() == layer.weight.data_ptr()


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_layer_is_dense_convolution(axes: int, device: str) -> None:
    x = voxels(device, axes, 30 if axes > 1 else 12, dtype=torch.float64)
    layer = SparseConv(4, 6, 3, 2, axes=axes, groups=2, dtype=torch.float64, device=device)

    out = layer(x)

    plan = ConvolutionPlan.build(x.coordinates, 3, 2, targets="strided")
    wanted = dense(x.features, layer.user_weight, plan, 2) + layer.bias
    assert out.stride == (2,) * axes
    torch.testing.assert_close(out.features, wanted)


def test_generative_then_pruned(device: str) -> None:
    x = voxels(device, 2, 10)
    up = SparseConvTranspose(4, 2, axes=2, device=device)

    out = up(x)
    kept = out.prune(out.features[:, 0] > 0)

    assert len(out) == 4 * len(x)
    assert len(kept) == int((out.features[:, 0] > 0).sum())
    assert torch.equal(up(x, kept.coordinates).features, out.features[out.features[:, 0] > 0])


def test_pooling_layers(device: str) -> None:
    x = voxels(device, 2, 40)

    coarse = SparsePool("max", axes=2)(x)
    back = SparseUnpool(axes=2)(coarse)

    assert back.coordinates is x.coordinates
    assert bool((back.features >= x.features).all())
    assert GlobalPool("avg")(x).shape == (2, 4)
    assert Pointwise(nn.ReLU())(x).features.min() >= 0
    grouped = VoxelTensor(x.features, x.coordinates[x.coordinates[:, 0].argsort()])
    assert grouped.offsets.tolist() == [0, *torch.bincount(x.coordinates[:, 0]).cumsum(0).tolist()]


def test_bad_input(device: str) -> None:
    x = voxels(device, 2, 10)

    with pytest.raises(ValueError, match="no layer with kernel_size"):
        InverseConv(4, 4, axes=2)(x)
    with pytest.raises(ValueError, match="3 groups do not divide 4 input and 6 output channels"):
        SubmanifoldConv(4, 6, groups=3)
    with pytest.raises(ValueError, match="kernel_size must be 3 positive integers"):
        SubmanifoldConv(4, 6, (3, 3))
    with pytest.raises(ValueError, match=r"stride must be 3 positive integers, not \(0, 0, 0\)"):
        SparseConv(4, 6, 2, 0)
    with pytest.raises(ValueError, match=r"axes must lie in \[1, 4\], not 5"):
        SubmanifoldConv(4, 6, axes=5)
    with pytest.raises(ValueError, match=r"features of shape \(9, 4\) do not have one row for each of the 10 voxels"):
        x.replace(x.features[:9])
    with pytest.raises(ValueError, match="coordinates must be int32 of shape"):
        VoxelTensor(x.features, x.coordinates.long())
    with pytest.raises(ValueError, match="the two tensors lie on different voxels"):
        x + voxels(device, 2, 9)
    with pytest.raises(TypeError, match="mask must be a tensor, not list"):
        x.prune([True] * 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask must be 10 booleans"):
        x.prune(x.features[:, 0])
    with pytest.raises(RuntimeError, match="have 4 channels, but weight of shape"):
        SubmanifoldConv(5, 6, axes=2, device=device)(x)


def test_a_plan_of_another_kernel_is_refused(device: str) -> None:
    x = voxels(device, 2, 20)
    conv = SubmanifoldConv(4, 4, axes=2, device=device)
    down = SparseConv(4, 4, 3, axes=2, device=device)
    here = x.coordinates

    for layer, plan, sentence in (
        (conv, ConvolutionPlan.build(here, 3, 1, 2), r"dilation \(2, 2\), but the layer has .* dilation \(1, 1\)$"),
        (conv, ConvolutionPlan.build(here, (1, 9)), r"kernel_size \(1, 9\), .* the layer has kernel_size \(3, 3\)"),
        (conv, ConvolutionPlan.build(here, 3).transposed(), r"dilation \(1, 1\), transposed, but the layer has"),
        (conv, ConvolutionPlan.build(here, 3, targets=here[:9]), "leads to other voxels than it comes from"),
        (down, ConvolutionPlan.build(here, 3), r"stride \(1, 1\), .* but the layer has .* stride \(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            layer(x, plan=plan)
    loaded = ConvolutionPlan.build(here.clone(), 3)
    torch.testing.assert_close(conv(x, plan=loaded).features, conv(x).features)


@pytest.mark.parametrize("shape", [(6, 4, 3, 3, 1), (6, 4, 9), (6, 4, 1, 3, 3, 1), (9, 1, 4, 6), (4, 6, 1, 3, 3)])
def test_loading_refuses_a_weight_of_another_shape(shape: tuple[int, ...]) -> None:
    layer = SubmanifoldConv(4, 6, (1, 3, 3))
    before = layer.weight.detach().clone()

    with pytest.raises(RuntimeError, match=r"size mismatch for weight: .* model is torch.Size\(\[6, 4, 1, 3, 3\]\)"):
        layer.load_state_dict({"weight": torch.zeros(shape), "bias": layer.bias})
    assert torch.equal(layer.weight, before)


def test_inverse_layers_go_back_the_way_they_came(device: str) -> None:
    a = voxels(device, 2, 20)
    b = VoxelTensor(
        random(30, 4, dtype=torch.float32, device=device), cloud(30, 2, seed=3, device=device), cache=a.cache
    )
    down = SparseConv(4, 4, axes=2, device=device)
    up = InverseConv(4, 4, axes=2, device=device)
    targets = down(a).coordinates.clone()

    from_a, from_b = down(a, targets), down(b, targets)

    assert up(from_a).coordinates is a.coordinates
    assert up(from_b).coordinates is b.coordinates
    assert SparseUnpool(axes=2)(from_b.map(torch.relu)).coordinates is b.coordinates
    with pytest.raises(ValueError, match="led to these voxels from different ones"):
        up(VoxelTensor(from_a.features, targets, cache=a.cache))


@pytest.mark.parametrize("how", ["weight_norm", "spectral_norm", "prune"])
def test_parametrised_layers_have_state_dicts(how: str) -> None:
    def layer() -> nn.Module:
        conv = SubmanifoldConv(4, 6, axes=2)
        if how == "prune":
            return prune.l1_unstructured(conv, "weight", 0.5)
        return getattr(parametrizations, how)(conv)

    x = voxels("cpu", 2, 20)
    one, two = layer().eval(), layer().eval()

    two.load_state_dict(one.state_dict())

    torch.testing.assert_close(two(x).features, one(x).features)


@pytest.mark.parametrize("kind", [SubmanifoldConv, SparseConvTranspose])
def test_parameters_begin_as_torchs(kind) -> None:
    torch.manual_seed(0)
    reference = (nn.ConvTranspose2d if kind is SparseConvTranspose else nn.Conv2d)(64, 16, 3, groups=2)
    layer = kind(64, 16, 3, groups=2, axes=2)

    assert layer.user_weight.shape == reference.weight.shape
    for found, expected in ((layer.weight, reference.weight), (layer.bias, reference.bias)):
        assert float(found.detach().abs().max()) == pytest.approx(float(expected.detach().abs().max()), rel=0.15)


def test_to_another_dtype(device: str) -> None:
    x = voxels(device, 2, 20)

    half = x.to(torch.float16)

    assert half.features.dtype == torch.float16
    assert half.coordinates is x.coordinates
    assert half.cache is x.cache


def test_names_of_minkowski_engine(device: str) -> None:
    net = nn.Sequential()
    net.conv, net.norm = SubmanifoldConv(2, 3, axes=2, bias=False), VoxelBatchNorm(3)
    net.head, net.plain = Pointwise(nn.Linear(3, 3)), Pointwise(nn.BatchNorm1d(3))
    net.to(device)
    expected = {
        key: random(*value.shape, dtype=value.dtype) if value.is_floating_point() else value.cpu()
        for key, value in net.state_dict().items()
    }
    names = {"norm.": "norm.bn.", "head.module.": "head.linear.", "plain.module.": "plain.bn."}
    order = [(a + 1) * 3 + b + 1 for a, b in foreign_steps("minkowski", (3, 3))]
    state = {}
    for key, value in expected.items():
        ours = next((prefix for prefix in names if key.startswith(prefix)), "")
        state[names.get(ours, "") + key.removeprefix(ours)] = value
    weight = state.pop("conv.weight").flatten(2).permute(2, 1, 0)
    state["conv.kernel"] = foreign(weight[order], (3, 3), "minkowski")

    net.load_state_dict(convert_state_dict(state, "minkowski", net))

    for key, value in net.state_dict().items():
        torch.testing.assert_close(value.cpu(), expected[key], msg=key)


STYLES = ["spconv", "spconv1", "minkowski", "torchsparse"]


def foreign_steps(style: str, size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The step from the output voxel to the input voxel of each tap, as the other library's code orders them.

    MinkowskiEngine (kernel_region.hpp): the tap's number modulo the size of the first axis is that axis' step, and so
    on; steps are centred for odd sizes and begin at 0 for even ones. torchsparse (get_kernel_offsets): the first axis
    runs fastest where the number of taps is odd, else the last. spconv: row-major.
    """
    lows = [-(k // 2) if k % 2 else 0 for k in size]
    if style == "minkowski" or (style == "torchsparse" and math.prod(size) % 2):
        reversed_steps = itertools.product(*(range(k) for k in reversed(size)))
        steps = [tuple(reversed(step)) for step in reversed_steps]
    else:
        steps = list(itertools.product(*(range(k) for k in size)))
    return [tuple(s + low for s, low in zip(step, lows, strict=True)) for step in steps]


def foreign(matrices, size: tuple[int, ...], style: str):
    """(taps, Cin, Cout) in the other library's order of taps, as it stores them."""
    cin, cout = matrices.shape[1:]
    if style == "spconv" and len(matrices) == 1:  # torch.mm(features, weight.view(Cin, Cout)) in its conv.py
        return matrices.reshape(cout, *size, cin).clone()
    if style == "spconv":
        return matrices.view(*size, cin, cout).movedim(-1, 0).clone()
    return matrices.view(*size, cin, cout).clone() if style == "spconv1" else matrices.clone()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(3, 3, 3), (2, 2, 2), (3, 1, 5), (1, 1, 1), (2, 3), (3,)], ids=str)
def test_converted_weights_compute_what_they_did(style: str, size: tuple[int, ...]) -> None:
    """The other library's convolution, voxel by voxel with dictionaries, against ours with the converted weight."""
    matrices = random(math.prod(size), 2, 3)
    coordinates = cloud(40, len(size), extent={1: 30, 2: 6, 3: 3}[len(size)], batch=1)
    x = random(40, 2)
    rows = {tuple(v): i for i, v in enumerate(coordinates[:, 1:].tolist())}
    expected = x.new_zeros(40, 3)
    for matrix, step in zip(matrices, foreign_steps(style, size), strict=True):
        for voxel, row in rows.items():
            at = rows.get(tuple(v + s for v, s in zip(voxel, step, strict=True)))
            if at is not None:
                expected[row] += x[at] @ matrix

    weight = convert_weight(foreign(matrices, size, style), style, size)
    plan = ConvolutionPlan.build(coordinates, size)

    torch.testing.assert_close(sparse_conv(x, weight, plan), expected)


def test_one_tap_of_spconv_with_a_stride() -> None:
    """spconv multiplies by such a weight as by any other: (Cout, *kernel, Cin)."""
    layer = SparseConv(3, 2, 1, 2, bias=False, axes=2, dtype=torch.float64)
    theirs = random(2, 1, 1, 3)
    layer.load_state_dict(convert_state_dict({"weight": theirs}, "spconv", layer))
    coordinates = torch.tensor([[0, 0, 0], [0, 2, 4]], dtype=torch.int32)
    x = random(2, 3)

    torch.testing.assert_close(layer(VoxelTensor(x, coordinates)).features, x @ theirs.view(2, 3).T)


def test_spconv_itself_agrees() -> None:
    """Where the package is installed: its layers and ours with its converted state dict."""
    pytest.importorskip("spconv", reason="the package spconv is not installed")
    import spconv.pytorch as spconv

    torch.manual_seed(0)
    theirs = spconv.SparseSequential(
        spconv.SubMConv3d(4, 8, (3, 1, 3), bias=True),
        spconv.SubMConv3d(8, 5, 1, bias=False),
        spconv.SparseConv3d(5, 6, 2, 2, bias=False),
        spconv.SparseConv3d(6, 7, 1, 2, bias=False),
    )
    mine = nn.Sequential(
        SubmanifoldConv(4, 8, (3, 1, 3)),
        SubmanifoldConv(8, 5, 1, bias=False),
        SparseConv(5, 6, 2, 2, bias=False),
        SparseConv(6, 7, 1, 2, bias=False),
    )
    coordinates = cloud(60, 3, extent=4, batch=1)
    coordinates[:, 1:] += 4
    x = random(60, 4, dtype=torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with two its results vary beside torch's own OpenMP runtime
    try:
        with torch.no_grad():
            out = theirs(spconv.SparseConvTensor(x, coordinates, [8, 8, 8], 1))
    finally:
        torch.set_num_threads(threads)

    mine.load_state_dict(convert_state_dict(theirs.state_dict(), "spconv", mine))
    found = mine(VoxelTensor(x, coordinates))

    order = {tuple(v): i for i, v in enumerate(out.indices.tolist())}
    rows = [order[tuple(v)] for v in found.coordinates.tolist()]
    torch.testing.assert_close(found.features.detach(), out.features[rows])


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(3, 2, 0, 1), (2, 2, 1, 1), (3, 1, 1, 2)])
def test_paddings_of_spconv_move_the_voxels(kernel: int, stride: int, padding: int, dilation: int) -> None:
    """As docs/convolution.md says: a state dict does not tell them."""
    pytest.importorskip("spconv", reason="the package spconv is not installed")
    import spconv.pytorch as spconv

    theirs = spconv.SparseConv3d(4, 5, kernel, stride, padding, dilation, bias=False)
    mine = SparseConv(4, 5, kernel, stride, dilation=dilation, bias=False)
    mine.load_state_dict(convert_state_dict(theirs.state_dict(), "spconv", mine))
    coordinates = cloud(60, 3, extent=4, batch=1)
    coordinates[:, 1:] += 4
    x = random(60, 4, dtype=torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            out = theirs(spconv.SparseConvTensor(x, coordinates, [8, 8, 8], 1))
    finally:
        torch.set_num_threads(threads)

    moved = coordinates.clone()
    moved[:, 1:] += padding - dilation * ((kernel - 1) // 2)
    found = mine(VoxelTensor(x, moved), out.indices)

    torch.testing.assert_close(found.features.detach(), out.features)


@pytest.mark.parametrize("style", STYLES)
def test_converted_state_dict(style: str, device: str) -> None:
    net = nn.Sequential(SubmanifoldConv(2, 3, axes=2), VoxelBatchNorm(3), SubmanifoldConv(3, 2, 1, axes=2)).to(device)
    name = "weight" if style.startswith("spconv") else "kernel"
    state = {k: v.clone() for k, v in net.state_dict().items() if k not in ("0.weight", "2.weight")}
    nine = net[0].weight.detach()[:, 0]
    order = [(a + 1) * 3 + b + 1 for a, b in foreign_steps(style, (3, 3))]
    state[f"0.{name}"] = foreign(nine[order], (3, 3), style)
    one = foreign(net[2].weight.detach()[:, 0], (1, 1), style)
    state[f"2.{name}"] = one if style.startswith("spconv") else one[0]
    state["0.bias"] = state["0.bias"][None]
    x = voxels(device, 2, 12, channels=2)
    expected = net(x).features
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()

    net.load_state_dict(convert_state_dict(state, style, net))

    torch.testing.assert_close(net(x).features, expected)


def test_converting_refuses() -> None:
    with pytest.raises(ValueError, match="is not of style spconv with kernel_size"):
        convert_weight(random(2, 3, 3, 3), "spconv", (3, 3, 3))
    with pytest.raises(ValueError, match="even kernels above 2 of style minkowski reach other voxels than ours"):
        convert_weight(random(64, 2, 3), "minkowski", (4, 4, 4))
    with pytest.raises(ValueError, match="style must be one of"):
        convert_weight(random(27, 2, 3), "other", (3, 3, 3))
    with pytest.raises(ValueError, match=r"does not fit the layer 2 -> 3 with 1 groups"):
        convert_state_dict({"kernel": random(9, 3, 3)}, "minkowski", SubmanifoldConv(2, 3, axes=2))


def test_layers_allocate_the_output_and_the_workspace() -> None:
    """The weight is read as it lies: nothing is permuted or copied."""
    from test_product_memory import peak_beyond

    x = voxels("cpu", 3, 400, channels=32)
    layer = SubmanifoldConv(32, 32)
    plan = x.cache.plan(x.coordinates, layer.geometry, "same")

    with torch.no_grad():
        peak = peak_beyond(lambda: sparse_conv(x.features, layer.weight, plan, layer.bias))

    assert peak == x.features.numel() * 4
