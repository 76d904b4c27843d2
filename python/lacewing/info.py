"""Infos: which terms a sparse product has, checked once and sorted once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ._library import ops
from ._plan import Plan, arguments, needs_grad, outside_transforms, unwrapped

Indices = Tensor | Sequence[int] | None
Values = Tensor | Sequence[float] | None


def as_index(op: str, argument: str, values: Indices, device: torch.device | None = None) -> Tensor | None:
    """Indices given as a list become a tensor on a device; only None is absent."""
    if values is None:
        return None
    if isinstance(values, Tensor):
        if not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(values):
            raise RuntimeError(
                f"[lacewing.{op}] {argument} has no values here: an info is built from them, so build it outside of "
                "what is traced, mapped or on meta"
            )
        return unwrapped(values)
    try:
        with outside_transforms():
            tensor = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"[lacewing.{op}] {argument} must be a tensor or a list of integers: {error}") from error
    return tensor.long() if tensor.numel() == 0 else tensor


def as_size(op: str, argument: str, value: Any) -> int | None:
    """A size that the ops can take: an int of 64 bits, or None."""
    if value is None:
        return None
    if not isinstance(value, bool | int | torch.SymInt | Tensor) and hasattr(value, "__index__"):
        value = operator.index(value)
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"[lacewing.{op}] {argument} must be an int, not {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"[lacewing.{op}] {argument} = {value} does not fit 64 bits")
    return cast(int, value)


def as_scale(op: str, values: Values, device: torch.device | None = None) -> Tensor | None:
    """A list becomes a tensor of double precision on a device, integers do too; other tensors keep their history."""
    if values is None:
        return None
    if isinstance(values, Tensor):
        return values if values.is_floating_point() or values.is_complex() else values.double()
    try:
        complex_valued = any(isinstance(value, complex) for value in values)
        dtype = torch.complex128 if complex_valued else torch.float64
        if any(isinstance(value, Tensor) for value in values):
            return torch.stack([torch.as_tensor(value).to(device=device, dtype=dtype) for value in values])
        with outside_transforms(), _outside_inference():
            return torch.as_tensor(values, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"[lacewing.{op}] scale must be a tensor or a list of numbers: {error}") from error


def _outside_inference() -> AbstractContextManager[object]:
    """Outside of torch.inference_mode: what is made there could not be saved for a gradient later."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return nullcontext()
    return torch.inference_mode(False)


def _as_fields(op: str, scale: Values, **indices: Indices) -> tuple[Tensor | None, list[Tensor | None]]:
    """The fields as tensors; those given as lists lie where the first tensor among the fields does."""
    tensors = [field for field in (*indices.values(), scale) if isinstance(field, Tensor)]
    home = next((tensor.device for tensor in tensors if not tensor.is_meta), None)
    return as_scale(op, scale, home), [as_index(op, name, values, home) for name, values in indices.items()]


_KEPT = 32


