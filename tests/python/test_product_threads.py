"""The same bits for every number of threads and every run, and calls from several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import lacewing
from lacewing import SparseProductInfo, sparse_product_infos
from products_support import OPS, ROLES, Op, derivatives, make_case, role_id

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs with so many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def workload(
    op: Op, roles: tuple[bool, ...], device: str, entries: int, rows: int, dtype: torch.dtype = torch.float32
) -> Callable[[], dict[str, Tensor]]:
    """Value, gradients and Hessian products of a product that is large enough for several threads."""
    case = make_case(op, ("index_out",), roles, dtype, device, 37, 35, 9, 3, entries, rows)
    return lambda: derivatives(case.run, case.x, case.y, case.scale, order=2)


@each_op
@pytest.mark.parametrize("roles", ROLES, ids=role_id)
@pytest.mark.parametrize(("entries", "rows"), [(40, 2), (40, 40)], ids=["few_rows", "many_rows"])
def test_same_bits_with_one_two_and_four_threads(
    op: Op, roles: tuple[bool, ...], entries: int, rows: int, device: str
) -> None:
    run = workload(op, roles, device, entries, rows)
    with threads(1):
        want = run()

    for count in (2, 4):
        with threads(count):
            assert_same_bits(run(), want)


@each_op
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64], ids=lambda d: str(d)[6:])
def test_same_bits_in_other_dtypes(op: Op, dtype: torch.dtype, device: str) -> None:
    run = workload(op, (False, False, True), device, 40, 2, dtype)
    with threads(1):
        want = run()

    with threads(4):
        assert_same_bits(run(), want)


@each_op
def test_same_bits_in_every_run(op: Op, device: str) -> None:
    run = workload(op, (False, False, True), device, 40, 2)
    want = run()

    for _ in range(5):
        assert_same_bits(run(), want)


def test_building_infos_does_not_depend_on_the_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    indices = [torch.randint(0, 50, (200_000,), generator=generator) for _ in range(3)]
    with threads(1):
        want = sparse_product_infos(*indices)

    for count in (2, 4):
        with threads(count):
            for one, other in zip(sparse_product_infos(*indices), want, strict=True):
                assert torch.equal(one.gather_index, other.gather_index)
                assert torch.equal(one.seg_out, other.seg_out)


@each_op
def test_concurrent_calls(op: Op, device: str) -> None:
    runs = [workload(op, roles, device, 20, 5) for roles in ROLES]
    want = [run() for run in runs]

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(runs[i % len(runs)]) for i in range(24)]

        for i, future in enumerate(futures):
            assert_same_bits(future.result(), want[i % len(runs)])


def test_concurrent_first_gradients_share_one_info(device: str) -> None:
    """Several threads derive the backward plans of one info at the same time."""
    info = SparseProductInfo(index1=[0, 1, 1], index2=[1, 0, 1], seg_out=[0, 2, 3]).to(device)

    def gradient() -> Tensor:
        x = torch.ones(3, 2, 4, device=device, requires_grad=True)
        lacewing.sparse_mul(x, 2 * torch.ones(3, 2, 4, device=device), info).sum().backward()
        return x.grad

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(gradient) for _ in range(16)]]

    assert all(torch.equal(result, results[0]) for result in results)
    assert results[0][0, :, 0].tolist() == [2.0, 4.0]
