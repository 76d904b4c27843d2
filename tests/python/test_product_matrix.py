"""Every product with every choice of absent fields, shared operands and dtype, against an oracle in plain torch."""

from __future__ import annotations

import zlib

import pytest
import torch

import lacewing
from products_support import (
    ALL_DTYPES,
    OPS,
    ROLES,
    Op,
    absent_id,
    absent_subsets,
    assert_close,
    assert_derivatives_close,
    derivatives,
    make_case,
    oracle_derivatives,
    random_values,
    role_id,
)

COVERING = [
    (),
    ("scale",),
    ("index1", "index_out"),
    ("index2", "gather_index"),
    ("seg_out",),
    ("gather_index", "index_out"),
]

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
each_absent = pytest.mark.parametrize("absent", absent_subsets(), ids=absent_id)
each_roles = pytest.mark.parametrize("roles", ROLES, ids=role_id)


def seed_of(*parts: object) -> int:
    """A seed that differs from case to case and not from run to run."""
    return zlib.crc32(repr(parts).encode()) % 10_000


@each_op
@each_absent
@each_roles
def test_value_gradients_and_hessian_products(
    op: Op, absent: tuple[str, ...], roles: tuple[bool, ...], device: str
) -> None:
    case = make_case(op, absent, roles, device=device, seed=seed_of(op.name, absent, roles))
    want = oracle_derivatives(case, order=2)

    got = derivatives(case.run, case.x, case.y, case.scale, order=2)

    assert_derivatives_close(got, want, torch.float64)


@each_op
@each_absent
@each_roles
def test_reference_backend(op: Op, absent: tuple[str, ...], roles: tuple[bool, ...], device: str) -> None:
    case = make_case(op, absent, roles, device=device, seed=seed_of(absent, roles, op.name))
    with lacewing.backend("reference"):
        want = derivatives(case.run, case.x, case.y, case.scale, order=2)

    got = derivatives(case.run, case.x, case.y, case.scale, order=2)

    assert_derivatives_close(got, {name: t.cpu() for name, t in want.items()}, torch.float64)


@each_op
@each_roles
@pytest.mark.parametrize("absent", COVERING, ids=absent_id)
@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d != torch.float64], ids=lambda d: str(d)[6:])
def test_dtypes(op: Op, absent: tuple[str, ...], roles: tuple[bool, ...], dtype: torch.dtype, device: str) -> None:
    case = make_case(op, absent, roles, dtype, device, seed=seed_of(op.name, absent, roles, dtype))
    want = oracle_derivatives(case, order=2)

    got = derivatives(case.run, case.x, case.y, case.scale, order=2)

    assert_derivatives_close(got, want, dtype)
    assert {tensor.dtype for tensor in got.values()} == {dtype}


@each_op
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_half_types_round_once(op: Op, dtype: torch.dtype, device: str) -> None:
    case = make_case(op, ("gather_index",), dtype=dtype, device=device, entries=200, rows=3, a=40, b=5)
    want = oracle_derivatives(case, order=1)

    got = derivatives(case.run, case.x, case.y, case.scale, order=1)

    for name, tensor in want.items():
        # Half a unit in the last place of the result, and the rounding of float32 sums.
        limit = torch.finfo(dtype).eps * 0.51 * tensor.abs() + 2e-5 * tensor.abs().max()
        assert bool(((got[name].cpu().double() - tensor).abs() <= limit).all()), name


@each_op
@pytest.mark.parametrize(
    ("dtype1", "dtype2"),
    [
        (torch.float32, torch.float64),
        (torch.float64, torch.float16),
        (torch.float16, torch.bfloat16),
        (torch.complex64, torch.float64),
        (torch.float32, torch.complex64),
    ],
)
def test_mixed_dtypes_promote_and_gradients_keep_their_operands(
    op: Op, dtype1: torch.dtype, dtype2: torch.dtype, device: str
) -> None:
    case = make_case(op, device=device)
    case.x = random_values(case.x.shape, dtype1, 5, device)
    case.y = random_values(case.y.shape, dtype2, 6, device)
    want = oracle_derivatives(case, order=1)

    got = derivatives(case.run, case.x, case.y, case.scale, order=1)

    assert got["value"].dtype == torch.result_type(case.x, case.y)
    assert got["grad x"].dtype == dtype1
    assert got["grad y"].dtype == dtype2
    assert got["grad scale"].dtype == torch.float64
    for name, tensor in want.items():
        assert_close(got[name], tensor, 2e-2 if torch.bfloat16 in (dtype1, dtype2) else 2e-3, name)


@each_op
@each_roles
def test_third_derivatives(op: Op, roles: tuple[bool, ...], device: str) -> None:
    case = make_case(op, (), roles, device=device, seed=3)

    def third(function, x, y, scale):
        inputs = [t.detach().clone().requires_grad_() for t in (x, y, scale)]
        level = function(*inputs).square().sum()
        for order in range(3):
            gradients = torch.autograd.grad(level, inputs, create_graph=True)
            level = sum((g * random_values(g.shape, g.dtype, order, g.device)).sum() for g in gradients)
        return level

    want = third(case.oracle, case.x.cpu(), case.y.cpu(), case.scale.cpu())

    got = third(case.run, case.x, case.y, case.scale)

    assert_close(got, want, 1e-10)
