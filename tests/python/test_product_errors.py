"""Bad input: one sentence that names the op, the argument, what was expected and what came."""

from __future__ import annotations

import re

import pytest
import torch

from lacewing import (
    SparseProductInfo,
    SparseScaleInfo,
    sparse_product_info,
    sparse_product_infos,
    sparse_scale,
    sparse_scale_infos,
)
from lacewing._plan import arguments
from products_support import OPS, Op, make_case, random_values, run_python

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
each_side = pytest.mark.parametrize("side", ["input1", "input2"])

REFUSED = (RuntimeError, ValueError, TypeError)
INFO = "SparseProductInfo"


def tag(op: Op) -> str:
    """How an error of an op starts."""
    return rf"\[lacewing\.sparse_{op.name}\] "


def call(op: Op, device: str, side: str | None = None, change=None, **kwargs):
    """Runs a product of which one operand was changed, and checks that an error leaves the operands as they were."""
    case = make_case(op, ("index_out",), device=device, **kwargs)
    tensors = {"input1": case.x, "input2": case.y}
    if side:
        tensors[side] = change(tensors[side])
    before = [t.clone() for t in tensors.values()]
    versions = [t._version for t in tensors.values()]
    try:
        return op.function(*tensors.values(), case.info)
    finally:
        assert [t._version for t in tensors.values()] == versions
        if not any(t.is_meta for t in tensors.values()):
            assert all(torch.equal(t, old) for t, old in zip(tensors.values(), before, strict=True))


@each_op
@each_side
@pytest.mark.parametrize(
    "change", [lambda t: t[None], lambda t: t[0, 0], lambda t: t.new_ones(())], ids=["higher", "lower", "none"]
)
def test_wrong_rank(op: Op, side: str, change, device: str) -> None:
    expected = rf"{side} must have shape \(N, M.*\), or \(M.*\) where it is shared, not \("

    with pytest.raises(REFUSED, match=tag(op) + expected):
        call(op, device, side, change)


@pytest.mark.parametrize("name", ["mul", "inner", "vecmat", "mat_t_vec"])
@each_side
def test_channels_that_do_not_fit(name: str, side: str, device: str) -> None:
    op = OPS[name]
    dim = 2 + (op.x if side == "input1" else op.y).index("a")
    change = lambda t: torch.cat([t, t.narrow(dim, 0, 1)], dim=dim)

    with pytest.raises(REFUSED, match=tag(op) + r"input1 of shape \(.*\) and input2 of shape \(.*\) do not fit"):
        call(op, device, side, change)


@each_op
@each_side
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_integer_operands(op: Op, side: str, dtype: torch.dtype, device: str) -> None:
    with pytest.raises(REFUSED, match=tag(op) + rf"{side} must have dtype float16, .* not "):
        call(op, device, side, lambda t: t.to(dtype))


@each_op
@each_side
def test_operands_on_two_devices(op: Op, side: str, device: str) -> None:
    with pytest.raises(REFUSED, match=tag(op) + r".* is on \w+(:\d)? but .* is on \w+"):
        call(op, device, side, lambda t: t.to("meta"))


@each_op
def test_operands_and_info_on_two_devices(op: Op, device: str) -> None:
    case = make_case(op)
    other = "meta" if device == "cpu" else device

    with pytest.raises(REFUSED, match=tag(op) + r"the info is on cpu but input1 is on"):
        op.function(case.x.to(other), case.y.to(other), case.info)


