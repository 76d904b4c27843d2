"""gather_rows and scatter_add_rows against torch, and as citizens of torch's transforms."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import lacewing

ops = lacewing.ops

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
DTYPES = [*FLOATS, torch.int32, torch.int64]
INDEX_DTYPES = [torch.int32, torch.int64]
MODES = ["deterministic", "distinct", "atomic"]
CHANNELS = [1, 3, 64]


def values(shape, dtype, device):
    """Small integers: exact in every dtype, so that sums do not depend on their order."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    real = torch.randint(-4, 5, shape, generator=generator)
    if dtype.is_complex:
        real = torch.complex(real.double(), torch.randint(-4, 5, shape, generator=generator).double())
    return real.to(dtype).to(device)


def indices(count, rows, dtype, device, distinct=False):
    generator = torch.Generator().manual_seed(count + rows)
    if distinct:
        return torch.randperm(rows, generator=generator)[:count].to(dtype).to(device)
    return torch.randint(0, rows, (count,), generator=generator).to(dtype).to(device)


def scattered(src, index, rows):
    """The sum by torch, in a type that holds it exactly."""
    wide = src.to(torch.complex128 if src.is_complex() else torch.float64)
    return torch.zeros(rows, src.shape[1], dtype=wide.dtype, device=src.device).index_add(0, index, wide).to(src.dtype)


@pytest.fixture(params=["automatic", "reference"])
def backend(request):
    with lacewing.backend(request.param):
        yield request.param


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_equals_index_select(dtype, index_dtype, channels, device, backend):
    src = values((70, channels), dtype, device)
    index = indices(300, 70, index_dtype, device)

    out = ops.gather_rows(src, index)

    assert torch.equal(out, src[index.long()])


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_scatter_add_equals_index_add(mode, dtype, index_dtype, channels, device, backend):
    count = 60 if mode == "distinct" else 300
    src = values((count, channels), dtype, device)
    index = indices(count, 70, index_dtype, device, distinct=mode == "distinct")

    out = ops.scatter_add_rows(src, index, 70, mode)

    assert torch.equal(out, scattered(src, index.long(), 70))


@pytest.mark.parametrize(("rows", "count", "channels"), [(5, 0, 3), (0, 0, 3), (5, 4, 0), (0, 0, 0)])
def test_empty(rows, count, channels, device, backend):
    index = torch.zeros(count, dtype=torch.int64, device=device)

    gathered = ops.gather_rows(torch.ones(rows, channels, device=device), index)
    summed = ops.scatter_add_rows(torch.ones(count, channels, device=device), index, rows)

    assert gathered.shape == (count, channels)
    assert torch.equal(summed, scattered(torch.ones(count, channels, device=device), index, rows))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t().contiguous().t(),
        lambda t: torch.cat([t, t], 1)[:, ::2],
        lambda t: t[:1].expand(t.shape),
        lambda t: t[:, :1].expand(t.shape),
    ],
    ids=["transposed", "column stride 2", "expanded rows", "expanded columns"],
)
def test_strided_sources(view, device, backend):
    src = view(values((40, 6), torch.float32, device))
    index = indices(40, 40, torch.int64, device)

    assert torch.equal(ops.gather_rows(src, index), src[index])
    assert torch.equal(ops.scatter_add_rows(src, index, 40), scattered(src, index, 40))


@pytest.mark.parametrize("column", [0, 1])
def test_interleaved_index_pairs(column, device, backend):
    src = values((40, 6), torch.float32, device)
    pairs = indices(100, 40, torch.int32, device).reshape(50, 2)

    out = ops.gather_rows(src, pairs[:, column])

    assert torch.equal(out, src[pairs[:, column].long()])


def test_conjugated_view(device):
    src = values((7, 3), torch.complex128, device)
    index = indices(9, 7, torch.int64, device)

    assert torch.equal(ops.gather_rows(src.conj(), index), src.conj()[index])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_sums_are_kept_in_float(dtype, device, backend):
    # Added one at a time in the narrow type, the sum would stop growing far below 4096.
    src = torch.ones(4096, 2, dtype=dtype, device=device)
    index = torch.zeros(4096, dtype=torch.int64, device=device)

    out = ops.scatter_add_rows(src, index, 1)

    assert torch.equal(out, torch.full((1, 2), 4096, dtype=dtype, device=device))


def test_deterministic_mode_gives_the_same_bits_for_every_thread_count():
    torch.manual_seed(0)
    src = torch.randn(20000, 17)
    index = torch.randint(0, 300, (20000,))
    threads = torch.get_num_threads()

    results = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(ops.scatter_add_rows(src, index, 300))
    finally:
        torch.set_num_threads(threads)

    assert all(torch.equal(results[0], other) for other in results[1:])


