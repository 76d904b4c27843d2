"""What the formula promises of its sums: bits that depend on a row alone, and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lacewing


def _graph(nodes: int, edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(nodes, (edges,), generator=generator), torch.randint(nodes, (edges,), generator=generator)


def _message_plan(paths: int, terms: int) -> lacewing.ProductPlan:
    generator = torch.Generator().manual_seed(2)
    draw = lambda rows: torch.randint(rows, (terms,), generator=generator)
    return lacewing.product_plan(
        "u,,u->u", index=(draw(9), draw(16), draw(paths)), out=draw(20), rows=(9, 16, paths), out_rows=20
    )


def _message(
    dtype: torch.dtype, edges: int, nodes: int = 12
) -> tuple[lacewing.ProductPlan, lacewing.Edges, list[Tensor]]:
    src, dst = _graph(nodes, edges)
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)
    return (
        _message_plan(5, 60),
        lacewing.Edges(maps=(src, None, None), out=dst, batch=(nodes, None, None), out_batch=nodes),
        [draw(nodes, 9, 33), draw(edges, 16), draw(edges, 5, 33)],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bits_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    plan, edges, operands = _message(dtype, 300)
    inputs = [x.requires_grad_() for x in operands]
    threads = torch.get_num_threads()
    runs = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            z = lacewing.product(plan, inputs, edges)
            runs.append([z, *torch.autograd.grad(z.float().square().sum(), inputs)])
    finally:
        torch.set_num_threads(threads)

    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["a,ab->b", "a,b->ab", "ab,a->b", "a,a->", "u,,u->u"])
def test_bits_do_not_depend_on_the_batch(form: str, dtype: torch.dtype, device: str) -> None:
    """The same rows in batches of 2 and of 64."""
    letters = form.split("->")[0].split(",")
    generator = torch.Generator().manual_seed(4)
    draw = lambda rows: torch.randint(rows, (50,), generator=generator)
    index = [draw(4) for _ in letters]
    plan = lacewing.product_plan(form, index=index, out=draw(5), rows=[4] * len(letters), out_rows=5).to(device)
    operands = [torch.randn(64, 4, *(19 for _ in x), generator=generator).to(device, dtype) for x in letters]

    whole = lacewing.product(plan, operands)

    assert torch.equal(whole[:2], lacewing.product(plan, [x[:2] for x in operands]))
    assert torch.equal(whole[17:18], lacewing.product(plan, [x[17:18] for x in operands]))


def test_a_row_does_not_depend_on_its_neighbours(device: str) -> None:
    """One destination alone has the bits that it has among others."""
    plan, edges, operands = _message(torch.float32, 400)
    src, dst = _graph(12, 400)
    chosen = (dst == 7).nonzero()[:, 0]
    alone = lacewing.Edges(maps=(src[chosen], None, None), out=[0] * len(chosen), batch=(12, None, None), out_batch=1)
    moved = [x.to(device) for x in operands]
    of_edges = [moved[0], moved[1][chosen.to(device)], moved[2][chosen.to(device)]]

    whole = lacewing.product(plan.to(device), moved, edges.to(device))
    one = lacewing.product(plan.to(device), of_edges, alone.to(device))

    assert torch.equal(whole[7], one[0])


def _peak(f: object) -> int:
    """The largest number of bytes that live at a time while f runs, beside what lived before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        f()  # type: ignore[operator]
    now = peak = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def test_an_edge_sum_has_no_tensor_of_edges() -> None:
    plan, edges, operands = _message(torch.float32, 3000)
    inputs = [x.requires_grad_() for x in operands]
    of_edges = 3000 * 20 * 33 * 4
    results = 12 * 20 * 33 * 4
    gradients = sum(x.numel() * 4 for x in inputs)

    forward = _peak(lambda: lacewing.product(plan, [x.detach() for x in inputs], edges))
    z = lacewing.product(plan, inputs, edges)
    upstream = torch.ones_like(z)
    backward = _peak(lambda: torch.autograd.grad(z, inputs, upstream, retain_graph=True))

    assert forward <= results + of_edges // 20
    assert backward <= gradients + of_edges // 20
