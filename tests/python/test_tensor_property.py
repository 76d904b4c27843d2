"""Rule 1 as a property: op(dense) == dense(op(sparse)) for random tensors of every kind, in every format."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import lacewing

pytestmark = pytest.mark.filterwarnings("ignore")
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.complex32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
FILLS = ("zero", "one", "number", "array", "undefined")
FORMATS = ("coo", "gcrs", "gccs")


@st.composite
def tensors(draw: st.DrawFn, shape: list[int] | None = None, dtype: torch.dtype | None = None) -> lacewing.SparseTensor:
    """0 to 5 dims, some of size 0, any split, duplicates in any order, any fill, any dtype, any format."""
    shape = draw(st.lists(st.integers(0, 3), max_size=5)) if shape is None else shape
    dtype = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    sparse = draw(st.integers(0, len(shape)))
    nse = 0 if 0 in shape[:sparse] else draw(st.integers(0, 7))
    columns = [draw(st.lists(st.integers(0, max(s - 1, 0)), min_size=nse, max_size=nse)) for s in shape[:sparse]]
    indices = torch.tensor(columns, dtype=torch.int64).reshape(sparse, nse)
    seed = draw(st.integers(0, 99))
    s = lacewing.sparse_coo_tensor(
        indices, numbers((nse, *shape[sparse:]), dtype, seed), shape, draw_fill(draw, dtype, shape[sparse:])
    )
    format = draw(st.sampled_from(FORMATS))
    if format == "coo" or sparse < 2:
        return s
    order = draw(st.permutations(range(sparse)))
    cut = draw(st.integers(1, sparse - 1))
    return s.to_gcs(order[:cut], order[cut:], "rows" if format == "gcrs" else "columns")


def numbers(shape: Any, dtype: torch.dtype, seed: int) -> Tensor:
    """Small integers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0 if dtype.is_signed is False else -2, 3, tuple(shape), generator=generator)
    return drawn.to(dtype)


def draw_fill(draw: st.DrawFn, dtype: torch.dtype, dense: list[int]) -> object:
    kind = draw(st.sampled_from(FILLS))
    if kind == "array":
        return numbers(dense, dtype, 7)
    if kind == "number":
        return numbers((), dtype, 3)
    return {"zero": None, "one": True, "undefined": lacewing.undefined}[kind]


def mask(s: lacewing.SparseTensor) -> Tensor:
    """Where a tensor is specified."""
    values = torch.ones(s.values().shape, dtype=torch.int64)
    return lacewing.sparse_coo_tensor(s.indices(), values, s.shape).to_dense() > 0


def dense(t: Tensor) -> Tensor:
    return t.to_dense() if lacewing.is_sparse_tensor(t) else t


def same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    wide = torch.complex128 if a.is_complex() else torch.float64 if a.is_floating_point() else torch.int64
    a, b = a.to(wide), b.to(wide)
    return torch.allclose(a, b, rtol=2e-2, atol=2e-2, equal_nan=True) if wide != torch.int64 else torch.equal(a, b)


def law(op: Callable[..., Any], *operands: lacewing.SparseTensor) -> None:
    """Where the strided tensors have a result, the sparse ones have the same, and are left as they were."""
    defined = all(s.fill_kind != "undefined" for s in operands)
    if not defined:
        operands_dense = [s.to_dense(torch.ones((), dtype=s.dtype)) if s.fill_kind == "undefined" else s.to_dense()
                          for s in operands]  # fmt: skip
    else:
        operands_dense = [s.to_dense() for s in operands]
    before = [t.clone() for t in operands_dense]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = op(*operands_dense)
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        expected = None
    if expected is None:
        return
    try:
        found = op(*operands)
    except RuntimeError as error:
        if "fill is undefined" in str(error) and not defined:
            return
        raise
    compare(found, expected, defined)
    for s, was in zip(operands, before, strict=True):
        assert same(s.to_dense(torch.ones((), dtype=s.dtype)) if s.fill_kind == "undefined" else s.to_dense(), was)


def compare(found: Any, expected: Any, defined: bool) -> None:
    """With an undefined fill, the specified elements."""
    if defined or not lacewing.is_sparse_tensor(found):
        assert same(dense(found), expected), (found, dense(found), expected)
    elif found.fill_kind == "undefined":
        where = mask(found)
        assert same(found.to_dense(torch.zeros((), dtype=found.dtype))[where], expected[where])


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "cos": torch.cos,
    "neg": torch.neg,
    "abs": torch.abs,
    "square": lambda t: t * t,
    "plus": lambda t: t + 1,
    "is_nan": torch.isnan,
    "to_double": lambda t: t.to(torch.float64),
    "sign": torch.sign,
    "clone": torch.clone,
    "flip": lambda t: t.flip(0),
    "transpose": lambda t: t.transpose(0, -1),
    "movedim": lambda t: t.movedim(-1, 0),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "squeeze": lambda t: t.squeeze(),
    "flatten": lambda t: t.flatten(),
    "select": lambda t: t.select(-1, 0),
    "slice": lambda t: t[..., 1:],
    "step": lambda t: t[::2],
    "roll": lambda t: t.roll(1, 0),
    "none": lambda t: t[None],
    "index": lambda t: t[torch.tensor([0, 0])],
    "repeat": lambda t: t.repeat(2, *[1] * max(t.dim() - 1, 0)),
    "cat": lambda t: torch.cat([t, t], -1),
    "stack": lambda t: torch.stack([t, t], 0),
    "split": lambda t: t.split(1, 0)[0],
    "expand": lambda t: t.unsqueeze(0).expand(2, *t.shape),
    "reshape": lambda t: t.reshape(-1, 1),
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda t: t.sum(),
    "sum0": lambda t: t.sum(0),
    "sum_last": lambda t: t.sum(-1, keepdim=True),
    "amax": lambda t: t.amax(0),
    "prod": lambda t: t.prod(-1),
    "any": lambda t: t.any(0),
    "all": lambda t: t.all(),
    "mean": lambda t: t.mean(-1),
    "count": lambda t: t.count_nonzero(0),
    "norm": lambda t: torch.linalg.vector_norm(t, dim=0),
    "var": lambda t: t.var(0),
    "softmax": lambda t: t.softmax(0),
    "logsumexp": lambda t: t.logsumexp(-1),
    "cumsum": lambda t: t.cumsum(0),
    "argmax": lambda t: t.argmax(-1),
    "sort": lambda t: t.sort(-1).values,
    "topk": lambda t: t.topk(1, 0).values,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "mul": torch.mul, "maximum": torch.maximum, "lt": torch.lt, "eq": torch.eq,
    "where": lambda a, b: torch.where(a == b, a, b), "sub": lambda a, b: a - b, "logical_and": torch.logical_and,
}  # fmt: skip
fast = settings(max_examples=90, deadline=None, suppress_health_check=list(HealthCheck))


