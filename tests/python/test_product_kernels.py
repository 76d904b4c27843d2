"""Sizes that cross vector blocks, register tiles, batches and parts, on every instruction set."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch

from products_support import (
    OPS,
    PACKAGE_PATH,
    ROLES,
    Op,
    assert_derivatives_close,
    derivatives,
    make_case,
    oracle_derivatives,
    role_id,
)

CHANNELS = [(1, 1), (3, 16), (16, 3), (17, 67), (64, 17), (67, 64), (130, 6), (7, 130)]
BATCHES = [1, 4, 5, 13, 40]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.bfloat16]
SOME_ROLES = [(False, False, False), (False, True, False), (True, False, True)]
ROLES_AND_DTYPES = [(r, torch.float32) for r in ROLES] + [(r, d) for r in SOME_ROLES for d in DTYPES[1:]]

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
each_roles = pytest.mark.parametrize("roles", ROLES, ids=role_id)
each_channels = pytest.mark.parametrize(
    ("channels", "batch"),
    [(c, b) for c, b in zip(CHANNELS, itertools.cycle(BATCHES), strict=False)] + [((66, 67), 11)],
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else f"N{v}",
)


@each_op
@each_channels
@pytest.mark.parametrize(
    ("roles", "dtype"), ROLES_AND_DTYPES, ids=lambda v: role_id(v) if isinstance(v, tuple) else str(v)[6:]
)
def test_sizes(
    op: Op, roles: tuple[bool, ...], channels: tuple[int, int], batch: int, dtype: torch.dtype, device: str
) -> None:
    a, b = channels
    case = make_case(op, ("index_out",), roles, dtype, device, batch, a, b, seed=a + b)
    want = oracle_derivatives(case, order=1)

    got = derivatives(case.run, case.x, case.y, case.scale, order=1)

    assert_derivatives_close(got, want, dtype)


@each_op
@each_roles
@pytest.mark.parametrize(("entries", "rows"), [(90, 2), (40, 50)], ids=["few_rows", "many_rows"])
@pytest.mark.parametrize("absent", [("seg_out",), ("gather_index", "index_out"), ("scale",)], ids="+".join)
def test_many_terms(
    op: Op, roles: tuple[bool, ...], entries: int, rows: int, absent: tuple[str, ...], device: str
) -> None:
    case = make_case(op, absent, roles, torch.float32, device, 33, 17, 10, 5, entries, rows)
    want = oracle_derivatives(case, order=2)

    got = derivatives(case.run, case.x, case.y, case.scale, order=2)

    assert_derivatives_close(got, want, torch.float32)


@each_op
@pytest.mark.parametrize("roles", [r for r in ROLES if r[2]], ids=role_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_accumulation_in_parts(op: Op, roles: tuple[bool, ...], dtype: torch.dtype, device: str) -> None:
    """Two rows of the output and a long batch: the sum over n is cut into parts."""
    case = make_case(op, ("gather_index", "index_out"), roles, dtype, device, 150, 20, 9, 2, 24, 2)
    case.fields.seg_out, case.fields.out_size = [0, 11, 24], 2
    case.__post_init__()
    want = oracle_derivatives(case, order=1)

    got = derivatives(case.run, case.x, case.y, case.scale, order=1)

    assert_derivatives_close(got, want, dtype)


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_lower_instruction_sets(isa: str) -> None:
    """The tests above once more in a process that is held to a lower instruction set."""
    if os.environ.get("LACEWING_CPU_ISA") or os.environ.get("LACEWING_TEST_DEVICE") == "cuda":
        pytest.skip("instruction sets concern the CPU, and one is chosen already or the run is for CUDA only")
    environment = {
        **os.environ,
        "LACEWING_CPU_ISA": isa,
        "LACEWING_TEST_DEVICE": "cpu",
        "PYTHONPATH": os.pathsep.join([PACKAGE_PATH, os.environ.get("PYTHONPATH", "")]),
    }

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not lower_instruction_sets"],
        env=environment,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
