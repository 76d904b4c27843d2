"""The whole formula: any number of operands, letters as in einsum, rows over terms, and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ._library import ops
from ._plan import check_tensor, outside_transforms
from .info import Indices, Values, as_index, as_scale, as_size

__all__ = ["Edges", "ProductPlan", "RowLayout", "product", "product_plan"]

EdgeMap = Tensor | Sequence[int] | str | None


class RowLayout(NamedTuple):
    """Rows of unequal extents, in a tensor of shape ``([batch], elements)``.

    ``extent`` and ``stride`` have shape (rows, letters), ``offset`` has (rows,). Without ``offset`` rows lie one after
    the other, without ``stride`` a row is contiguous.
    """

    extent: Any
    offset: Any = None
    stride: Any = None


class _Structure:
    """What plans and edges share: an integer array, the numbers that describe it, and more of the same kind."""

    array: Tensor
    sizes: tuple[int, ...]
    _state: tuple[str, ...]

    @classmethod
    def _of(cls, values: Sequence[Any]) -> Any:
        new = object.__new__(cls)
        for name, value in zip(cls._state, values, strict=True):
            setattr(new, name, value)
        return new

    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in self._state]

    def to(self, device: torch.device | str) -> Any:
        """The same on another device."""
        with outside_transforms():
            return self._of([value.to(device) if isinstance(value, Tensor) else value for value in self._values()])

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.array.device

    def __getstate__(self) -> list[Any]:
        return self._values()

    def __setstate__(self, state: list[Any]) -> None:
        for name, value in zip(self._state, state, strict=True):
            setattr(self, name, value)


class ProductPlan(_Structure):
    """The terms of a product, grouped for its value and all its gradients; made by ``product_plan``."""

    form: str
    scale: Tensor | None
    slots: tuple[int, ...]
    _state = ("array", "sizes", "form", "scale", "slots")

    def explain(self, operands: Sequence[Tensor], edges: Edges | None = None, scale: Values = None) -> str:
        """What a call will do: kernel, operations, bytes, workspace and the order of sums. Operands may be on meta."""
        text: str = ops.product_explain(*_arguments("product_explain", self, operands, edges, scale))
        return text

    def __repr__(self) -> str:
        return f"ProductPlan({self.form.rstrip(';')!r}, terms={self.sizes[0]})"


def _table(op: str, name: str, values: Any, device: torch.device | None) -> Tensor | None:
    if values is None or isinstance(values, Tensor):
        return values
    try:
        with outside_transforms():
            return torch.as_tensor(values, device=device, dtype=torch.long)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"[lacewing.{op}] {name} must be a tensor or a list of integers: {error}") from error


def _home(values: Sequence[Any]) -> torch.device | None:
    """Where the first tensor among values lies."""
    return next((value.device for value in values if isinstance(value, Tensor)), None)


def _sequence(op: str, argument: str, values: Any, count: int) -> list[Any]:
    """Values for each operand; None is none of them."""
    if values is None:
        return [None] * count
    if isinstance(values, Tensor | str) or not isinstance(values, Sequence):
        raise TypeError(f"[lacewing.{op}] {argument} must have an entry for each operand, not {type(values).__name__}")
    if len(values) != count:
        raise ValueError(f"[lacewing.{op}] {argument} has {len(values)} entries for {count} places")
    return list(values)


def _built(op: str, build: Callable[..., Any], *arguments: Any) -> Any:
    if torch.compiler.is_compiling():
        raise RuntimeError(f"[lacewing.{op}] a plan is built from values: build it outside of what is compiled")
    with outside_transforms():
        return build(*arguments, op)


def product_plan(
    form: str,
    index: Sequence[Indices] | None = None,
    out: Indices = None,
    rows: Sequence[int | None] | None = None,
    out_rows: int | None = None,
    scale: Values = None,
    slots: Sequence[int] | None = None,
    layout: Sequence[RowLayout | None] | None = None,
    extents: Mapping[str, int] | None = None,
) -> ProductPlan:
    """The plan of a product written like ``"u,v,uvw->w"``: checked and sorted here, once, for all gradients.

    Term ``t`` takes row ``index[k][t]`` of operand k and adds to row ``out[t]`` of the output. An operand with neither
    index nor rows has one row for all terms, and no dim for it; with ``rows`` alone, term t takes row t. ``rows`` that
    are not given are one more than the largest index. ``scale`` (T,) are the coefficients of calls that give none.
    ``slots`` says for each place of the formula which operand of a call stands there, ``layout`` (operands, then the
    output) describes rows of unequal extents, ``extents`` those of letters that stand in the output alone.

    >>> plan = product_plan("u,v->uv", index=([0, 1], [1, 0]), out=[0, 0], out_rows=1)
    """
    op = "product_plan"
    if not isinstance(form, str):
        raise TypeError(f"[lacewing.{op}] form must be a string, not {type(form).__name__}")
    count = form.split("->")[0].count(",") + 1
    indices = [*_sequence(op, "index", index, count), out]
    home = _home([*indices, scale])
    tables: list[Tensor | None] = []
    for k, rowwise in enumerate(_sequence(op, "layout", layout, count + 1) if layout is not None else []):
        given = RowLayout(None) if rowwise is None else RowLayout(*rowwise)
        tables += [
            _table(op, f"layout[{k}].{name}", getattr(given, name), home) for name in ("offset", "extent", "stride")
        ]
    sizes = [*_sequence(op, "rows", rows, count), out_rows]
    coefficients = as_scale(op, scale, home)
    if coefficients is not None and coefficients.dim() != 1:
        raise ValueError(f"[lacewing.{op}] scale must have shape (T,), not {tuple(coefficients.shape)}")
    names = [*(f"index[{k}]" for k in range(count)), "out"]
    array, numbers, text = _built(
        op,
        ops.plan_terms,
        form,
        [as_index(op, name, values, home) for name, values in zip(names, indices, strict=True)],
        [-1 if size is None else as_size(op, "rows", size) for size in sizes],
        tables,
        "".join(extents or {}),
        list((extents or {}).values()),
        -1 if coefficients is None else coefficients.shape[0],
    )
    places = tuple(range(count) if slots is None else (int(slot) for slot in _sequence(op, "slots", slots, count)))
    plan: ProductPlan = ProductPlan._of((array, tuple(numbers), text, coefficients, places))
    return plan


class Edges(_Structure):
    """The outer level of terms: samples, edges of a graph, entries of a matrix.

    ``maps`` says for each operand which of its batch rows an edge takes, ``out`` to which batch row of the output it
    adds: None is its own (edge e takes row e), ``"shared"`` the same for all (a shared output sums over all edges), a
    list of integers (edges,) gathers rows of an operand and sums rows of the output, in order. ``batch`` and
    ``out_batch`` are the batch rows where a list names them; ``edges`` is their number where no list and no operand
    tells; with ``sorted`` the list of the output is promised not to decrease, which is checked. Each list is sorted
    here, once; one Edges serves many products with as many operands, forward and backward.

    >>> edges = Edges(maps=([0, 1, 1], None), out=[0, 0, 1], batch=(2, None), out_batch=2)
    """

    maps: str
    _state = ("array", "sizes", "maps")

    def __init__(
        self,
        maps: Sequence[EdgeMap],
        out: EdgeMap = None,
        edges: int | None = None,
        batch: Sequence[int | None] | None = None,
        out_batch: int | None = None,
        sorted: bool = False,
    ) -> None:
        op = "Edges"
        count = len(_sequence(op, "maps", maps, len(maps)))
        given = [*maps, out]
        home = _home(given)
        kinds = ""
        lists = []
        for k, entry in enumerate(given):
            name = f"maps[{k}]" if k < count else "out"
            if isinstance(entry, str) and entry != "shared":
                raise ValueError(f'[lacewing.{op}] {name} must be None, "shared" or a list of integers, not {entry!r}')
            kinds += "o" if entry is None else "!" if isinstance(entry, str) else "@"
            lists.append(None if isinstance(entry, str) else as_index(op, name, entry, home))
        sizes = [*_sequence(op, "batch", batch, count), out_batch]
        self.array, numbers = _built(
            op,
            ops.plan_edges,
            lists,
            kinds,
            -1 if edges is None else as_size(op, "edges", edges),
            [-1 if size is None else as_size(op, "batch", size) for size in sizes],
            sorted,
        )
        self.sizes, self.maps = tuple(numbers), kinds

    def __repr__(self) -> str:
        return f"Edges({self.maps!r}, edges={self.sizes[0]})"


def _arguments(
    op: str, plan: ProductPlan, operands: Sequence[Tensor] | Tensor, edges: Edges | None, scale: Values
) -> tuple[Any, ...]:
    """What the ops take."""
    if not isinstance(plan, ProductPlan):
        raise TypeError(f"[lacewing.{op}] plan must be a ProductPlan, not {type(plan).__name__}")
    if edges is not None and not isinstance(edges, Edges):
        raise TypeError(f"[lacewing.{op}] edges must be Edges or None, not {type(edges).__name__}")
    if isinstance(operands, Tensor):
        raise TypeError(f"[lacewing.{op}] operands must be a tuple of tensors, not one tensor")
    for k, operand in enumerate(operands):
        check_tensor(op, f"operands[{k}]", operand)
    wanted = max(plan.slots) + 1
    if len(operands) != wanted or any(slot not in plan.slots for slot in range(wanted)):
        raise ValueError(f"[lacewing.{op}] {plan.form.rstrip(';')!r} takes {wanted} operands, not {len(operands)}")
    places = [operands[slot] for slot in plan.slots]
    if edges is None:
        maps = "?" * (len(places) + 1)
        outer, array = (-1, 0, 0, *(-1 for _ in maps)), plan.array.new_empty(0, dtype=torch.int32)
    else:
        maps, outer, array = edges.maps, edges.sizes, edges.array
        if len(maps) != len(places) + 1:
            raise ValueError(
                f"[lacewing.{op}] the edges have maps for {len(maps) - 1} operands, but {plan.form.rstrip(';')!r} has "
                f"{len(places)}"
            )
    coefficients = plan.scale if scale is None else as_scale(op, scale, plan.array.device)
    return places, coefficients, [plan.array, array], (*plan.sizes, *outer), f"{plan.form}|{maps}", len(places)


def product(plan: ProductPlan, operands: Sequence[Tensor], edges: Edges | None = None, scale: Values = None) -> Tensor:
    """``z[v, M] = sum over edges e with out(e) = v, terms t of row M: s[t] * product over k of a_k[map_k(e), i_k(t)]``.

    Letters of the channels are summed and kept as the plan's form says. An operand has shape ``([batch], [rows],
    *letters)``, or ``([batch], elements)`` where its rows have a layout. Without edges, an operand with a batch has an
    own row for each edge, and one without is shared. dtype: ``torch.result_type`` of the operands; float16 and bfloat16
    accumulate in float32. Differentiable to any order for every operand and for scale. Allocates the output and the
    workspace that ``plan.explain`` tells. Deterministic: the same bits for every run and every number of threads.
    Raises RuntimeError or ValueError with one sentence for what does not fit.

    >>> plan = product_plan("ab,bc,c->a")
    >>> edges = Edges(maps=(None, [0, 1, 1], "shared"), batch=(None, 2, None))
    >>> product(plan, (torch.randn(3, 4, 5), torch.randn(2, 5, 6), torch.randn(6)), edges).shape
    torch.Size([3, 4])
    """
    result: Tensor = ops.product(*_arguments("product", plan, operands, edges, scale))
    return result


def _register(cls: type[_Structure]) -> None:
    def split(value: _Structure) -> tuple[list[Any], Any]:
        values = value._values()
        tensors = [part if isinstance(part, Tensor) else None for part in values]
        return tensors, tuple(None if isinstance(part, Tensor) else part for part in values)

    def join(tensors: Any, context: Any) -> Any:
        parts = zip(tensors, context, strict=True)
        return cls._of([known if tensor is None else tensor for tensor, known in parts])

    def split_with_keys(value: _Structure) -> tuple[list[tuple[Any, Any]], Any]:
        tensors, context = split(value)
        return [(pytree.GetAttrKey(name), part) for name, part in zip(cls._state, tensors, strict=True)], context

    pytree.register_pytree_node(
        cls, split, join, serialized_type_name=f"lacewing.{cls.__name__}", flatten_with_keys_fn=split_with_keys
    )
    # So that torch.load takes saved ones with its default, weights_only=True.
    torch.serialization.add_safe_globals([cls])


_register(ProductPlan)
_register(Edges)