class _Info:
    """What both kinds of info share: a plan, the tensors it was made of, and what is derived from them on demand.

    An info that a sort has made keeps no tensors beside the plan: it reads the fields from it.
    """

    _fields: tuple[str, ...]
    _out_size: int | None
    _open: bool
    """Whether every field is absent: the terms then follow the inputs."""
    scale: Tensor | None
    _tensors: dict[str, Tensor | None]
    _plan: Plan
    _derived: dict[Any, Any]

    @classmethod
    def _sorted(cls, scale: Tensor | None, plan: Plan) -> Self:
        """An info made by a sort: an entry of scale for each term."""
        info = object.__new__(cls)
        info.scale, info._out_size, info._open = scale, None, False
        info._tensors, info._plan, info._derived = {}, plan, {}
        return info

    @classmethod
    def _sort(
        cls,
        op: str,
        scale: Values,
        indices: dict[str, Indices],
        sizes: dict[str, int | None],
        forward_only: bool = False,
    ) -> list[Self]:
        """The infos of triples, for the value and the gradients."""
        tensor, given = _as_fields(op, scale, **indices)
        entries = -1 if tensor is None else _length(tensor, op)
        rows = [as_size(op, name, size) for name, size in sizes.items()]
        rows += [None] * (3 - len(rows))
        unary = issubclass(cls, SparseScaleInfo)
        plans = _build(ops.sorted_plans, op, *given, entries, *rows, unary, forward_only, op)
        return [cls._sorted(tensor, plan) for plan in Plan.split(*plans)]

    def _set(self, given: list[Tensor | None], out_size: int | None, columns: list[Tensor | None]) -> None:
        """From the fields; ``columns`` are index1, index2, seg_out, gather_index and index_out."""
        op = type(self).__name__
        entries = None if self.scale is None else _length(self.scale, op)
        unary = isinstance(self, SparseScaleInfo)
        array, sizes = _build(ops.product_plan, op, entries, *columns, out_size, unary, op)
        indexed = any(index is not None for index in given)
        self._plan = Plan(array if indexed or self.scale is None else array.to(self.scale.device), tuple(sizes))
        self._out_size, self._open, self._derived = out_size, not indexed and entries is None, {}
        with outside_transforms():
            copies = [None if tensor is None else tensor.clone() for tensor in given]
        self._tensors = dict(
            zip([name for name in self._fields if name not in ("scale", "out_size")], copies, strict=True)
        )

    def _get(self, name: str) -> Tensor | None:
        tensor = self._tensors[name] if self._tensors else self._from_plan(name)
        return None if tensor is None else tensor.to(torch.long, copy=True)

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """What is derived for some sizes, kept for a few of them; threads may make it twice."""
        value = self._derived.get(key)
        if value is None:
            value = make()
            if len(self._derived) >= _KEPT:
                self._derived.clear()
            self._derived[key] = value
        return value

    def _from_plan(self, name: str) -> Tensor | None:
        index1, index2, seg_out, gather_index = ops.plan_fields(*self._plan)
        fields = {"index": index1, "index1": index1, "index2": index2, "seg_out": seg_out, "gather_index": gather_index}
        return fields.get(name)

    def _backward_plans(self, *sizes: int) -> list[Plan]:
        """The plans of the gradients for inputs of so many rows: derived once, then kept; none where none fit."""
        in2_size = sizes[1] if len(sizes) == 2 else None
        with outside_transforms():
            make = lambda: Plan.split(
                *ops.backward_plans(unwrapped(self._plan.array), self._plan.sizes, sizes[0], in2_size)
            )
            plans: list[Plan] = self._kept(sizes, make)
        return plans

    def _arguments(self, backward: Sequence[_Info | None], sizes: Sequence[int], *operands: Tensor) -> tuple[Any, ...]:
        """What an op takes for this info and those of its gradients, for inputs of so many rows."""
        given = [None if info is None else info._plan for info in backward]
        if not needs_grad(*operands, self.scale):
            return arguments(self._plan, *given)
        if torch.compiler.is_compiling():
            # What is derived now cannot be kept: the compiled graph derives it when it runs.
            derived = next((plans for key, plans in self._derived.items() if key == tuple(sizes)), None)
        else:
            if self.scale is not None:
                given = [
                    plan if plan and ops.plan_serves(self._plan.sizes, plan.sizes, view) else None
                    for view, plan in enumerate(given, 1)
                ]
            derived = self._backward_plans(*sizes) if None in given else None
        return arguments(self._plan, *(plan or other for plan, other in zip(given, derived or given, strict=True)))

    def _resolved(self, rows: int) -> Any:
        """The info to use for inputs of so many rows: another one only where out_size alone is given and differs."""
        if not self._open or self._out_size in (None, rows):
            return self
        name = "index1" if isinstance(self, SparseProductInfo) else "index"
        cls: Any = type(self)
        make = lambda: cls(**{name: torch.arange(rows, device=self.device)}, out_size=self._out_size)
        info = self._kept(int(rows), make)
        return info if self.scale is None else info.with_scale(self.scale)

    @property
    def seg_out(self) -> Tensor | None:
        """(segments + 1,): where the terms of each segment begin."""
        return self._get("seg_out")

    @property
    def gather_index(self) -> Tensor | None:
        """(K,): the t of each term."""
        return self._get("gather_index")

    @property
    def out_size(self) -> int | None:
        """Rows of the output, or None where they follow the inputs."""
        return self._out_size if self._tensors else ops.plan_rows(self._plan.sizes)

    @property
    def device(self) -> torch.device:
        """Where the info lies."""
        return self._plan.array.device

    def to(self, device: torch.device | str) -> Any:
        """The info on another device; itself where it is there already."""
        if torch.device(device) == self.device:
            return self
        return self._map(lambda tensor: tensor.to(device))

    def with_scale(self, scale: Values) -> Any:
        """The same terms with another scale: (T,), in the order of the indices. Nothing is sorted or copied."""
        new = self._map(lambda tensor: tensor, keep_derived=True)
        new.scale = as_scale("with_scale", scale)
        return new

    def _map(self, f: Callable[[Tensor], Tensor], keep_derived: bool = False) -> Any:
        new = object.__new__(type(self))
        with _outside_inference():
            new.scale = None if self.scale is None else f(self.scale)
        new._out_size, new._open = self._out_size, self._open
        with outside_transforms():
            new._tensors = {name: None if t is None else f(t) for name, t in self._tensors.items()}
            new._plan = Plan(f(self._plan.array), self._plan.sizes)
        new._derived = self._derived if keep_derived else {}
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "out_size": self._out_size,
            "open": self._open,
            "tensors": self._tensors,
            "plan": (self._plan.array, self._plan.sizes),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.scale, self._out_size, self._open = state["scale"], state["out_size"], state["open"]
        self._tensors, self._plan, self._derived = state["tensors"], Plan(*state["plan"]), {}

    def __repr__(self) -> str:
        parts = [f"{name}={_describe(getattr(self, name))}" for name in self._fields]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        """Whether both have the same fields on the same device: what is absent in one is absent in the other."""
        if not isinstance(other, _Info) or type(other) is not type(self):
            return NotImplemented
        pairs = [(getattr(self, name), getattr(other, name)) for name in self._fields]
        return self.device == other.device and all(_same(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((type(self), tuple(self._plan.sizes)))

    def _asdict(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self, **fields: Any) -> Any:
        """Another info, with other values of these fields."""
        unknown = fields.keys() - set(self._fields)
        if unknown:
            raise TypeError(f"[lacewing.{type(self).__name__}] there is no field {sorted(unknown)[0]!r}")
        return self.with_scale(fields["scale"]) if fields.keys() == {"scale"} else type(self)(**self._asdict() | fields)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() <= 8 and not value.is_meta:
        return str(value.tolist())
    return f"<{value.numel()} x {str(value.dtype).removeprefix('torch.')}>"


class SparseProductInfo(_Info):
    """The terms of a sparse product.

    For ``t = gather_index[k]`` (or ``k``)::

        z[n, index_out[M]] = sum for k in [seg_out[M], seg_out[M+1]) of scale[t] * x[n, index1[t]] o y[n, index2[t]]

    Each field may be None: ``scale`` is then 1, an index is then the identity, without ``seg_out`` every ``k`` is a
    segment of its own. ``out_size`` must be given with ``index_out``. Rows that no segment writes are zero. Indices are
    copied, checked and grouped here, once; executing reads nothing back. ``scale`` is kept as it is, with its gradient.

    >>> info = SparseProductInfo(scale=[2.0, 3.0], index1=[0, 1], index2=[1, 1], seg_out=[0, 2])
    """

    _fields = ("scale", "index1", "index2", "seg_out", "gather_index", "index_out", "out_size")

    def __init__(
        self,
        scale: Values = None,
        index1: Indices = None,
        index2: Indices = None,
        seg_out: Indices = None,
        gather_index: Indices = None,
        index_out: Indices = None,
        out_size: int | None = None,
    ) -> None:
        name = type(self).__name__
        fields = dict(zip(self._fields[1:6], (index1, index2, seg_out, gather_index, index_out), strict=True))
        self.scale, given = _as_fields(name, scale, **fields)
        self._set(given, as_size(name, "out_size", out_size), given)

    @property
    def index1(self) -> Tensor | None:
        """(T,): rows of input1."""
        return self._get("index1")

    @property
    def index2(self) -> Tensor | None:
        """(T,): rows of input2."""
        return self._get("index2")

    @property
    def index_out(self) -> Tensor | None:
        """(segments,): the row of the output that each segment writes."""
        return self._get("index_out")


def _build(builder: Any, op: str, *arguments: Any) -> Any:
    """Calls an op that builds plans: from values, so not while torch traces."""
    if torch.compiler.is_compiling():
        raise RuntimeError(f"[lacewing.{op}] an info is built from values: build it outside of what is compiled")
    with outside_transforms():
        return builder(*arguments)


def _length(scale: Tensor, op: str) -> int:
    if scale.layout != torch.strided or scale.is_nested or scale.is_quantized:
        raise ValueError(f"[lacewing.{op}] scale must be a dense tensor")
    if scale.dim() != 1:
        raise ValueError(f"[lacewing.{op}] scale must have 1 dimension, not shape {tuple(scale.shape)}")
    return scale.shape[0]


def sparse_product_info(
    index1: Indices = None,
    index2: Indices = None,
    index: Indices = None,
    scale: Values = None,
    out_size: int | None = None,
) -> SparseProductInfo:
    """The info of the triples (index1[t], index2[t]) -> index[t], sorted by output; see sparse_product_infos."""
    indices = {"index1": index1, "index2": index2, "index": index}
    (info,) = SparseProductInfo._sort("sparse_product_info", scale, indices, {"out_size": out_size}, forward_only=True)
    return info


class SparseProductInfos(NamedTuple):
    """The infos of a product: its value and its two gradients."""

    fwd: SparseProductInfo
    bwd1: SparseProductInfo
    bwd2: SparseProductInfo


def sparse_product_infos(
    index1: Indices = None,
    index2: Indices = None,
    index: Indices = None,
    scale: Values = None,
    out_size: int | None = None,
    in1_size: int | None = None,
    in2_size: int | None = None,
) -> SparseProductInfos:
    """The infos of a product and of its two gradients: ``z[index[t]] += scale[t] * x[index1[t]] o y[index2[t]]``.

    Indices are lists or integer tensors of one length T on any device; None means 0..T-1. Sizes that are not given are
    one more than the largest index. Triples are sorted stably by (output, index1, index2), duplicates stay and add.
    ``scale`` stays in the order given, the sort sits in ``gather_index``.

    >>> infos = sparse_product_infos([0, 1], [1, 0], [0, 0], [1.0, -1.0], 1, 2, 2)
    >>> z = sparse_mul(x, y, infos)  # or sparse_mul(x, y, infos.fwd, infos.bwd1, infos.bwd2)
    """
    indices = {"index1": index1, "index2": index2, "index": index}
    sizes = {"out_size": out_size, "in1_size": in1_size, "in2_size": in2_size}
    return SparseProductInfos(*SparseProductInfo._sort("sparse_product_infos", scale, indices, sizes))


def derive_backward(info: SparseProductInfo, in1_size: int, in2_size: int) -> SparseProductInfos:
    """The info, and those of the two gradients of a product whose inputs have so many rows.

    Works for every info, with gather_index and index_out too. Where gather_index repeats an entry of scale, the derived
    infos have an entry for each term instead, and their scale is gathered (differentiably).
    """
    op = "derive_backward"
    if not isinstance(info, SparseProductInfo):
        raise TypeError(f"[lacewing.{op}] info must be a SparseProductInfo, not {type(info).__name__}")
    sizes: list[Any] = []
    for name, size in (("in1_size", in1_size), ("in2_size", in2_size)):
        if size is None:
            raise TypeError(f"[lacewing.{op}] {name} must be an int, not None")
        sizes.append(as_size(op, name, size))
    with outside_transforms():
        entry, *by_term = ops.backward_plans_by_term(*info._plan, *sizes)
    scale = info.scale if entry is None or info.scale is None else info.scale[entry]
    plans = info._resolved(in1_size)._backward_plans(*sizes) if entry is None else Plan.split(*by_term)
    return SparseProductInfos(info, *(SparseProductInfo._sorted(scale, plan) for plan in plans))


class SparseScaleInfo(_Info):
    """A constant sparse matrix S applied along one dim: ``out[m] = sum for t in segment m of scale[t] * in[index[t]]``.

    ``scale`` (T,) may be None (1), ``index`` (T,) may be None (the identity), ``seg_out`` (out_size + 1,) may be None
    (every t is a row). Checked and copied here, once.

    >>> info = SparseScaleInfo([0.5, 0.5], [0, 1], [0, 2])
    """

    _fields = ("scale", "index", "seg_out", "gather_index", "out_size")

    def __init__(
        self,
        scale: Values = None,
        index: Indices = None,
        seg_out: Indices = None,
        gather_index: Indices = None,
        out_size: int | None = None,
    ) -> None:
        name = type(self).__name__
        fields = {"index": index, "seg_out": seg_out, "gather_index": gather_index}
        self.scale, given = _as_fields(name, scale, **fields)
        self._set(given, as_size(name, "out_size", out_size), [given[0], None, given[1], given[2], None])

    @property
    def index(self) -> Tensor | None:
        """(T,): rows of the input."""
        return self._get("index")


class SparseScaleInfos(NamedTuple):
    """The infos of a constant sparse matrix and of its transpose."""

    fwd: SparseScaleInfo
    bwd: SparseScaleInfo


def sparse_scale_infos(
    index_out: Indices = None,
    index_in: Indices = None,
    scale: Values = None,
    out_size: int | None = None,
    in_size: int | None = None,
) -> SparseScaleInfos:
    """The infos of the matrix with entries ``S[index_out[t], index_in[t]] = scale[t]`` (duplicates add), and of S^T.

    >>> infos = sparse_scale_infos([0, 0], [1, 2], [0.5, 0.5], 1, 3)
    >>> out = sparse_scale(x, infos)
    """
    indices = {"index_in": index_in, "index2": None, "index_out": index_out}
    sizes = {"out_size": out_size, "in_size": in_size}
    return SparseScaleInfos(*SparseScaleInfo._sort("sparse_scale_infos", scale, indices, sizes))


def _register(cls: type[_Info]) -> None:
    def flatten(info: _Info) -> tuple[list[Any], Any]:
        names = list(info._tensors)
        leaves = [info.scale, info._plan.array, *info._tensors.values()]
        return leaves, [names, list(info._plan.sizes), info._out_size, info._open]  # as a saved program has it

    def unflatten(leaves: Any, context: Any) -> _Info:
        info = object.__new__(cls)
        names, sizes, info._out_size, info._open = context
        info.scale, array, *tensors = leaves
        info._tensors = dict(zip(names, tensors, strict=True))
        info._plan, info._derived = Plan(array, tuple(sizes)), {}
        return info

    def flatten_with_keys(info: _Info) -> tuple[list[tuple[Any, Any]], Any]:
        leaves, context = flatten(info)
        names = ("scale", "plan", *context[0])
        return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], context

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"lacewing.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    # So that torch.load takes saved infos with its default, weights_only=True.
    torch.serialization.add_safe_globals([cls])


_register(SparseProductInfo)
_register(SparseScaleInfo)
for _infos in (SparseProductInfos, SparseScaleInfos):
    pytree._register_namedtuple(_infos, serialized_type_name=f"lacewing.{_infos.__name__}")
    torch.serialization.add_safe_globals([_infos])
