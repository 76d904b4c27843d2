"""Infos as objects: copies, devices, another scale, and how they print."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

import lacewing
from lacewing import SparseProductInfo, sparse_product_info, sparse_scale_infos
from products_support import OPS, assert_close, assert_derivatives_close, derivatives, make_case, random_values


def lists(info: SparseProductInfo) -> dict[str, list[int] | None]:
    """The index fields as lists."""
    names = ("index1", "index2", "seg_out", "gather_index", "index_out")
    return {name: None if (t := getattr(info, name)) is None else t.tolist() for name in names}


def product(info: SparseProductInfo, x: Tensor, y: Tensor) -> Tensor:
    return lacewing.sparse_mul(x, y, info)


def _copies() -> dict[str, object]:
    def saved(info: object) -> object:
        buffer = io.BytesIO()
        torch.save(info, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=False)

    return {"deepcopy": copy.deepcopy, "pickle": lambda i: pickle.loads(pickle.dumps(i)), "torch_save": saved}


@pytest.mark.parametrize("copier", _copies().values(), ids=_copies().keys())
@pytest.mark.parametrize("absent", [(), ("index1", "gather_index"), ("scale", "seg_out")], ids="+".join)
def test_copies_give_the_same_product(copier, absent: tuple[str, ...], device: str) -> None:
    case = make_case(OPS["mul"], absent, device=device)
    want = derivatives(case.run, case.x, case.y, case.scale, 1)

    case.info = copier(case.info)

    assert_derivatives_close(
        derivatives(case.run, case.x, case.y, case.scale, 1), {k: v.cpu() for k, v in want.items()}, torch.float64
    )


@pytest.mark.parametrize("copier", _copies().values(), ids=_copies().keys())
def test_copies_keep_every_field(copier) -> None:
    info = make_case(OPS["mul"]).info

    other = copier(info)

    assert lists(other) == lists(info)
    assert torch.equal(other.scale, info.scale)
    assert other.out_size == info.out_size
    assert repr(other) == repr(info)


def test_copies_of_scale_infos_give_the_same_product() -> None:
    fwd, bwd = sparse_scale_infos([0, 2, 2], [1, 0, 3], [1.0, 2.0, 3.0], 3, 4)
    x = random_values([2, 4, 3], torch.float32, 0)

    copied = copy.deepcopy(fwd), pickle.loads(pickle.dumps(bwd))

    assert torch.equal(lacewing.sparse_scale(x, *copied), lacewing.sparse_scale(x, fwd, bwd))


def test_to_moves_an_info_and_keeps_it_where_it_is(device: str) -> None:
    case = make_case(OPS["mul"])

    moved = case.info.to(device)

    assert moved.device.type == device
    assert moved.to(moved.device) is moved
    got = lacewing.sparse_mul(case.x.to(device), case.y.to(device), moved)
    assert_close(got, case.oracle(case.x, case.y, case.scale), 1e-12)


def test_with_scale_replaces_the_scale_alone() -> None:
    case = make_case(OPS["mul"])

    other = case.info.with_scale(2 * case.scale)

    assert torch.equal(product(other, case.x, case.y), 2 * product(case.info, case.x, case.y))
    assert lists(other) == lists(case.info)


def test_repr_names_the_fields() -> None:
    info = SparseProductInfo([2.0, 3.0], [0, 1], [1, 1], [0, 2], out_size=3)

    text = repr(info)

    assert text == (
        "SparseProductInfo(scale=[2.0, 3.0], index1=[0, 1], index2=[1, 1], seg_out=[0, 2], gather_index=None, "
        "index_out=None, out_size=3)"
    )


def test_repr_of_a_large_info_is_short() -> None:
    info = sparse_product_info(torch.arange(1000).flip(0), None, None)

    assert len(repr(info)) < 300


def test_backward_plans_are_derived_once() -> None:
    case = make_case(OPS["mul"])
    x = case.x.requires_grad_()

    for _ in range(2):
        product(case.info, x, case.y).sum().backward()

    assert len(case.info._derived) == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool], ids=str)
def test_a_scale_of_integers_is_the_list_of_them(dtype: torch.dtype, device: str) -> None:
    case = make_case(OPS["mul"], device=device)
    scale = (case.scale > 0).to(dtype)
    of_list = case.info.with_scale(scale.tolist()).to(device)

    of_tensor = case.info.with_scale(scale)

    assert torch.equal(product(of_tensor, case.x, case.y), product(of_list, case.x, case.y))
    assert of_tensor.scale.dtype == torch.float64
    assert SparseProductInfo(scale, torch.zeros(scale.numel(), dtype=torch.int64)).scale.dtype == torch.float64


def test_infos_of_the_same_fields_are_equal(device: str) -> None:
    make = lambda **fields: SparseProductInfo(**({"scale": [1.0, 2.0], "index1": [0, 1], "seg_out": [0, 2]} | fields))
    info = make().to(device)

    assert info == make().to(device)
    assert hash(info) == hash(make().to(device))
    assert info != make(scale=[1.0, 3.0]).to(device)
    assert info != make(index1=[1, 0]).to(device)
    assert info != make(scale=None).to(device)
    assert info != "an info"
    assert make(index1=None, seg_out=None) != lacewing.SparseScaleInfo([1.0, 2.0])


def test_fields_by_name_make_the_info_again(device: str) -> None:
    info = make_case(OPS["mul"], device=device).info

    assert SparseProductInfo(**info._asdict()) == info
    assert list(info._asdict()) == ["scale", "index1", "index2", "seg_out", "gather_index", "index_out", "out_size"]


def test_replaced_fields_are_checked_and_the_others_kept() -> None:
    info = SparseProductInfo([1.0, 2.0], [0, 1], [1, 1], [0, 2])

    other = info._replace(index2=[0, 1])

    assert other == SparseProductInfo([1.0, 2.0], [0, 1], [0, 1], [0, 2])
    assert info._replace(scale=[3.0, 4.0]) == SparseProductInfo([3.0, 4.0], [0, 1], [1, 1], [0, 2])
    with pytest.raises(TypeError, match=r"\[lacewing.SparseProductInfo\] there is no field 'index3'"):
        info._replace(index3=[0, 1])
    with pytest.raises(RuntimeError, match="index1"):
        info._replace(index1=[0])


def test_a_scale_info_has_a_segment_for_each_row() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.SparseScaleInfo\] seg_out has 1 segments but out_size is 3"):
        lacewing.SparseScaleInfo([1.0, 2.0], [0, 1], [0, 2], out_size=3)