@each_op
def test_scale_on_another_device(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(REFUSED, match=tag(op) + r"scale is on meta but input1 is on"):
        op.function(case.x, case.y, case.info.with_scale(case.scale.to("meta")))


@each_op
@each_side
def test_batches_that_differ(op: Op, side: str, device: str) -> None:
    with pytest.raises(REFUSED, match=tag(op) + r"input1 of shape .* input2 of shape .* must agree in N"):
        call(op, device, side, lambda t: torch.cat([t, t]))


@each_op
@each_side
@pytest.mark.parametrize("shared", [False, True])
def test_index_beyond_the_operand(op: Op, side: str, shared: bool, device: str) -> None:
    case = make_case(op, roles=(shared, shared, False), device=device)
    index = "index1" if side == "input1" else "index2"
    tensor = case.x if side == "input1" else case.y
    rows = tensor.shape[0 if shared else 1]
    info = SparseProductInfo(**{"index1": [0, 1, 0], "index2": [1, 0, 0], index: [0, rows + 3, rows]}).to(device)

    with pytest.raises(
        REFUSED,
        match=tag(op)
        + rf"{index}\[1\] = {rows + 3} is out of range for {side} of shape {re.escape(str(tuple(tensor.shape)))}: "
        + rf"dim {0 if shared else 1} has {rows} entries",
    ):
        op.function(case.x, case.y, info)


@each_op
def test_absent_index_beyond_the_operand(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    rows = case.x.shape[1]
    info = SparseProductInfo(index2=[0] * (rows + 1)).to(device)

    with pytest.raises(REFUSED, match=tag(op) + rf"index1\[{rows}\] = {rows} is out of range for input1"):
        op.function(case.x, case.y, info)


@each_op
def test_info_without_fields_wants_equal_rows(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(REFUSED, match=tag(op) + r"an info whose fields are all absent .* not 4 and 5"):
        op.function(case.x, case.y, SparseProductInfo().to(device))


@each_op
@pytest.mark.parametrize("shape", [(5,), (7,), (6, 1), ()], ids=str)
def test_scale_of_another_shape(op: Op, shape: tuple[int, ...], device: str) -> None:
    case = make_case(op, device=device)
    scale = torch.ones(shape)

    with pytest.raises(REFUSED, match=tag(op) + r"scale must have shape \(6,\).* not \("):
        op.function(case.x, case.y, case.info.with_scale(scale.to(device)))


@each_op
def test_complex_scale_of_real_operands(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(REFUSED, match=tag(op) + r"scale is complex but both inputs are real"):
        op.function(case.x, case.y, case.info.with_scale(case.scale.to(torch.complex128)))


@each_op
@pytest.mark.parametrize("info", [None, [0, 1], SparseScaleInfo(index=[0])], ids=["none", "list", "scale_info"])
def test_info_of_another_type(op: Op, info: object, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(
        TypeError, match=tag(op) + r"info_fwd must be a SparseProductInfo, or SparseProductInfos alone, not \w+"
    ):
        op.function(case.x, case.y, info)


@each_op
@pytest.mark.parametrize("argument", ["info_bwd1", "info_bwd2"])
def test_backward_info_of_another_type(op: Op, argument: str, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(TypeError, match=tag(op) + rf"{argument} must be a SparseProductInfo, not SparseScaleInfo"):
        op.function(case.x.requires_grad_(), case.y, case.info, **{argument: SparseScaleInfo(index=[0])})


@each_op
@each_side
def test_operand_that_is_no_tensor(op: Op, side: str, device: str) -> None:
    case = make_case(op, device=device)
    tensors = {"input1": case.x, "input2": case.y, side: [1.0]}

    with pytest.raises(TypeError, match=tag(op) + rf"{side} must be a tensor, not list"):
        op.function(*tensors.values(), case.info)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"index1": [0, -2], "index2": [0, 0]}, r"index1\[1\] = -2 is negative"),
        ({"index1": [0, 0], "index2": [-1, 0]}, r"index2\[0\] = -1 is negative"),
        ({"index1": [0, 0], "seg_out": [-1, 2]}, r"seg_out\[0\] = -1 is negative"),
        ({"index1": [0, 0], "gather_index": [0, -5]}, r"gather_index\[1\] = -5 is negative"),
        ({"index1": [0, 0], "index_out": [0, -1], "out_size": 3}, r"index_out\[1\] = -1 is negative"),
        ({"index1": [0.5, 1.0]}, r"index1 must have dtype int32 or int64, not "),
        ({"index1": torch.tensor([True, False])}, r"index1 must have dtype int32 or int64, not "),
        ({"seg_out": torch.tensor([0.0, 1.0])}, r"seg_out must have dtype int32 or int64, not "),
        ({"index2": [[0, 1], [1, 0]]}, r"index2 must have 1 dimension, not shape \(2, 2\)"),
        ({"gather_index": torch.tensor(1)}, r"gather_index must have 1 dimension, not shape \(\)"),
        ({"index1": [0, 1, 2], "index2": [0, 1]}, r"index2 has 2 entries but .* 3"),
        ({"scale": [1.0, 2.0], "index1": [0]}, r"index1 has 1 entries but .* 2"),
        ({"index1": [0, 0, 0], "seg_out": [0, 2, 1, 3]}, r"seg_out must not decrease, but seg_out\[2\] = 1 follows 2"),
        ({"index1": [0, 0], "seg_out": [0, 3]}, r"seg_out\[1\] = 3 is out of range: there are 2 terms"),
        (
            {"index1": [0, 0], "gather_index": [0], "seg_out": [0, 2]},
            r"seg_out\[1\] = 2 is out of range: there are 1 entries of gather_index",
        ),
        ({"index1": [0, 0], "seg_out": []}, r"seg_out must have at least one entry"),
        ({"index1": [0, 0], "gather_index": [0, 2]}, r"gather_index\[1\] = 2 is out of range: T is 2"),
        ({"index1": [0, 0], "index_out": [1, 1], "out_size": 3}, r"index_out must be distinct, but index_out\[1\] = 1"),
        ({"index1": [0, 0], "index_out": [0, 3], "out_size": 3}, r"index_out\[1\] = 3 is out of range: out_size is 3"),
        ({"index1": [0, 0], "index_out": [0], "out_size": 3}, r"index_out has 1 entries for 2 segments"),
        ({"index1": [0, 0], "index_out": [0, 1]}, r"out_size must be given where index_out is"),
        ({"index1": [0, 0], "out_size": 1}, r"out_size is 1 but there are 2 segments"),
        ({"index1": [0, 0], "out_size": -1}, r"out_size must lie in \[0, \d+\], not -1"),
        ({"index1": [0, 0], "out_size": 10**18}, r"out_size must lie in \[0, \d+\], not 1000000000000000000"),
        ({"index1": [0, 0], "out_size": 2**46}, r".*memory"),
        ({"index1": [0, 0], "index_out": [0, 1], "out_size": 2**46}, r".*memory"),
        ({"out_size": 10**30}, r"out_size"),
        ({"index1": [0, 0], "out_size": 2.5}, r"out_size"),
        ({"scale": [[1.0], [2.0]]}, r"scale must have 1 dimension, not shape \(2, 1\)"),
        ({"index1": [10**19, 0]}, r"index1"),
        ({"index1": ["a"]}, r"index1"),
        ({"index1": [0, 0], "index2": torch.zeros(2, dtype=torch.long, device="meta")}, r"index2 is on meta"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_bad_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(REFUSED, match=rf"\[lacewing\.{INFO}\] {message}"):
        SparseProductInfo(**fields)


@pytest.mark.parametrize("builder", [sparse_product_info, sparse_product_infos])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, -1], [0, 0], [0, 0]), r"index1\[1\] = -1 is negative"),
        (([0, 1], [0, 0], [0, -3]), r"index\[1\] = -3 is negative"),
        (([0, 1], [0], [0, 0]), r"index2 has 1 entries but another argument has 2"),
        (([0, 1], [0, 0], [0, 0], [1.0]), r"index1 has 2 entries but another argument has 1"),
        (([0, 1], [0, 0], [0, 5], None, 3), r"index\[1\] = 5 is out of range: out_size is 3"),
        ((None, None, None, [1.0, 2.0], 1), r"index is absent, which means 0 to 1, but out_size is 1"),
        (([0, 1], [0, 0], [0, 1], None, -4), r"out_size must lie in \[0, \d+\], not -4"),
        (([0, 1], [0, 0], [0, 1], None, 10**18), r"out_size must lie in \[0, \d+\], not 1000000000000000000"),
        (([0, 1], [0, 0], [0, 1], None, 2**46), r".*memory"),
        (([0.0, 1.0], [0, 0], [0, 0]), r"index1 must have dtype int32 or int64"),
        (([[0], [1]], [0, 0], [0, 0]), r"index1 must have 1 dimension, not shape \(2, 1\)"),
        (([0, 1], [0, 0], [0, 0], [[1.0], [2.0]]), r"scale must have 1 dimension, not shape \(2, 1\)"),
    ],
    ids=lambda v: "" if isinstance(v, str) else None,
)
def test_bad_arguments_of_the_builders(builder, arguments: tuple, message: str) -> None:
    with pytest.raises(REFUSED, match=rf"\[lacewing\.{builder.__name__}\] {message}"):
        builder(*arguments)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((2, 1, 3), r"index1\[2\] = 2 .* in1_size is 1"), ((2, 3, 0), r"index2\[0\] = 1 .* in2_size is 0")],
)
def test_input_sizes_that_are_too_small(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(REFUSED, match=rf"\[lacewing\.sparse_product_infos\] {message}"):
        sparse_product_infos([0, 0, 2], [1, 0, 0], [0, 1, 1], None, *sizes)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (0, 2), (-1, 2), (3, -1)], ids=str)
