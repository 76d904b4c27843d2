"""The law of sparse tensors over torch's operator database: op(dense) == dense(op(sparse))."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import lacewing

OUTCOMES = ("native", "densified", "refused", "wrong")
# Entries whose results are not a function of their arguments, or whose arguments have no tensor of data.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like",
    "randint_like", "randn_like", "uniform", "empty_like", "new_empty", "new_empty_strided",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward", "svd_lowrank",
    "pca_lowrank", "empty_strided", "empty_permuted", "empty", "resize_", "resize_as_",
}  # fmt: skip


@dataclass
class Row:
    """What became of one entry."""

    outcome: str
    note: str = ""
    samples: int = 0
    densified: Counter[str] = field(default_factory=Counter)


def is_sparse(t: object) -> bool:
    return isinstance(t, Tensor) and lacewing.ops.is_sparse_tensor(t)


def dense(t: Any) -> Any:
    if is_sparse(t):
        return lacewing.ops.tensor_to_dense(t, None)
    return t.to_dense() if isinstance(t, Tensor) and t.layout != torch.strided else t


def thinned(t: Tensor, seed: int) -> Tensor:
    """About half of the elements are zero."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(t.shape, generator=generator) < 0.5
    return torch.where(keep.to(t.device), t.detach(), torch.zeros((), dtype=t.dtype, device=t.device))


def make_sparse(t: Tensor, split: int, fill: str, format: str = "coo") -> Tensor:
    """A sparse tensor of the same elements; `split` dense dims, a fill of the kind, and a format."""
    return in_format(make_coo(t, split, fill), format)


def in_format(s: Tensor, format: str) -> Tensor:
    """A compressed tensor has its odd dims, the last one first, as rows: no order that COO has."""
    dims = lacewing.ops.tensor_sparse_dim(s)
    if format == "coo" or dims < 2:
        return s
    rows = list(range(1, dims, 2))[::-1]
    return lacewing.ops.tensor_to_gcs(s, rows, None, format == "gccs")


def make_coo(t: Tensor, split: int, fill: str) -> Tensor:
    sparse_dims = max(t.dim() - split, 0)
    if fill == "array" and sparse_dims < t.dim():
        value = torch.zeros(t.shape[sparse_dims:], dtype=t.dtype, device=t.device)
        return lacewing.ops.tensor_from_dense(t, sparse_dims, 2, value)
    if fill == "one":
        return lacewing.ops.tensor_from_dense(t, sparse_dims, 0, torch.ones((), dtype=t.dtype, device=t.device))
    return lacewing.ops.tensor_from_dense(t, sparse_dims, 0, None)


def uncoalesced(s: Tensor) -> Tensor:
    """The same tensor with its entries reversed, and each value split into two."""
    i, v = lacewing.ops.tensor_indices(s), lacewing.ops.tensor_values(s)
    if not v.dtype.is_floating_point:
        return s
    half = v / 2
    return lacewing.ops.make_sparse_tensor(
        torch.cat([i.flip(1), i], 1), torch.cat([half.flip(0), half], 0), list(s.shape),
        lacewing.ops.tensor_fill_kind(s), lacewing.ops.tensor_fill(s),
    )  # fmt: skip


