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


def call(op: Op, case):
    """The raw op of a case as a function of its floating-point tensors."""
    fields = {**case.fields.index_fields(), "out_size": case.fields.out_size, "out_accumulated": case.accumulated}
    return lambda x, y, scale: op.raw(x, y, scale, **fields)


@each_op
@pytest.mark.parametrize("absent", SUBSETS, ids=absent_id)
def test_opcheck(op: Op, absent: tuple[str, ...], device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    case = make_case(op, absent, device=device)
    fields = {
        name: torch.tensor(value, device=device) if isinstance(value, list) else value
        for name, value in arguments(case).items()
    }

    torch.library.opcheck(
        getattr(torch.ops.lacewing, f"indexed_{op.name}_scale_gather").default, (case.x, case.y), fields
    )


def test_opcheck_of_segments(device: str) -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    x, scale = torch.randn(2, 4, 3, device=device), torch.randn(4, device=device)
    index, seg = torch.tensor([3, 0, 3, 1], device=device), torch.tensor([0, 1, 1, 4], device=device)

    torch.library.opcheck(torch.ops.lacewing.indexed_scale_segment.default, (x, scale, index, seg))
    torch.library.opcheck(torch.ops.lacewing.indexed_scale_segment.default, (x, None, None, None))
    out = torch.empty(2, 3, 3, device=device)
    torch.library.opcheck(torch.ops.lacewing.indexed_scale_segment_out.default, (x, scale, index, seg, None, None, out))


@each_op
@pytest.mark.parametrize("roles", ROLES, ids=role_id)
def test_compile(op: Op, roles: tuple[bool, ...], device: str) -> None:
    case = make_case(op, roles=roles, device=device)
    f = call(op, case)

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(case.x, case.y, case.scale), f(case.x, case.y, case.scale))


def test_compile_of_segments(device: str) -> None:
    x = torch.randn(2, 4, 3, device=device)
    index, seg = torch.tensor([3, 0, 3, 1], device=device), torch.tensor([0, 1, 1, 4], device=device)

    def f(x, out):
        lacewing.indexed_scale_segment(2 * x, None, index, seg, out=out)
        return out + 1

    got, want = torch.empty(2, 3, 3, device=device), torch.empty(2, 3, 3, device=device)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(x, got), f(x, want))
    assert torch.equal(got, want)


@each_op
def test_vmap(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    f = call(op, case)
    x = torch.stack([case.x, 2 * case.x, -case.x])

    got = torch.func.vmap(f, (0, None, None))(x, case.y, case.scale)

    assert_close(got, torch.stack([f(each, case.y, case.scale) for each in x]).cpu(), 1e-12)


@each_op
def test_autocast_is_that_of_the_product(op: Op, device: str) -> None:
    case = make_case(op, dtype=torch.float32, device=device)

    with torch.autocast(device, torch.bfloat16):
        z = op.raw(case.x, case.y, **arguments(case))
        want = op.function(case.x, case.y, case.info)

    assert z.dtype == want.dtype
    assert torch.equal(z, want)


@each_op
def test_tangents_are_refused_and_no_grad_is_respected(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    f = call(op, case)

    with pytest.raises(ValueError, match="input1 requires grad"):
        torch.func.jvp(lambda x: f(x, case.y, case.scale), (case.x,), (case.x,))
    with torch.no_grad():
        z = f(case.x.requires_grad_(), case.y, case.scale)
    assert not z.requires_grad


@each_op
def test_a_batch_of_indices_is_refused(op: Op, device: str) -> None:
    case = make_case(op, device=device)

    with pytest.raises(
        RuntimeError, match=r"index1 has no values here: .* outside of what is traced, mapped or on meta"
    ):
        torch.func.vmap(lambda i: op.raw(case.x, case.y, index1=i, index2=[0, 1]))(torch.zeros(3, 2).long())


@each_op
def test_alias_class_is_the_function(op: Op) -> None:
    name = {"vecsca": "VecSca", "scavec": "ScaVec", "vecmat": "VecMat", "mat_t_vec": "MatTVec"}.get(
        op.name, op.name.title()
    )

    assert getattr(lacewing, f"Sparse{name}").apply is op.function
