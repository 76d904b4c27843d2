"""Cases, an oracle in plain torch, and comparisons for the tests of the product algebra."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import lacewing
from lacewing import SparseProductInfo

PACKAGE_PATH = str(Path(lacewing.__file__).parents[1])
TESTS_PATH = str(Path(__file__).parent)

FIELDS = ("scale", "index1", "index2", "seg_out", "gather_index", "index_out")
ALL_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
ROLES = list(itertools.product([False, True], repeat=3))
"""(input1 shared, input2 shared, output accumulated)."""


@dataclass(frozen=True)
class Op:
    """One of the seven products: the channel letters of its operands."""

    name: str
    x: str
    y: str
    z: str

    @property
    def function(self) -> Callable[..., Tensor]:
        return getattr(lacewing, f"sparse_{self.name}")

    @property
    def raw(self) -> Callable[..., Tensor]:
        return getattr(lacewing, f"indexed_{self.name}_scale_gather")


OPS = {
    op.name: op
    for op in (
        Op("mul", "a", "a", "a"),
        Op("outer", "a", "b", "ab"),
        Op("inner", "a", "a", ""),
        Op("vecmat", "a", "ab", "b"),
        Op("vecsca", "a", "", "a"),
        Op("scavec", "", "a", "a"),
        Op("mat_t_vec", "ab", "a", "b"),
    )
}


def absent_subsets() -> list[tuple[str, ...]]:
    """All 64 choices of the fields that are absent."""
    return [
        tuple(name for name, present in zip(FIELDS, mask, strict=True) if not present)
        for mask in itertools.product([True, False], repeat=len(FIELDS))
    ]


def absent_id(absent: Sequence[str]) -> str:
    """A test id that names the absent fields."""
    return "no_" + "+".join(absent) if absent else "all_fields"


def role_id(roles: Sequence[bool]) -> str:
    """A test id for (shared1, shared2, accumulated)."""
    names = [name for name, on in zip(("shared1", "shared2", "accumulated"), roles, strict=True) if on]
    return "+".join(names) or "batched"


@dataclass
class Fields:
    """The fields of an info as lists; None is absent."""

    index1: list[int] | None = None
    index2: list[int] | None = None
    seg_out: list[int] | None = None
    gather_index: list[int] | None = None
    index_out: list[int] | None = None
    out_size: int | None = None

    def info(self, scale: Tensor | None, device: str = "cpu", dtype: torch.dtype = torch.int64) -> SparseProductInfo:
        """The library's info of these fields."""
        tensors = {
            name: None if values is None else torch.tensor(values, dtype=dtype, device=device)
            for name, values in self.index_fields().items()
        }
        return SparseProductInfo(scale=scale, out_size=self.out_size, **tensors).to(device)

    def index_fields(self) -> dict[str, list[int] | None]:
        """All but out_size."""
        return {name: getattr(self, name) for name in FIELDS[1:]}

    def terms(self, entries: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """(t, index1[t], index2[t], row) of each term, and the rows of the output; `entries` is T."""
        gather = self.gather_index if self.gather_index is not None else range(entries)
        seg = self.seg_out if self.seg_out is not None else range(len(gather) + 1)
        rows = self.index_out if self.index_out is not None else range(len(seg) - 1)
        first = self.index1 if self.index1 is not None else range(entries)
        second = self.index2 if self.index2 is not None else range(entries)
        terms = [
            (gather[k], first[gather[k]], second[gather[k]], rows[segment])
            for segment in range(len(seg) - 1)
            for k in range(seg[segment], seg[segment + 1])
        ]
        return terms, len(seg) - 1 if self.out_size is None else self.out_size


@dataclass
class Case:
    """Operands of a product, with its fields and roles."""

    op: Op
    fields: Fields
    entries: int
    x: Tensor
    y: Tensor
    scale: Tensor | None
    accumulated: bool = False
    info: SparseProductInfo = field(init=False)

    def __post_init__(self) -> None:
        self.info = self.fields.info(self.scale, str(self.x.device))

    def run(self, x: Tensor, y: Tensor, scale: Tensor | None) -> Tensor:
        """The library's product with these operands instead."""
        info = self.info if scale is None else self.info.with_scale(scale)
        return self.op.function(x, y, info, out_accumulated=self.accumulated)

    def oracle(self, x: Tensor, y: Tensor, scale: Tensor | None) -> Tensor:
        """The product by index_select, einsum and index_add."""
        return oracle(self.op, x, y, scale, *self.fields.terms(self.entries), self.accumulated)

    def to(self, *args: object) -> Case:
        """With operands moved or cast."""
        moved = (None if t is None else t.to(*args) for t in (self.x, self.y, self.scale))
        x, y, scale = moved
        return replace(self, x=x, y=y, scale=scale)


def oracle(
    op: Op,
    x: Tensor,
    y: Tensor,
    scale: Tensor | None,
    terms: list[tuple[int, int, int, int]],
    rows: int,
    accumulated: bool = False,
) -> Tensor:
    """The formula in plain torch, differentiable by torch's own autograd."""
    columns = list(zip(*terms, strict=True)) if terms else [(), (), (), ()]
    entry, first, second, row = (torch.tensor(column, dtype=torch.long, device=x.device) for column in columns)
    n_x = "n" if x.dim() == 2 + len(op.x) else ""
    n_y = "n" if y.dim() == 2 + len(op.y) else ""
    n_z = "" if accumulated else n_x or n_y
    s = x.new_ones(len(terms)) if scale is None else scale[entry]
    s = s.to(torch.promote_types(torch.result_type(x, y), s.dtype))
    x_terms = x.index_select(len(n_x), first).to(s.dtype)
    y_terms = y.index_select(len(n_y), second).to(s.dtype)
    z_terms = torch.einsum(f"{n_x}t{op.x},{n_y}t{op.y},t->{n_z}t{op.z}", x_terms, y_terms, s)
    shape = list(z_terms.shape)
    shape[len(n_z)] = rows
    return z_terms.new_zeros(shape).index_add(len(n_z), row, z_terms)


def random_values(shape: Sequence[int], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Normal values that `dtype` holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(tuple(shape), dtype=wide, generator=generator).to(dtype).to(device)


def exact_values(like: Tensor, seed: int) -> Tensor:
    """Values of a tensor's shape that are the same in every dtype."""
    values = random_values(like.shape, torch.float64, seed).mul(16).round().div(16)
    return values.to(like.dtype).to(like.device)


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t


def _reversed(t: Tensor) -> Tensor:
    order = list(range(t.dim()))[::-1]
    return t.permute(order).contiguous().permute(order)


def _every_other(t: Tensor) -> Tensor:
    larger = torch.full([2 * size for size in t.shape], float("nan"), dtype=t.dtype, device=t.device)
    view = larger[tuple(slice(0, None, 2) for _ in t.shape)]
    return view.copy_(t)


def _offset(t: Tensor) -> Tensor:
    return torch.cat([t.new_full((1,), float("nan")), t.reshape(-1)])[1:].view(t.shape)


def _expanded(dim: int) -> Callable[[Tensor], Tensor]:
    def expand(t: Tensor) -> Tensor:
        return t.narrow(dim, 0, 1).expand_as(t) if t.dim() and t.numel() else t

    return expand


def _overlapping(t: Tensor) -> Tensor:
    return t.contiguous().as_strided(t.shape, [1] * t.dim()) if t.numel() else t


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "reversed": _reversed,
    "every_other": _every_other,
    "offset": _offset,
    "first_dim_expanded": _expanded(0),
    "last_dim_expanded": _expanded(-1),
    "all_expanded": lambda t: t.flatten()[:1].sum().expand(t.shape),
    "overlapping": _overlapping,
}
"""Ways to lie in memory. Expanding and overlapping also change the values."""


def make_fields(absent: Sequence[str], seed: int, entries: int = 6, rows: int = 4) -> tuple[Fields, int, int, int]:
    """Random fields without `absent`, with T and the rows that the two inputs need."""
    rng = random.Random(seed)
    has = {name: name not in absent for name in FIELDS}
    if not any(has.values()):
        return Fields(), entries, entries, entries
    fields = Fields()
    if has["index1"]:
        fields.index1 = [rng.randrange(rows) for _ in range(entries)]
    if has["index2"]:
        fields.index2 = [rng.randrange(rows + 1) for _ in range(entries)]
    terms = entries
    if has["gather_index"]:
        # One entry of scale repeats, one is skipped, the last is used.
        used = [t for t in range(entries) if t != entries // 2]
        fields.gather_index = [*used, used[0], used[-1]]
        rng.shuffle(fields.gather_index)
        terms = len(fields.gather_index)
    segments = terms
    if has["seg_out"]:
        cuts = sorted(rng.randrange(terms + 1) for _ in range(max(terms // 2, 1)))
        # Now and then a segment is empty, and terms before the first or after the last are unused.
        fields.seg_out = [rng.choice([0, cuts[0]]), *cuts, cuts[-1], rng.choice([cuts[-1], terms])]
        segments = len(fields.seg_out) - 1
    if has["index_out"]:
        fields.out_size = segments + 2
        fields.index_out = rng.sample(range(fields.out_size), segments)
    else:
        fields.out_size = rng.choice([None, segments, segments + 1])
    if not (has["scale"] or has["index1"] or has["index2"] or has["gather_index"]) and fields.seg_out is not None:
        entries = fields.seg_out[-1]
    in1 = rows if has["index1"] else entries + 1
    in2 = rows + 1 if has["index2"] else entries + 2
    return fields, entries, in1, in2


def make_case(
    op: Op,
    absent: Sequence[str] = (),
    roles: Sequence[bool] = (False, False, False),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    batch: int = 3,
    a: int = 3,
    b: int = 2,
    seed: int = 0,
    entries: int = 6,
    rows: int = 4,
) -> Case:
    """A product of random operands with random fields."""
    fields, entries, in1, in2 = make_fields(absent, seed, entries, rows)
    extents = {"a": a, "b": b}
    shared1, shared2, accumulated = roles
    lead1, lead2 = ([] if shared else [batch] for shared in (shared1, shared2))
    x = random_values([*lead1, in1, *(extents[c] for c in op.x)], dtype, seed + 1, device)
    y = random_values([*lead2, in2, *(extents[c] for c in op.y)], dtype, seed + 2, device)
    scale = None if "scale" in absent else random_values([entries], dtype, seed + 3, device)
    return Case(op, fields, entries, x, y, scale, accumulated)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The oracle's dtype."""
    return torch.complex128 if dtype.is_complex else torch.float64


def leaves(*tensors: Tensor | None) -> list[Tensor | None]:
    """The same data, strides included, as fresh leaves of a graph."""
    return [None if t is None else t.detach().requires_grad_() for t in tensors]


def derivatives(
    function: Callable[..., Tensor],
    x: Tensor,
    y: Tensor,
    scale: Tensor | None,
    order: int,
    layout: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> dict[str, Tensor]:
    """The value of function(x, y, scale), its gradients, and (order 2) all Hessian-vector products, by name.

    Upstream gradients and directions are random, depend on the shapes only, and lie in memory as `layout` says.
    """
    inputs = dict(zip(("x", "y", "scale"), leaves(x, y, scale), strict=True))
    value = function(**inputs)
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    upstream = layout(exact_values(value, 17)).detach().requires_grad_()
    result = {"value": value.detach()}
    gradients = torch.autograd.grad(value, list(inputs.values()), upstream, create_graph=order > 1)
    result |= {f"grad {name}": g.detach() for name, g in zip(inputs, gradients, strict=True)}
    if order > 1:
        directions = [layout(exact_values(g, 18 + i)) for i, g in enumerate(gradients)]
        wrt = inputs | {"upstream": upstream}
        seconds = torch.autograd.grad(gradients, list(wrt.values()), directions, allow_unused=True)
        for (name, tensor), second in zip(wrt.items(), seconds, strict=True):
            result[f"hvp {name}"] = torch.zeros_like(tensor) if second is None else second.detach()
    return result


def oracle_derivatives(
    case: Case, order: int, layout: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Tensor]:
    """The same of the oracle, in double precision on the host."""
    wide = wide_dtype(torch.result_type(case.x, case.y))
    operands = (None if t is None else t.detach().cpu().to(wide_dtype(t.dtype)) for t in (case.x, case.y, case.scale))
    result = derivatives(case.oracle, *operands, order, layout)
    assert result["value"].dtype == wide
    return result


VALUE_TOLERANCE = {
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
}
GRADIENT_TOLERANCE = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 3e-4,
    torch.complex64: 3e-4,
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
}


def assert_close(got: Tensor, want: Tensor, tolerance: float, what: str = "") -> None:
    """The largest error is at most `tolerance` of the largest wanted value."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
    if want.numel() == 0:
        return
    wide = want.dtype
    error = (got.detach().cpu().to(wide) - want).abs().max().item()
    limit = tolerance * max(want.abs().max().item(), 1e-3)
    assert error <= limit, f"{what}: error {error:.3e} is above {limit:.3e}"


def assert_derivatives_close(got: dict[str, Tensor], want: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Value and derivatives agree within the tolerances of the dtype."""
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        tolerance = (VALUE_TOLERANCE if name == "value" else GRADIENT_TOLERANCE)[dtype]
        assert_close(got[name], tensor, tolerance, name)


def run_python(code: str, **environment: str) -> str:
    """Runs code in a fresh interpreter that finds the package and these helpers; returns what it prints."""
    path = os.pathsep.join([PACKAGE_PATH, TESTS_PATH])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LACEWING_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
