"""Freed memory of large results is kept for the next ones, up to a limit."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import lacewing
from products_support import run_python

ROWS = 300_000  # of four floats: 4.6 MiB


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    before = lacewing.get_kept_memory_limit()
    lacewing.set_kept_memory_limit(0)
    lacewing.set_kept_memory_limit(64 << 20)
    yield
    lacewing.set_kept_memory_limit(0)
    lacewing.set_kept_memory_limit(before)


def gathered(rows: int = ROWS) -> torch.Tensor:
    return lacewing.ops.gather_rows(torch.ones(1, 4), torch.zeros(rows, dtype=torch.int64))


def test_a_freed_result_is_the_memory_of_the_next() -> None:
    first = gathered()
    where = first.data_ptr()
    assert lacewing.kept_memory() == 0
    del first
    assert lacewing.kept_memory() == ROWS * 16

    second = gathered()

    assert second.data_ptr() == where
    assert lacewing.kept_memory() == 0
    assert torch.equal(second, torch.ones(ROWS, 4))


def test_memory_in_use_is_handed_to_nobody_else() -> None:
    held = [gathered() for _ in range(3)]
    view = held[0][5:]
    del held[0]

    others = [gathered().fill_(7.0) for _ in range(3)]

    assert torch.equal(view, torch.ones(ROWS - 5, 4))
    assert len({t.data_ptr() for t in held + others}) == 5


def test_a_block_that_is_much_too_large_is_not_taken() -> None:
    gathered()
    assert lacewing.kept_memory() == ROWS * 16

    half = gathered(ROWS // 2)

    assert lacewing.kept_memory() == ROWS * 16
    assert half.untyped_storage().nbytes() == ROWS * 8


def test_the_limit_holds_and_the_oldest_go_first() -> None:
    lacewing.set_kept_memory_limit(3 * ROWS * 16)
    results = [gathered() for _ in range(5)]
    addresses = [t.data_ptr() for t in results]
    while results:
        results.pop(0)

    assert lacewing.kept_memory() == 3 * ROWS * 16
    assert {gathered().data_ptr()} <= set(addresses[2:])


def test_without_a_limit_nothing_is_kept() -> None:
    gathered()
    lacewing.set_kept_memory_limit(0)

    assert lacewing.kept_memory() == 0
    gathered()
    assert lacewing.kept_memory() == 0


def test_results_resize_copy_and_share_as_any_tensor() -> None:
    x = gathered()
    assert torch.equal(copy.deepcopy(x), x)
    assert torch.equal(torch._lazy_clone(x), x)
    x.resize_(2 * ROWS, 4)
    assert torch.equal(x[:ROWS], torch.ones(ROWS, 4))
    assert torch.equal(gathered().share_memory_(), torch.ones(ROWS, 4))


def test_the_profiler_counts_results_in_kept_memory() -> None:
    gathered()
    index = torch.zeros(ROWS, dtype=torch.int64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = lacewing.ops.gather_rows(torch.ones(1, 4), index)

    assert kept.nbytes in [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]


def test_uninitialised_memory_is_filled_where_torch_is_told_to() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        gathered()
        assert lacewing.kept_memory() == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_threads_share_it() -> None:
    wrong = []

    def work(value: float) -> None:
        for _ in range(20):
            x = gathered().mul_(value)
            if not torch.equal(x, torch.full((ROWS, 4), value)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(v),)) for v in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert lacewing.kept_memory() <= 64 << 20


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.set_kept_memory_limit\] bytes must not be negative, not -1"):
        lacewing.set_kept_memory_limit(-1)


def test_the_environment_sets_the_limit_of_a_process() -> None:
    code = "import lacewing; print(lacewing.get_kept_memory_limit())"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert run_python(code) == str(min(memory // 32, 1 << 30))
    assert run_python(code, LACEWING_KEPT_MEMORY="4096") == "4096"


def test_a_wrong_environment_is_named() -> None:
    code = "import lacewing\ntry:\n    lacewing.get_kept_memory_limit()\nexcept RuntimeError as e:\n    print(e)"
    assert "LACEWING_KEPT_MEMORY must be a number of bytes, not 1GB" in run_python(code, LACEWING_KEPT_MEMORY="1GB")


ENTRIES = (32 << 20) // 4  # floats of which torch would allocate fresh memory in every call


def many(values: torch.Tensor) -> lacewing.SparseTensor:
    return lacewing.sparse_coo_tensor(torch.arange(ENTRIES).unsqueeze(0), values, (ENTRIES,))


@pytest.mark.parametrize("op", [torch.sin, lambda t: t * 2.0, lambda t: torch.pow(t, 2), torch.relu, lambda t: t > 0.5])
def test_large_pointwise_results_are_those_of_torch(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = torch.rand(ENTRIES)

    result = op(many(values))

    expected = op(values)
    assert result.values().dtype == expected.dtype
    assert torch.equal(result.values(), expected)


def test_large_pointwise_results_lie_in_kept_memory() -> None:
    tensor = many(torch.ones(ENTRIES, dtype=torch.int32))
    assert torch.sin(tensor).values().dtype == torch.float32
    assert lacewing.kept_memory() == 4 * ENTRIES


def test_large_pointwise_results_keep_their_gradients() -> None:
    values = torch.rand(ENTRIES, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.sin(many(values)).sum(), values)
    assert torch.equal(grad, torch.cos(values.detach()))
    with torch.no_grad():
        assert not torch.sin(many(values)).requires_grad


def test_large_pointwise_results_carry_tangents() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.rand(ENTRIES), torch.ones(ENTRIES))
        tangent = torch.autograd.forward_ad.unpack_dual(torch.sin(many(dual)).values()).tangent
        assert torch.equal(tangent, torch.cos(dual))
