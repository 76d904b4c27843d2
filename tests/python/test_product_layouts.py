"""Operands and gradients that are transposed, expanded, overlapping or sparse in memory."""

from __future__ import annotations

import pytest
import torch

from products_support import (
    GRADIENT_TOLERANCE,
    LAYOUTS,
    OPS,
    ROLES,
    Op,
    assert_close,
    assert_derivatives_close,
    derivatives,
    make_case,
    oracle_derivatives,
    role_id,
    wide_dtype,
)

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
each_roles = pytest.mark.parametrize("roles", ROLES, ids=role_id)
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


@each_op
@each_layout
@pytest.mark.parametrize("operands", ["x", "y", "xy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=["f32", "bf16", "c128"])
@pytest.mark.parametrize("shared", [False, True], ids=["batched", "shared"])
def test_operand_layouts(op: Op, layout, operands: str, dtype: torch.dtype, shared: bool, device: str) -> None:
    roles = (shared and operands == "x", shared and operands == "y", False)
    case = make_case(op, roles=roles, dtype=dtype, device=device, batch=7, a=19, b=6)
    for name in operands:
        setattr(case, name, layout(getattr(case, name)))
    want = oracle_derivatives(case, order=1)

    got = derivatives(case.run, case.x, case.y, case.scale, order=1)

    assert_derivatives_close(got, want, dtype)


@each_op
@each_layout
@each_roles
def test_upstream_layouts(op: Op, layout, roles: tuple[bool, ...], device: str) -> None:
    case = make_case(op, roles=roles, device=device, batch=7, a=9, b=6)
    want = oracle_derivatives(case, 2, layout)

    got = derivatives(case.run, case.x, case.y, case.scale, 2, layout)

    assert_derivatives_close(got, want, torch.float64)


@each_op
@each_roles
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=["f32", "f16", "c64"])
def test_sum_backward(op: Op, roles: tuple[bool, ...], dtype: torch.dtype, device: str) -> None:
    case = make_case(op, roles=roles, dtype=dtype, device=device, batch=6, a=18, b=7)
    inputs = [t.clone().requires_grad_() for t in (case.x, case.y, case.scale)]
    wide = [t.detach().cpu().to(wide_dtype(dtype)).requires_grad_() for t in inputs]
    case.oracle(*wide).sum().real.backward()

    case.run(*inputs).sum().real.backward()

    for got, want in zip(inputs, wide, strict=True):
        assert_close(got.grad, want.grad, GRADIENT_TOLERANCE[dtype])


@each_op
@pytest.mark.parametrize("which", ["x", "y", "scale", "all"])
def test_conjugated_views(op: Op, which: str, device: str) -> None:
    case = make_case(op, dtype=torch.complex128, device=device, batch=4, a=5, b=3)
    for name in ("x", "y", "scale") if which == "all" else (which,):
        setattr(case, name, getattr(case, name).conj())
    want = oracle_derivatives(case, 2, torch.conj)

    got = derivatives(case.run, case.x, case.y, case.scale, 2, torch.conj)

    assert_derivatives_close(got, want, torch.complex128)


@each_op
def test_conjugated_and_expanded_views(op: Op, device: str) -> None:
    case = make_case(op, dtype=torch.complex128, device=device, batch=4, a=5, b=3)
    case.x = LAYOUTS["last_dim_expanded"](case.x).conj()
    case.y = LAYOUTS["transposed"](case.y).conj()
    want = oracle_derivatives(case, order=2)

    got = derivatives(case.run, case.x, case.y, case.scale, order=2)

    assert_derivatives_close(got, want, torch.complex128)


@each_op
def test_negated_views(op: Op, device: str) -> None:
    case = make_case(op, dtype=torch.complex128, device=device)
    case.x, case.y, case.scale = (t.conj().imag for t in (case.x, case.y, case.scale))
    assert case.x.is_neg()
    want = oracle_derivatives(case, order=1)

    got = derivatives(case.run, case.x, case.y, case.scale, order=1)

    assert_derivatives_close(got, want, torch.float64)


@each_op
def test_strided_scale(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    case.scale = torch.stack([case.scale, case.scale + 1], dim=1)[:, 1]
    want = oracle_derivatives(case, order=2)

    got = derivatives(case.run, case.x, case.y, case.scale, order=2)

    assert_derivatives_close(got, want, torch.float64)