def test_derive_backward_for_inputs_that_are_too_small(sizes: tuple[int, int]) -> None:
    """In a process of its own: what is not refused can write beyond the plan."""
    code = f"""
import lacewing
try:
    lacewing.derive_backward(lacewing.sparse_product_info([0, 2], [1, 0], [0, 1]), *{sizes})
except (RuntimeError, ValueError) as error:
    print(error)
"""

    assert re.match(r"\[lacewing\.\w+\] (index|in)[12]", run_python(code))


def test_gradient_of_scale_checks_the_shape_of_grad() -> None:
    info = sparse_scale_infos([0, 1], [1, 0], None, 2, 2)[0]
    plan = arguments(info._plan)

    with pytest.raises(REFUSED, match=r"\[lacewing\.\w+\] grad must have"):
        torch.ops.lacewing.product_scale_grad(7, torch.ones(3, 2, 4), None, torch.ones(1, 1, 1), *plan, False)


@pytest.mark.parametrize("wanted", [(1,), (2,), (3,), (-1,), (0, 1)])
def test_gradients_are_those_of_arguments_that_are_given(wanted: tuple[int, ...]) -> None:
    info = sparse_scale_infos([0, 1], [1, 0], None, 2, 2)[0]
    x = torch.ones(3, 2, 4)

    with pytest.raises(
        REFUSED, match=r"\[lacewing\.sparse_product_backward\] wanted\[\.\.\.\] = -?\d names no argument"
    ):
        torch.ops.lacewing.sparse_product_backward(7, x, None, None, x, *arguments(info._plan), False, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0, 0], r"input must have shape \(\.\.\., M, C\), not \(3,\)"),
        (lambda x: x.long(), r"input must have dtype float16"),
        (lambda x: x[:, :3], r"index\[1\] = 4 is out of range for input of shape \(2, 3, 3\): dim 1 has 3 entries"),
        (lambda x: x.to("meta"), r".* is on \w+(:\d)? but"),
    ],
    ids=["rank", "dtype", "rows", "device"],
)
def test_bad_input_of_sparse_scale(change, message: str, device: str) -> None:
    x = random_values([2, 5, 3], torch.float32, 1, device)
    info = sparse_scale_infos([0, 1], [0, 4], [1.0, 2.0], 2, 5)[0].to(device)

    with pytest.raises(REFUSED, match=r"\[lacewing\.sparse_scale\] " + message):
        sparse_scale(change(x), info)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(3), r"scale must have shape \(2,\)"),
        (torch.ones(2, dtype=torch.complex64), r"scale is complex but the input is real"),
    ],
    ids=["shape", "complex"],
)
def test_bad_scale_of_sparse_scale(scale: torch.Tensor, message: str, device: str) -> None:
    x = random_values([2, 5, 3], torch.float32, 1, device)
    info = sparse_scale_infos([0, 1], [0, 4], None, 2, 5)[0].to(device)

    with pytest.raises(REFUSED, match=r"\[lacewing\.sparse_scale\] " + message):
        sparse_scale(x, info.with_scale(scale.to(device)))