@given(tensors(), st.sampled_from(sorted(UNARY)))
@fast
def test_1_the_law_for_pointwise_and_shape_ops(s: lacewing.SparseTensor, op: str) -> None:
    law(UNARY[op], s)


@given(tensors(), st.sampled_from(sorted(REDUCTIONS)))
@fast
def test_1_the_law_for_reductions(s: lacewing.SparseTensor, op: str) -> None:
    law(REDUCTIONS[op], s)


@given(st.data(), st.lists(st.integers(0, 3), max_size=4), st.sampled_from(sorted(BINARY)))
@fast
def test_1_the_law_for_binary_ops_with_broadcasting(data: st.DataObject, shape: list[int], op: str) -> None:
    other = shape[data.draw(st.integers(0, len(shape))) :]
    other = [1 if data.draw(st.booleans()) else s for s in other]
    dtype = data.draw(st.sampled_from(DTYPES))

    law(BINARY[op], data.draw(tensors(shape, dtype)), data.draw(tensors(other, dtype)))


@given(st.data(), st.lists(st.integers(0, 3), min_size=3, max_size=3), st.sampled_from(DTYPES))
@fast
def test_1_the_law_for_products(data: st.DataObject, sizes: list[int], dtype: torch.dtype) -> None:
    rows, inner, columns = sizes
    a, b = data.draw(tensors([rows, inner], dtype)), data.draw(tensors([inner, columns], dtype))

    law(torch.matmul, a, b)
    if "undefined" not in (a.fill_kind, b.fill_kind):
        law(lambda t: t @ b.to_dense(), a)
        law(lambda t: a.to_dense() @ t, b)


@given(tensors(), st.randoms(use_true_random=False))
@fast
def test_20_conversions_keep_the_elements_of_random_tensors(s: lacewing.SparseTensor, random: Any) -> None:
    """Through every format, against elements that are added up one by one."""
    stand_in = torch.ones((), dtype=s.dtype) if s.fill_kind == "undefined" else None
    expected = by_hand(s)
    order = random.sample(range(len(s.indices())), len(s.indices()))
    cut = random.randint(1, max(1, len(order) - 1))

    made = [s, s.to_coo(), s.coalesce()]
    if len(order) >= 2:
        made += [s.to_gcs(order[:cut], order[cut:], compressed) for compressed in ("rows", "columns")]
        made += [made[-1].to_gcs(order[cut:], order[:cut]), made[-2].to_coo(), made[-1].permute(*range(s.dim()))]

    for t in made:
        assert same(t.to_dense(stand_in), expected), t
        assert torch.equal(mask(t), mask(s))


def by_hand(s: lacewing.SparseTensor) -> Tensor:
    dense_shape = s.values().shape[1:]
    fill = torch.ones((), dtype=s.dtype) if s.fill_kind == "undefined" else s.fill_value
    result = fill.expand(s.shape).clone()
    sums: dict[tuple[int, ...], list[Tensor]] = {}
    for index, value in zip(s.indices().T.tolist(), s.values(), strict=True):
        sums.setdefault(tuple(index), []).append(value)
    for index, values in sums.items():
        wide = torch.complex128 if s.is_complex() else torch.float64 if s.is_floating_point() else torch.int64
        total = torch.stack([v.to(wide) for v in values]).sum(0).expand(dense_shape)
        result[index] = (total != 0 if s.dtype == torch.bool else total).to(s.dtype)
    return result


@given(tensors(dtype=torch.float64), st.sampled_from(sorted(UNARY | REDUCTIONS)))
@fast
def test_17_gradients_of_random_tensors(s: lacewing.SparseTensor, op: str) -> None:
    """To values and fill, against those through the strided tensor of the same values and fill."""
    if s.fill_kind == "undefined":
        s = s.with_fill(1.0)
    leaves = s.values().requires_grad_(), s.fill_value.requires_grad_()
    function = (UNARY | REDUCTIONS)[op]
    weigh = lambda t: (t.nan_to_num() * torch.arange(1.0, t.numel() + 1, dtype=t.dtype).view(t.shape)).sum()
    try:
        expected = function(s.to_dense())
    except (RuntimeError, IndexError):
        return
    if not expected.requires_grad:
        return
    found = torch.autograd.grad(weigh(dense(function(s))), leaves, allow_unused=True)
    wanted = torch.autograd.grad(weigh(expected), leaves, allow_unused=True)
    for mine, theirs, leaf in zip(found, wanted, leaves, strict=True):
        pair = [torch.zeros_like(leaf) if g is None else g.nan_to_num() for g in (mine, theirs)]
        assert torch.allclose(*pair, atol=1e-9), (s, mine, theirs)
