"""The raw products: fields instead of infos, without gradients."""

from __future__ import annotations

import pytest
import torch

import lacewing
from products_support import OPS, ROLES, VALUE_TOLERANCE, Op, absent_id, assert_close, make_case, role_id, wide_dtype

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())

SUBSETS = [
    (),
    ("scale",),
    ("index1", "index2"),
    ("seg_out",),
    ("gather_index",),
    ("index_out",),
    ("scale", "index1", "index2", "seg_out", "gather_index", "index_out"),
]


def arguments(case) -> dict[str, object]:
    """The fields of a case as arguments of the raw op."""
    return {"scale": case.scale, **case.fields.index_fields(), "out_size": case.fields.out_size}


@each_op
@pytest.mark.parametrize("absent", SUBSETS, ids=absent_id)
@pytest.mark.parametrize("roles", ROLES, ids=role_id)
def test_value(op: Op, absent: tuple[str, ...], roles: tuple[bool, ...], device: str) -> None:
    case = make_case(op, absent, roles, device=device)
    cpu = [None if t is None else t.cpu() for t in (case.x, case.y, case.scale)]

    z = op.raw(case.x, case.y, **arguments(case), out_accumulated=case.accumulated)

    assert_close(z, case.oracle(*cpu), 1e-12)


@each_op
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_dtypes(op: Op, dtype: torch.dtype, device: str) -> None:
    case = make_case(op, dtype=dtype, device=device)
    want = case.oracle(*(t.cpu().to(wide_dtype(dtype)) for t in (case.x, case.y, case.scale)))

    z = op.raw(case.x, case.y, **arguments(case))

    assert z.dtype == dtype
    assert_close(z, want, VALUE_TOLERANCE[dtype])


@each_op
def test_positional_arguments_follow_the_info(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    f = case.fields

    z = op.raw(case.x, case.y, case.scale, f.index1, f.index2, f.seg_out, f.gather_index, f.index_out, f.out_size)

    assert torch.equal(z, op.function(case.x, case.y, case.info))


@each_op
@pytest.mark.parametrize("argument", ["input1", "input2", "scale"])
def test_tensors_that_require_grad_are_refused(op: Op, argument: str, device: str) -> None:
    case = make_case(op, device=device)
    tensors = {"input1": case.x, "input2": case.y, "scale": case.scale}
    tensors[argument].requires_grad_()

    with pytest.raises(
        ValueError, match=rf"\[lacewing\.indexed_{op.name}_scale_gather\] {argument} requires grad.*sparse_{op.name}"
    ):
        op.raw(**{**arguments(case), **tensors})


@each_op
def test_bad_fields_are_refused(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(RuntimeError, match=r"\[lacewing\.\w+\] seg_out must not decrease, but seg_out\[2\] = 1"):
        op.raw(case.x, case.y, index1=[0, 1], index2=[0, 1], seg_out=[0, 2, 1])


@each_op
def test_indices_beyond_the_operands_are_refused(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(RuntimeError, match=rf"\[lacewing\.\w*{op.name}\w*\] index1\[1\] = 99 is out of range"):
        op.raw(case.x, case.y, index1=[0, 99], index2=[0, 1])


@each_op
def test_alias_class_is_the_function(op: Op) -> None:
    name = {"vecsca": "VecSca", "scavec": "ScaVec", "vecmat": "VecMat", "mat_t_vec": "MatTVec"}.get(
        op.name, op.name.title()
    )

    assert getattr(lacewing, f"Sparse{name}").apply is op.function
