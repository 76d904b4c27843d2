"""One compiled graph serves plans of one form: torch compiles a function again once, for numbers of terms that vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import lacewing
from lacewing import sparse_product_infos, sparse_scale, sparse_scale_infos
from lacewing.conv import ConvFinish, ConvolutionPlan, max_pool, sparse_conv, sparse_conv_unit, sum_pool
from products_support import OPS, Op, random_values

TERMS = range(100, 160, 5)
ROWS = (4, 3, 5)
"""Of the inputs and of the output: all of them are named by so many terms."""


def draw(terms: int, rows: Sequence[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(terms)
    return [torch.randint(n, (terms,), generator=generator) for n in rows]


def assert_two_graphs(function: Callable[..., Tensor], calls: Sequence[Sequence[object]]) -> None:
    """Compiles the function, compares values and gradients of all calls, and counts the graphs."""
    assert len(calls) == 12  # more than torch compiles of one function
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)

    for arguments in calls:
        leaves = [t for t in arguments if isinstance(t, Tensor) and t.requires_grad]
        got, want = compiled(*arguments), function(*arguments)
        torch.testing.assert_close(got, want)
        if leaves:
            found, expected = (torch.autograd.grad(z.square().sum(), leaves, allow_unused=True) for z in (got, want))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other)

    assert counter.frame_count <= 2


each_need = pytest.mark.parametrize("needs_grad", [False, True], ids=["value", "gradient"])


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
@pytest.mark.parametrize("given", [False, True], ids=["derived", "given"])
@each_need
def test_products(op: Op, given: bool, needs_grad: bool, device: str) -> None:
    sizes = {"a": 6, "b": 7}
    shapes = [[11, rows, *(sizes[c] for c in letters)] for rows, letters in zip(ROWS, (op.x, op.y), strict=False)]
    x, y = (random_values(shape, torch.float64, k, device).requires_grad_(needs_grad) for k, shape in enumerate(shapes))

    def call(terms: int) -> list[object]:
        scale = random_values([terms], torch.float64, terms).requires_grad_(needs_grad)
        infos = sparse_product_infos(*draw(terms, ROWS), scale.detach(), ROWS[2], *ROWS[:2])
        return [x, y, scale.to(device), *(info.to(device) for info in infos[: 3 if given else 1])]

    assert_two_graphs(
        lambda x, y, s, info, *backward: op.function(x, y, info.with_scale(s), *backward), [call(t) for t in TERMS]
    )


@pytest.mark.parametrize("given", [False, True], ids=["derived", "given"])
@each_need
def test_sparse_scale(given: bool, needs_grad: bool, device: str) -> None:
    x = random_values([11, ROWS[0], 6], torch.float64, 1, device).requires_grad_(needs_grad)

    def call(terms: int) -> list[object]:
        columns, rows = draw(terms, (ROWS[0], ROWS[2]))
        infos = sparse_scale_infos(rows, columns, random_values([terms], torch.float64, terms), ROWS[2], ROWS[0])
        return [x, *(info.to(device) for info in infos[: 2 if given else 1])]

    assert_two_graphs(sparse_scale, [call(t) for t in TERMS])


@each_need
def test_the_formula(needs_grad: bool, device: str) -> None:
    shapes = ([11, 4, 2], [11, 3, 6], [5, 2, 6, 7])
    operands = [random_values(s, torch.float64, k, device).requires_grad_(needs_grad) for k, s in enumerate(shapes)]

    def call(terms: int) -> list[object]:
        *index, out = draw(terms, (4, 3, 5, 8))
        scale = random_values([terms], torch.float64, terms)
        plan = lacewing.product_plan("u,v,uvw->w", index, out, (4, 3, 5), 8, scale)
        return [plan.to(device), *operands]

    assert_two_graphs(lambda plan, *operands: lacewing.product(plan, operands), [call(t) for t in TERMS])


def cloud(voxels: int) -> Tensor:
    """Distinct voxels, so many that no two clouds have as many pairs under a tap: a number that stays is a constant."""
    side = 20
    cells = torch.randperm(side**3, generator=torch.Generator().manual_seed(voxels))[:voxels]
    axes = [torch.zeros_like(cells), cells // side**2, cells // side % side, cells % side]
    return torch.stack(axes, 1).int()


CONVOLUTIONS = {
    "conv": lambda x, w, b, plan: sparse_conv(x, w, plan, b),
    "unit": lambda x, w, b, plan: sparse_conv_unit(x, w, plan, b, ConvFinish(relu=True)),
    "transposed": lambda x, w, b, plan: sparse_conv(sparse_conv(x, w, plan, b), w.mT, plan.transposed()),
    "sum_pool": lambda x, w, b, plan: sum_pool(x, plan),
    "max_pool": lambda x, w, b, plan: max_pool(x, plan),
}


@pytest.mark.parametrize("function", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
@pytest.mark.parametrize("targets", ["same", "strided"])
@each_need
def test_convolutions(function: Callable[..., Tensor], targets: str, needs_grad: bool, device: str) -> None:
    weight = random_values([27, 1, 4, 7], torch.float64, 1, device).requires_grad_(needs_grad)
    bias = random_values([7], torch.float64, 2, device).requires_grad_(needs_grad)

    def call(voxels: int) -> list[object]:
        plan = ConvolutionPlan.build(cloud(voxels).to(device), 3, 1 if targets == "same" else 2, targets=targets)
        x = random_values([voxels, 4], torch.float64, voxels, device).requires_grad_(needs_grad)
        return [x, weight, bias, plan]

    assert_two_graphs(function, [call(10 * t) for t in TERMS])