def test_atomic_mode_respects_use_deterministic_algorithms(device):
    src, index = torch.ones(3, 2, device=device), torch.tensor([0, 0, 1], device=device)

    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match='scatter_add_rows with mode "atomic"'):
            ops.scatter_add_rows(src, index, 2, "atomic")
    finally:
        torch.use_deterministic_algorithms(False)


# Gradients


def operands(device, dtype=torch.float64, distinct=False):
    torch.manual_seed(1)
    src = torch.randn(5, 3, dtype=dtype, device=device, requires_grad=True)
    index = torch.tensor([4, 0, 6, 1, 3] if distinct else [4, 0, 4, 4, 2], device=device)
    return src, index


def cases(device, dtype=torch.float64):
    src, index = operands(device, dtype)
    yield lambda x: ops.gather_rows(x, index), src
    for mode in MODES:
        src, index = operands(device, dtype, distinct=mode == "distinct")
        yield lambda x, index=index, mode=mode: ops.scatter_add_rows(x, index, 7, mode), src


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("case", range(4), ids=["gather", *MODES])
def test_gradients_of_first_and_second_order(case, dtype, device, backend):
    f, src = list(cases(device, dtype))[case]

    assert gradcheck(f, src, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    # The ops are linear: squaring makes the second derivative non-zero.
    assert gradgradcheck(lambda x: f(x) ** 2, src, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("case", range(4), ids=["gather", *MODES])
def test_third_derivative(case, device):
    f, src = list(cases(device))[case]

    total = (f(src) ** 3).sum()
    for _ in range(3):
        (derivative,) = torch.autograd.grad(total, src, create_graph=True)
        total = derivative.sum()

    # For f(x) = Ax and the sum of cubes this is 6 * sum over rows of (A 1)^3.
    assert torch.allclose(total, 6 * (f(torch.ones_like(src)) ** 3).sum())


def test_expanded_gradient(device):
    src, index = operands(device)

    ops.gather_rows(src, index).sum().backward()

    assert torch.equal(src.grad, torch.bincount(index, minlength=5)[:, None].expand(5, 3).double())


@pytest.mark.parametrize("case", range(4), ids=["gather", *MODES])
def test_functional_transforms(case, device):
    f, src = list(cases(device))[case]
    x = src.detach()

    def loss(x):
        return (f(x) ** 2).sum()

    reverse, forward = jacrev(f)(x), jacfwd(f)(x)
    _, tangent = jvp(f, (x,), (torch.ones_like(x),))

    assert torch.equal(reverse, forward)
    assert torch.equal(tangent, f(torch.ones_like(x)))
    assert torch.allclose(grad(loss)(x), torch.autograd.grad(loss(src), src)[0])
    assert hessian(loss)(x).shape == (*x.shape, *x.shape)


def test_vmap_over_sources_and_indices(device):
    src = values((4, 6, 3), torch.float64, device)
    index = indices(20, 6, torch.int64, device).reshape(4, 5)

    both = vmap(ops.gather_rows)(src, index)
    sources = vmap(ops.gather_rows, (0, None))(src, index[0])
    sums = vmap(lambda s, i: ops.scatter_add_rows(s, i, 6))(src[:, :5], index)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        added = vmap(lambda s: ops.scatter_add_rows(s, index[0], 6), in_dims=2, out_dims=2)(src[:, :5].permute(1, 2, 0))
        empty = vmap(lambda s: ops.gather_rows(s, index[0]))(src[:0])

    assert torch.equal(added, torch.stack([scattered(s[:5], index[0], 6) for s in src], dim=2))
    assert empty.shape == (0, 5, 3)
    assert torch.equal(both, torch.stack([s[i] for s, i in zip(src, index, strict=True)]))
    assert torch.equal(sources, src[:, index[0]])
    assert torch.equal(sums, torch.stack([scattered(s[:5], i, 6) for s, i in zip(src, index, strict=True)]))


# torch.library and torch.compile


@pytest.mark.parametrize("mode", MODES)
def test_opcheck_scatter(mode, device):
    src, index = operands(device, distinct=mode == "distinct")

    torch.library.opcheck(ops.scatter_add_rows.default, (src, index, 7, mode))


@pytest.mark.parametrize("check", [True, False])
def test_opcheck_gather(check, device):
    torch.library.opcheck(ops.gather_rows.default, operands(device), {"check": check})


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_forward_and_backward(dynamic, device):
    def f(src, index):
        return ops.scatter_add_rows(ops.gather_rows(src, index) ** 2, index, src.shape[0]).sum()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    src, index = operands(device)

    (expected,) = torch.autograd.grad(f(src, index), src)
    (found,) = torch.autograd.grad(compiled(src, index), src)

    assert torch.equal(found, expected)


def test_meta_tensors_have_the_right_shapes():
    src, index = torch.empty(5, 3, device="meta"), torch.empty(4, dtype=torch.int32, device="meta")

    assert ops.gather_rows(src, index).shape == (4, 3)
    assert ops.scatter_add_rows(src[:4], index, 9).shape == (9, 3)


# Bad input


def raises(sentence):
    return pytest.raises(RuntimeError, match=re.escape(sentence))


def test_gather_index_out_of_range(device, backend):
    index = torch.zeros(40, dtype=torch.int64, device=device)
    index[17], index[20] = 42, -1

    with raises("[lacewing.gather_rows] index[17] = 42 is out of range for src of shape (8, 9): dim 0 has 8 entries"):
        ops.gather_rows(torch.ones(8, 9, device=device), index)


def test_scatter_index_out_of_range(device, backend):
    index = torch.tensor([0, 1, -3], dtype=torch.int32, device=device)

    with raises("[lacewing.scatter_add_rows] index[2] = -3 is out of range for an output of shape (8, 9): dim 0 has 8"):
        ops.scatter_add_rows(torch.ones(3, 9, device=device), index, 8)


def test_repeated_index_in_distinct_mode(device, backend):
    index = torch.tensor([5, 2, 7, 2, 5], device=device)

    with raises('[lacewing.scatter_add_rows] index[3] = 2 repeats index[1]: mode "distinct" needs distinct indices'):
        ops.scatter_add_rows(torch.ones(5, 2, device=device), index, 8, "distinct")


@pytest.mark.parametrize(
    ("src", "index", "sentence"),
    [
        (torch.ones(3), torch.zeros(3, dtype=torch.int64), "src must have 2 dimensions, not shape (3,)"),
        (torch.ones(3, 2), torch.zeros(3, 1, dtype=torch.int64), "index must have 1 dimension, not shape (3, 1)"),
        (torch.ones(3, 2), torch.zeros(3), "index must have dtype int32 or int64, not float32"),
    ],
    ids=["rank of src", "rank of index", "dtype of index"],
)
@pytest.mark.parametrize("op", ["gather_rows", "scatter_add_rows"])
def test_wrong_operands(op, src, index, sentence, device):
    arguments = (src.to(device), index.to(device)) + ((3,) if op == "scatter_add_rows" else ())

    with raises(f"[lacewing.{op}] {sentence}"):
        getattr(ops, op)(*arguments)


def test_uncovered_dtype(device):
    with raises(
        f"[lacewing.gather_rows] no kernel for device {torch.device(device).type}, dtype uint8, index dtype int64; "
        f"covered: {torch.device(device).type} x {{float16, bfloat16, float32, float64, complex64, complex128, int32, "
        "int64} x {int32, int64}"
    ):
        ops.gather_rows(torch.ones(3, 2, dtype=torch.uint8, device=device), torch.tensor([0], device=device))


def test_unknown_dtype(device):
    with raises("[lacewing.gather_rows] src has dtype Bool, which no kernel takes"):
        ops.gather_rows(torch.ones(3, 2, dtype=torch.bool, device=device), torch.tensor([0], device=device))


def test_lengths_that_differ(device):
    with raises("[lacewing.scatter_add_rows] src of shape (3, 2) needs one index per row, but index has shape (4,)"):
        ops.scatter_add_rows(torch.ones(3, 2, device=device), torch.zeros(4, dtype=torch.int64, device=device), 5)


def test_negative_rows(device):
    with raises("[lacewing.scatter_add_rows] rows must not be negative, not -1"):
        ops.scatter_add_rows(torch.ones(0, 2, device=device), torch.zeros(0, dtype=torch.int64, device=device), -1)


def test_unknown_mode(device):
    with raises('mode must be "deterministic", "distinct" or "atomic", not "fast"'):
        ops.scatter_add_rows(
            torch.ones(1, 2, device=device), torch.zeros(1, dtype=torch.int64, device=device), 1, "fast"
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device beside the CPU")
def test_operands_on_two_devices():
    with raises("[lacewing.gather_rows] src is on cuda:0, but index is on cpu"):
        ops.gather_rows(torch.ones(3, 2, device="cuda"), torch.tensor([0]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_opcheck(needs_grad, mode, device):
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")
    src = values((7, 3), torch.float64, device).requires_grad_(needs_grad)
    index = indices(7, 9, torch.int64, device, distinct=True)

    torch.library.opcheck(torch.ops.lacewing.gather_rows.default, (src, index % 7))
    torch.library.opcheck(torch.ops.lacewing.scatter_add_rows.default, (src, index, 9, mode))
