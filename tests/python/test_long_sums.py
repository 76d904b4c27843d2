"""Long sums keep their digits: ten million float32 numbers in one row, on every backend that sums them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lacewing

COUNT = 10_000_000
WITHIN = 1e-6


@pytest.fixture(scope="module")
def numbers() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(COUNT, generator=generator), torch.rand(COUNT, generator=generator)


def assert_near(got: Tensor, want: Tensor) -> None:
    assert got.dtype == torch.float32
    assert ((got.cpu().double() - want).abs() / want.abs()).max() <= WITHIN


def row_of(values: Tensor, device: str) -> Tensor:
    """A matrix of one row."""
    indices = torch.stack([torch.zeros(len(values), dtype=torch.int64), torch.arange(len(values))])
    return lacewing.sparse_coo_tensor(indices, values, (1, len(values))).to(device)


def test_reductions(numbers: tuple[Tensor, Tensor], device: str) -> None:
    values = numbers[0]
    row = row_of(values, device)

    assert_near(row.square().sum(), values.double().square().sum())
    assert_near(row.sum(1).to_dense(), values.double().sum().reshape(1))
    assert_near(row.logsumexp(1).to_dense(), values.double().logsumexp(0).reshape(1))


@pytest.mark.parametrize("width", [0, 1, 3, 8, 70])
def test_a_long_row_times_dense(numbers: tuple[Tensor, Tensor], width: int, device: str) -> None:
    count = COUNT // max(width, 1)
    values, dense = numbers[0][:count], numbers[1][: count * max(width, 1)].reshape(count, -1)
    operand = dense[:, 0] if width == 0 else dense

    got = row_of(values, device) @ operand.to(device)

    assert_near(got, values.double()[None] @ operand.double())


def test_a_row_of_a_sparse_product(numbers: tuple[Tensor, Tensor], device: str) -> None:
    values = numbers[0]
    row = row_of(values, device)

    assert_near((row @ row.T).to_dense(), values.double().square().sum().reshape(1, 1))


def test_entries_that_repeat(numbers: tuple[Tensor, Tensor], device: str) -> None:
    values = numbers[0]
    repeated = lacewing.sparse_coo_tensor(torch.zeros(1, COUNT, dtype=torch.int64), values, (1,)).to(device)

    assert_near(repeated.coalesce().values(), values.double().sum().reshape(1))


@pytest.mark.parametrize("terms", [1, 1000])
def test_sampled_dot_products(numbers: tuple[Tensor, Tensor], terms: int, device: str) -> None:
    """The gradient of an entry of a matrix: the dot product of a row of the gradient and a row of the operand."""
    shape = (terms, COUNT // terms)
    x, upstream = (n.reshape(shape) for n in numbers)
    values = torch.ones(1, device=device, requires_grad=True)
    matrix = lacewing.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.int64, device=device), values, (1, 1))

    (matrix @ x.reshape(1, -1).to(device)).backward(upstream.reshape(1, -1).to(device))

    assert_near(values.grad, (x.double() * upstream.double()).sum().reshape(1))


CHANNELS = {
    "mul": ((1,), (1,)),
    "outer": ((2,), (3,)),
    "inner": ((3,), (3,)),
    "vecmat": ((2,), (2, 3)),
    "vecsca": ((3,), ()),
    "scavec": ((), (3,)),
    "mat_t_vec": ((2, 3), (2,)),
}
SUMS = {
    "mul": "ta,ta->a",
    "outer": "ta,tb->ab",
    "inner": "ta,ta->",
    "vecmat": "ta,tab->b",
    "vecsca": "ta,t->a",
    "scavec": "t,ta->a",
    "mat_t_vec": "tab,ta->b",
}


def operands_of(name: str, numbers: tuple[Tensor, Tensor], count: int) -> list[Tensor]:
    """`count` rows of each operand, drawn from the numbers."""
    return [
        n[: count * torch.Size(shape).numel()].reshape(count, *shape)
        for n, shape in zip(numbers, CHANNELS[name], strict=True)
    ]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", CHANNELS)
def test_a_long_segment_of_a_product(numbers: tuple[Tensor, Tensor], name: str, batch: int, device: str) -> None:
    count = COUNT // 8
    x, y = operands_of(name, numbers, count)
    every = torch.arange(count)
    info = lacewing.sparse_product_info(every, every, torch.zeros(count, dtype=torch.int64), out_size=1).to(device)
    product = getattr(lacewing, f"sparse_{name}")

    z = product(*(v.to(device).expand(batch, *v.shape) for v in (x, y)), info)

    want = torch.einsum(SUMS[name], x.double(), y.double())
    assert_near(z, want.expand(batch, 1, *want.shape))


@pytest.mark.parametrize("name", CHANNELS)
def test_a_product_that_sums_a_batch(numbers: tuple[Tensor, Tensor], name: str, device: str) -> None:
    """With the gradient of its scale, which sums the batch as well."""
    count = COUNT // 8
    x, y = operands_of(name, numbers, count)
    scale = torch.ones(1, device=device, requires_grad=True)
    info = lacewing.sparse_product_info([0], [0], [0], scale=scale, out_size=1).to(device)
    product = getattr(lacewing, f"sparse_{name}")

    z = product(x[:, None].to(device), y[:, None].to(device), info, out_accumulated=True)

    want = torch.einsum(SUMS[name], x.double(), y.double())
    assert_near(z, want[None])
    (gradient,) = torch.autograd.grad(z.sum(), scale)
    assert_near(gradient, want.sum().reshape(1))


@pytest.mark.parametrize("form", ["u,u,u->u", "a,a,->", "a,b,->ab"])
def test_long_sums_of_the_formula(numbers: tuple[Tensor, Tensor], form: str, device: str) -> None:
    count = COUNT // 8
    letters = form.split("->")[0].split(",")
    operands = [n[: count * 2 ** len(x)].reshape(count, *[2] * len(x)) for n, x in zip((*numbers, numbers[0]), letters)]
    every, none = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    equation = ",".join("t" + x for x in letters) + "->" + form.split("->")[1]
    want = torch.einsum(equation, *(v.double() for v in operands))

    terms = lacewing.product_plan(form, index=[every] * 3, out=none, rows=[count] * 3, out_rows=1).to(device)
    assert_near(lacewing.product(terms, [v.to(device)[None] for v in operands])[0, 0], want)

    one = lacewing.product_plan(form, index=[[0]] * 3, out=[0], rows=[1] * 3, out_rows=1).to(device)
    batches = [v.to(device)[:, None] for v in operands]
    into_one = lacewing.Edges(maps=(None, None, None), out=none, batch=(count,) * 3, out_batch=1)
    assert_near(lacewing.product(one, batches, into_one.to(device))[0, 0], want)


@pytest.mark.parametrize("op", ["matmul", "sum", "gram", "inner"])
def test_the_reference_backend(numbers: tuple[Tensor, Tensor], op: str) -> None:
    values, other = numbers
    with lacewing.backend("reference"):
        if op == "inner":
            info = lacewing.sparse_product_info([0], [0], [0], out_size=1)
            got = lacewing.sparse_inner(values[None, None], other[None, None], info)[0, 0]
            want = (values.double() * other.double()).sum()
        else:
            row = row_of(values, "cpu")
            got = {
                "matmul": lambda: row @ other,
                "sum": lambda: row.sum(1).to_dense(),
                "gram": lambda: (row @ row.T).to_dense()[0],
            }[op]()
            want = {
                "matmul": values.double() @ other.double(),
                "sum": values.double().sum(),
                "gram": values.double().square().sum(),
            }[op].reshape(1)
    assert_near(got, want)


def test_rows_below_a_block_have_the_bits_of_a_plain_loop() -> None:
    """512 terms of one channel after the other: what every kernel did before sums had blocks."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(1, 512, 5, generator=generator)
    y = torch.rand(1, 512, 5, generator=generator)
    every = torch.arange(512)
    info = lacewing.sparse_product_info(every, every, torch.zeros(512, dtype=torch.int64), out_size=1)

    with lacewing.backend("reference"):
        z = lacewing.sparse_mul(x, y, info)[0, 0]

    total = torch.zeros(5)
    for t in range(512):
        total = total + x[0, t] * y[0, t]
    assert torch.allclose(z, total, rtol=1e-6)


@pytest.mark.parametrize("width", [1, 8, 70])
def test_bits_of_a_long_row_do_not_depend_on_its_place(width: int, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    values, dense = torch.rand(5000, generator=generator), torch.rand(5000, width, generator=generator).to(device)
    alone = row_of(values, device) @ dense
    short = torch.randint(5000, (3, 40), generator=generator)
    rows = torch.cat([torch.arange(3).repeat_interleave(40), torch.full((5000,), 3)])
    columns = torch.cat([short.flatten(), torch.arange(5000)])
    others = torch.cat([torch.rand(120, generator=generator), values])
    among = lacewing.sparse_coo_tensor(torch.stack([rows, columns]), others, (5, 5000)).to(device)

    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal((among @ dense)[3], alone[0])
    finally:
        torch.set_num_threads(threads)