def same(a: Any, b: Any, exact: bool = False) -> bool:
    if isinstance(a, Tensor) != isinstance(b, Tensor):
        return False
    if not isinstance(a, Tensor):
        return bool(a == b) or (a != a and b != b)
    a, b = dense(a), dense(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if exact or not (a.dtype.is_floating_point or a.dtype.is_complex):
        return bool(((a == b) | ((a != a) & (b != b))).all())
    tolerance = 1e-7 if a.dtype in (torch.float64, torch.complex128) else 2e-3
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def leaves(tree: Any) -> list[Any]:
    return tree_flatten(tree)[0]


def call(op: Any, arguments: tuple[Any, Any, Any]) -> Any:
    first, args, kwargs = tree_map(lambda t: t.clone() if isinstance(t, Tensor) and not is_sparse(t) else t, arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op.op(first, *args, **kwargs)


SAMPLES = 4  # of an entry at most: the database's generators mostly vary sizes
_kept: dict[tuple[str, str, torch.dtype], list[Sample] | str] = {}


@dataclass
class Sample:
    """Arguments from the database, and what the strided tensor gives. Shared by all forms: nothing writes to it."""

    first: Any
    args: Any
    kwargs: Any
    data: Any = None
    expected: list[Any] | None = None


def sample_rows(op: Any, device: str, dtype: torch.dtype, limit: int) -> list[Sample] | str:
    """Some samples of an entry, spread over all of them, made once; or the error of the database's own generator."""
    key = op.formatted_name, device, dtype
    if key not in _kept:
        try:
            _kept[key] = generated(op, device, dtype)
        except Exception as error:
            _kept[key] = type(error).__name__
    kept = _kept[key]
    return kept if isinstance(kept, str) or limit >= len(kept) else kept[:: len(kept) // limit][:limit]


def generated(op: Any, device: str, dtype: torch.dtype) -> list[Sample]:
    samples = []
    torch.manual_seed(0)
    random.seed(0)
    for sample in op.sample_inputs(device, dtype, requires_grad=False):
        data = [t for t in leaves(sample.input) if isinstance(t, Tensor)]
        if data and all(t.layout == torch.strided for t in data) and not raced(op, device, sample):
            samples.append(Sample(sample.input, sample.args, sample.kwargs))
    chosen = samples[:: max(len(samples) // SAMPLES, 1)][:SAMPLES]
    return [sample for number, sample in enumerate(chosen) if answered(op, sample, number)]


def raced(op: Any, device: str, sample: Any) -> bool:
    """Whether threads of the device write different numbers to one place, so that torch's own answer is either."""
    if device == "cpu" or not op.name.startswith("nn.functional.max_unpool"):
        return False
    places = sample.args[0].flatten(-int(op.name[-2])).sort(-1).values  # of each image: the name ends in 1d, 2d, 3d
    return bool((places[..., 1:] == places[..., :-1]).any())


def answered(op: Any, sample: Sample, number: int) -> bool:
    """Finds what the strided tensor gives: of half of the elements, or of all where the op needs them."""
    for thin in (True, False):
        data = tree_map(lambda t: thinned(t, number) if thin and isinstance(t, Tensor) else t, sample.first)
        try:
            sample.expected = leaves(call(op, (data, sample.args, sample.kwargs)))
        except Exception:
            continue
        sample.data = data
        return True
    return False


def check_entry(
    op: Any,
    device: str = "cpu",
    split: int = 0,
    fill: str = "zero",
    limit: int = 6,
    twice: bool = False,
    format: str = "coo",
    exact: bool = False,
) -> Row:
    """Runs some samples of an entry on sparse inputs and on the strided ones."""
    dtype = next(
        (
            d
            for d in (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)
            if d in op.supported_dtypes("cpu")
        ),
        None,
    )
    if dtype is None:
        return Row("skipped", "no dtype")
    samples = sample_rows(op, device, dtype, limit)
    if isinstance(samples, str):
        return Row("skipped", samples)
    row = Row("native")
    for number, sample in enumerate(samples):
        outcome = check_sample(op, sample, number, (split, fill, format), twice, row, exact)
        row.samples += 1
        if OUTCOMES.index(outcome) > OUTCOMES.index(row.outcome):
            row.outcome = outcome
    return row if row.samples else Row("skipped", "no sample")


def check_sample(
    op: Any, sample: Sample, number: int, form_of: tuple[int, str, str], twice: bool, row: Row, exact: bool
) -> str:
    form = lambda t: make_sparse(t, *form_of) if isinstance(t, Tensor) else t
    sparse = tree_map(form, sample.data)
    if twice:
        sparse = tree_map(lambda t: uncoalesced(t) if is_sparse(t) else t, sparse)
    lacewing.ops.record_densified(True)
    try:
        found = call(op, (sparse, sample.args, sample.kwargs))
    except Exception as error:
        lacewing.ops.record_densified(False)
        text = str(error)
        if "[lacewing." in text:
            row.note = text[:150]
            return "refused"
        row.note = f"{type(error).__name__}: {text[:150]}"
        return "wrong"
    densified = lacewing.ops.record_densified(False)
    row.densified.update(densified)
    a, b = sample.expected or [], leaves(found)
    if form_of[2] != "coo" and not op.name.startswith("to_sparse"):
        first = next((t for t in leaves(sparse) if is_sparse(t)), None)
        if first is not None and not all(follows(first, t) for t in b if is_sparse(t)):
            row.note = f"sample {number}: another format"
            return "wrong"
    if len(a) != len(b) or not all(same(x, y, exact) for x, y in zip(a, b, strict=True)):
        row.note = f"sample {number}: other values"
        return "wrong"
    return "densified" if densified else "native"


def check_undefined(op: Any, device: str = "cpu", format: str = "coo", limit: int = 2) -> Row:
    """Rule 1 for an undefined fill: what is specified is what the strided tensor has, whatever stands for the rest."""
    dtype = torch.float64 if torch.float64 in op.supported_dtypes("cpu") else torch.int64
    samples = sample_rows(op, device, dtype, limit)
    if isinstance(samples, str):
        return Row("skipped", samples)
    row = Row("native")
    for number, sample in enumerate(samples):
        if not isinstance(sample.data, Tensor) or sample.data.dtype != dtype:
            continue
        row.samples += 1
        outcome = undefined_outcome(op, sample, format, row)
        if outcome == "wrong":
            row.note = f"sample {number}: {row.note}"
        if OUTCOMES.index(outcome) > OUTCOMES.index(row.outcome):
            row.outcome = outcome
    return row if row.samples else Row("skipped", "no sample")


def undefined_outcome(op: Any, sample: Sample, format: str, row: Row) -> str:
    coo = lacewing.ops.tensor_from_dense(sample.data, None, 1, None)
    try:
        found = leaves(call(op, (in_format(coo, format), sample.args, sample.kwargs)))
    except Exception as error:
        row.note = f"{type(error).__name__}: {str(error)[:150]}"
        return "refused" if "[lacewing." in str(error) else "wrong"
    # Masked: a missing element takes no part in a softmax.
    others = [-math.inf] if "softmax" in op.name else [math.inf] if "softmin" in op.name else [1.5, 0.25]
    if sample.data.dtype == torch.int64:
        others = [3, 4]
    for other in others:
        stand_in = torch.tensor(other, dtype=sample.data.dtype, device=sample.data.device)
        try:
            filled = lacewing.ops.tensor_to_dense(coo, stand_in)
            expected = leaves(call(op, (filled, sample.args, sample.kwargs)))
        except Exception:
            continue  # the stand-in is no number for the op
        if len(expected) != len(found) or not all(map(same_where_specified, found, expected)):
            row.note = f"other values with {other} for the rest"
            return "wrong"
    return "native"


def same_where_specified(found: Any, expected: Any) -> bool:
    if not is_sparse(found) or lacewing.ops.tensor_fill_kind(found) != 1:
        return same(found, expected)
    values = torch.ones_like(lacewing.ops.tensor_values(found), dtype=torch.int64)
    indices = lacewing.ops.tensor_indices(found)
    ones = lacewing.ops.make_sparse_tensor(indices, values, list(found.shape), 0, None)
    mask = dense(ones) > 0
    mine = lacewing.ops.tensor_to_dense(found, torch.zeros((), dtype=found.dtype, device=found.device))
    return found.shape == expected.shape and same(mine[mask], dense(expected)[mask])


def follows(operand: Tensor, result: Tensor) -> bool:
    """Whether a result is compressed where its operand is and it has two sparse dims."""
    compressed = [lacewing.ops.tensor_format(t) != 0 for t in (operand, result)]
    return compressed[1] == (compressed[0] and lacewing.ops.tensor_sparse_dim(result) >= 2)


def weighted(outputs: Any, weights: list[Tensor]) -> Tensor | None:
    """One number that every differentiable output counts in."""
    total = None
    for number, t in enumerate(t for t in leaves(outputs) if isinstance(t, Tensor) and differentiable(t)):
        t = dense(t)
        if len(weights) <= number:
            weights.append(torch.randn(t.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(number)))
        share = (torch.nan_to_num(t) * weights[number].to(t.device)).sum()
        share = share.real if share.is_complex() else share
        total = share if total is None else total + share
    return total


def differentiable(t: Tensor) -> bool:
    return (t.dtype.is_floating_point or t.dtype.is_complex) and t.requires_grad


def check_gradient(op: Any, device: str = "cpu", split: int = 0, limit: int = 3, format: str = "coo") -> Row:
    """Gradients to the values and to the fill against those of the strided tensor."""
    row = Row("native")
    if op.name == "to_sparse" or not op.supports_autograd or torch.float64 not in op.supported_dtypes("cpu"):
        return Row("skipped", "no gradient")
    samples = sample_rows(op, device, torch.float64, limit)
    if isinstance(samples, str):
        return Row("skipped", samples)
    for number, sample in enumerate(samples):
        first, args, kwargs = sample.first, sample.args, sample.kwargs
        if not isinstance(first, Tensor) or first.dtype != torch.float64:
            continue
        data = thinned(first, number)
        leaf = data.clone().requires_grad_()
        weights: list[Tensor] = []
        try:
            expected = weighted(call(op, (leaf * 1, args, kwargs)), weights)
            if expected is None:
                continue
            grad = dense(torch.autograd.grad(expected, leaf)[0])
        except Exception:
            continue
        sparse = make_sparse(data, split, "zero")
        indices = lacewing.ops.tensor_indices(sparse)
        values = lacewing.ops.tensor_values(sparse).detach().clone().requires_grad_()
        for learn_fill in (False, True):
            fill = torch.zeros((), dtype=data.dtype, device=device, requires_grad=learn_fill)
            tensor = lacewing.ops.make_sparse_tensor(indices, values, list(data.shape), 0, fill)
            tensor = in_format(tensor, format)
            try:
                found = weighted(call(op, (tensor, args, kwargs)), weights)
            except Exception as error:
                if "[lacewing." in str(error):
                    return Row("refused", str(error)[:150])
                return Row("wrong", f"{type(error).__name__}: {str(error)[:200]}")
            if found is None:
                if values.numel() == 0:
                    continue
                return Row("wrong", "the gradient is lost")
            grads = torch.autograd.grad(found, (values, fill) if learn_fill else (values,), allow_unused=True)
            at_entries = grad[tuple(indices)] if indices.shape[0] else grad.unsqueeze(0)[: values.shape[0]]
            got = torch.zeros_like(values) if grads[0] is None else grads[0]
            if not torch.allclose(got, at_entries, rtol=1e-6, atol=1e-8, equal_nan=True):
                return Row("wrong", f"sample {number}: other gradients of the values, {(got - at_entries).abs().max()}")
            # Without an unspecified element the fill has none; half types round.
            if (
                learn_fill
                and values.numel() < data.numel()
                and bool(grad.isfinite().all())
                and op.name not in ("half", "bfloat16")
            ):
                # No difference of sums: beside one large gradient (erfcx of a negative number) no digit is left.
                at_others = grad.clone()
                if indices.shape[0]:
                    at_others[tuple(indices)] = 0
                rest = at_others.sum()
                got = torch.zeros_like(fill) if grads[1] is None else grads[1]
                if not torch.allclose(got, rest, rtol=1e-6, atol=1e-7, equal_nan=True):
                    return Row("wrong", f"sample {number}: other gradient of the fill: {got.item()} for {rest.item()}")
        row.samples += 1
    return row if row.samples else Row("skipped", "no sample")


def check_second_gradient(op: Any, device: str = "cpu", limit: int = 2) -> Row:
    """The gradient of a function of the gradient: of the values of a sparse tensor, and of the same strided one."""
    if op.name == "to_sparse" or not op.supports_gradgrad or torch.float64 not in op.supported_dtypes("cpu"):
        return Row("skipped", "no second gradient")
    samples = sample_rows(op, device, torch.float64, limit)
    if isinstance(samples, str):
        return Row("skipped", samples)
    row = Row("native")
    for number, sample in enumerate(samples):
        if not isinstance(sample.first, Tensor) or sample.first.dtype != torch.float64 or sample.first.dim() == 0:
            continue
        data = thinned(sample.first, number)
        sparse = make_sparse(data, 0, "zero")
        indices, shape = lacewing.ops.tensor_indices(sparse), list(data.shape)
        values = lacewing.ops.tensor_values(sparse).detach().clone().requires_grad_()
        weights: list[Tensor] = []
        forms = (
            lambda v: torch.zeros(shape, dtype=v.dtype, device=device).index_put(tuple(indices), v),
            lambda v: lacewing.ops.make_sparse_tensor(indices, v, shape, 0, None),
        )
        found: list[Tensor | None] = []
        for form in forms:
            try:
                total = weighted(call(op, (form(values), sample.args, sample.kwargs)), weights)
                first = None if total is None else torch.autograd.grad(total, values, create_graph=True)[0]
                if first is None or not first.requires_grad:
                    found.append(None)
                    continue
                weight = torch.randn(first.shape, dtype=first.dtype, generator=torch.Generator().manual_seed(9))
                total = (first * weight.to(first.device)).sum()
                found.append(torch.autograd.grad(total, values, allow_unused=True)[0])
            except Exception as error:
                if not found:
                    break  # the strided tensor has none either
                return Row("wrong", f"{type(error).__name__}: {str(error)[:200]}")
        if len(found) < 2:
            continue
        expected, got = (torch.zeros_like(values) if f is None else f for f in found)
        if not torch.allclose(got, expected, rtol=1e-6, atol=1e-7, equal_nan=True):
            return Row("wrong", f"sample {number}: other second gradients, {(got - expected).abs().max()}")
        row.samples += 1
    return row if row.samples else Row("skipped", "no sample")