@pytest.mark.parametrize("info", [None, SparseProductInfo(index1=[0])], ids=["none", "product_info"])
def test_info_of_another_type_in_sparse_scale(info: object) -> None:
    with pytest.raises(
        TypeError,
        match=r"\[lacewing\.sparse_scale\] info_fwd must be a SparseScaleInfo, or SparseScaleInfos alone, not \w+",
    ):
        sparse_scale(torch.ones(2, 3), info)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"index": [0, -1]}, r"index\[1\] = -1 is negative"),
        ({"index": [0, 1], "seg_out": [0, 2, 1]}, r"seg_out must not decrease"),
        ({"index": [0, 1], "seg_out": [0, 3]}, r"seg_out\[1\] = 3 is out of range"),
        ({"scale": [1.0], "index": [0, 1]}, r"index has 2 entries"),
        ({"index": [0, 1], "out_size": 1}, r"out_size is 1 but there are 2 segments"),
    ],
    ids=["negative", "decreasing", "beyond", "length", "out_size"],
)
def test_bad_fields_of_scale_infos(fields: dict[str, object], message: str) -> None:
    with pytest.raises(REFUSED, match=r"\[lacewing\.SparseScaleInfo\] " + message):
        SparseScaleInfo(**fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 5], [0, 1], None, 3, 2), r"index_out\[1\] = 5 is out of range: out_size is 3"),
        (([0, 1], [0, 9], None, 3, 2), r"index_in\[1\] = 9 is out of range: in_size is 2"),
        (([0, 1], [0]), r"index_out has 2 entries but another argument has 1"),
        (([0, 1], [0, 1], None, 3, -2), r"in_size must lie in \[0, \d+\], not -2"),
    ],
    ids=["out", "in", "length", "negative"],
)
def test_bad_arguments_of_the_scale_builder(arguments: tuple, message: str) -> None:
    with pytest.raises(REFUSED, match=r"\[lacewing\.sparse_scale_infos\] " + message):
        sparse_scale_infos(*arguments)
