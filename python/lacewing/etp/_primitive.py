"""Primitives: trainable operations whose weights carry eligibility traces, and their rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from .._plan import check_flag, check_text
from ._arguments import check_callable, plain, plain_values
from ._pattern import SparseMatrix, SparsePattern
from ._units import Quantity, Units

Values = dict[str, Tensor]
Rule = Callable[..., Any]


class Primitive:
    """A trainable operation ``y = impl(x, *values, **params)`` with four rules.

    With ``batched`` all of them take batches, x (B, I), g (B, O), traces (B, ...); without, one sample each, and
    executors map them over the batch.

    ``yw_to_w(g, trace)`` (no reduction), ``xy_to_dw(x, g, values)`` (vector-Jacobian product for the values, summed
    over the batch), ``init_drtrl(x, y, values, states)`` and ``init_pp(x, y, values, states)``. Values and traces are
    dicts: ``"weight"``, and ``"bias"`` where there is one. Rules that were not registered: ``xy_to_dw`` is torch's own
    vjp, and the initial traces are zeros.
    """

    def __init__(
        self, name: str, impl: Rule, batched: bool, trainable: Callable[[Mapping[str, Any]], dict[str, int]]
    ) -> None:
        self.name, self.impl, self.batched, self._trainable = name, impl, batched, trainable
        self._rules: dict[str, Rule] = {}
        self._shipped: tuple[str, dict[str, Rule]] | None = None

    @property
    def overridden(self) -> bool:
        """Whether rules other than those that ship are registered."""
        return self._shipped is not None and self._rules != self._shipped[1]

    def snapshot(self) -> Primitive:
        """The same with the rules of this moment."""
        same = object.__new__(type(self))
        same.__dict__.update(self.__dict__)
        same._rules = dict(self._rules)
        return same

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # Those that ship are found by their name.
        return super().__reduce_ex__(protocol) if self._shipped is None else self._shipped[0]

    def trainable(self, **params: Any) -> dict[str, int]:
        """The place of each trainable value among the arguments of ``impl``."""
        return self._trainable(params)

    def register_etp_rules(
        self,
        *,
        yw_to_w: Rule | None = None,
        xy_to_dw: Rule | None = None,
        init_drtrl: Rule | None = None,
        init_pp: Rule | None = None,
    ) -> None:
        """Sets the rules that are given."""
        rules = {"yw_to_w": yw_to_w, "xy_to_dw": xy_to_dw, "init_drtrl": init_drtrl, "init_pp": init_pp}
        for name, rule in rules.items():
            if rule is not None:
                check_callable(self.name, name, rule)
                self._rules[name] = rule

    def bind(self, x: Tensor, *values: Tensor, **params: Any) -> Tensor:
        """The value of the operation."""
        expected = len(self.trainable(**params))
        if len(values) != expected:
            raise ValueError(f"[lacewing.etp.{self.name}] it has {expected} trainable values, not {len(values)}")
        y: Tensor = self.impl(x, *values, **params)
        return y

    def yw_to_w(self, g: Tensor, trace: Values, **params: Any) -> Values:
        """``out[p] = g[col p] * trace[p]``: g (B, O) or (B, O, S), traces (B, ...) or (B, ..., S), without B for mv."""
        plain(self.name, "g", g)
        plain_values(self.name, "trace", trace)
        if "yw_to_w" not in self._rules:
            raise NotImplementedError(
                f"[lacewing.etp.{self.name}] yw_to_w is not registered: register_etp_rules sets it"
            )
        out: Values = self._rules["yw_to_w"](g, trace, **params)
        return out

    def xy_to_dw(self, x: Tensor, g: Tensor, weights: Values, **params: Any) -> Values:
        """The vector-Jacobian product for the values, summed over the batch."""
        plain(self.name, "x", x)
        plain(self.name, "g", g)
        plain_values(self.name, "weights", weights)
        if "xy_to_dw" in self._rules:
            out: Values = self._rules["xy_to_dw"](x, g, weights, **params)
            return out
        names = list(self.trainable(**params))
        pulled = torch.func.vjp(lambda *values: self.impl(x, *values, **params), *(weights[n] for n in names))
        return dict(zip(names, pulled[1](g), strict=True))

    def init_drtrl(self, x: Tensor, y: Tensor, weights: Values, states: int) -> Values:
        """Zeros (B, *value.shape, S), without B for a vector x, leading dims of x flattened; dtype of the value."""
        plain_values(self.name, "weights", weights)
        if "init_drtrl" in self._rules:
            out: Values = self._rules["init_drtrl"](x, y, weights, states)
            return out
        lead = (math.prod(x.shape[:-1]),) if x.dim() >= 2 else ()
        return {k: torch.zeros(*lead, *w.shape, states, dtype=w.dtype, device=w.device) for k, w in weights.items()}

    def init_pp(self, x: Tensor, y: Tensor, weights: Values, states: int) -> Tensor:
        """Zeros (*y.shape, S), dtype of y."""
        plain(self.name, "y", y)
        if "init_pp" in self._rules:
            out: Tensor = self._rules["init_pp"](x, y, weights, states)
            return out
        return torch.zeros(*y.shape, states, dtype=y.dtype, device=y.device)

    def __repr__(self) -> str:
        return f"Primitive({self.name}, batched={self.batched})"


def _weight_and_bias(params: Mapping[str, Any]) -> dict[str, int]:
    return {"weight": 1, "bias": 2} if params.get("has_bias", False) else {"weight": 1}


def register_primitive(
    name: str,
    impl: Rule,
    batched: bool,
    *,
    trainable: Callable[[Mapping[str, Any]], dict[str, int]] = _weight_and_bias,
    yw_to_w: Rule | None = None,
    xy_to_dw: Rule | None = None,
    init_drtrl: Rule | None = None,
    init_pp: Rule | None = None,
) -> Primitive:
    """A primitive of your own; ``trainable(params)`` maps names to places among the arguments of ``impl``."""
    check_text("etp.register_primitive", "name", name)
    check_callable("register_primitive", "impl", impl)
    check_flag("etp.register_primitive", "batched", batched)
    primitive = Primitive(name, impl, batched, trainable)
    register_etp_rules(primitive, yw_to_w=yw_to_w, xy_to_dw=xy_to_dw, init_drtrl=init_drtrl, init_pp=init_pp)
    return primitive


def register_etp_rules(
    primitive: Primitive,
    *,
    yw_to_w: Rule | None = None,
    xy_to_dw: Rule | None = None,
    init_drtrl: Rule | None = None,
    init_pp: Rule | None = None,
) -> None:
    """Sets the rules of a primitive that are given."""
    if not isinstance(primitive, Primitive):
        raise TypeError(
            f"[lacewing.etp.register_etp_rules] primitive must be a Primitive, not {type(primitive).__name__}"
        )
    primitive.register_etp_rules(yw_to_w=yw_to_w, xy_to_dw=xy_to_dw, init_drtrl=init_drtrl, init_pp=init_pp)


def native(kind: str, sparse_mat: SparsePattern | SparseMatrix | None, has_bias: bool) -> Any:
    """The C++ form of a primitive that ships."""
    handle = _pattern(sparse_mat)._handle if kind == "sparse" else None
    return torch.classes.lacewing.EtpPrimitive(kind, handle, has_bias)


def _shipped(name: str, kind: str, batched: bool) -> Primitive:
    def impl(x: Tensor, *values: Tensor, has_bias: bool = False, sparse_mat: Any = None) -> Tensor:
        named = dict(zip(("weight", "bias"), values, strict=False))
        plain(name, "x", x)
        for key, value in named.items():
            plain(name, key, value)
        if kind == "sparse" and torch.compiler.is_compiling():
            y = _pattern(sparse_mat).matmul(x, named["weight"])
            return y + named["bias"] if has_bias else y
        handle = native(kind, sparse_mat, has_bias)
        handle.check(named)
        out: Tensor = handle.forward(x, named)
        return out

    def yw_to_w(g: Tensor, trace: Values, *, has_bias: bool = False, sparse_mat: Any = None) -> Values:
        handle = native(kind, sparse_mat, has_bias)
        # Without a batch a last dim can only be states; one in front says so where sizes alone would not.
        if batched or kind == "elementwise":
            return _ordered(handle.yw_to_w(g, trace))
        alone = handle.yw_to_w(g.unsqueeze(0), {key: each.unsqueeze(0) for key, each in trace.items()})
        return _ordered({key: each.squeeze(0) for key, each in alone.items()})

    def xy_to_dw(x: Tensor, g: Tensor, weights: Values, *, has_bias: bool = False, sparse_mat: Any = None) -> Values:
        return _ordered(native(kind, sparse_mat, has_bias).xy_to_dw(x, g, weights))

    primitive = register_primitive(name, impl, batched, yw_to_w=yw_to_w, xy_to_dw=xy_to_dw)
    primitive._shipped = f"{name}_p", dict(primitive._rules)
    return primitive


def _ordered(values: Mapping[str, Tensor]) -> Values:
    return {key: values[key] for key in ("weight", "bias") if key in values}


def _pattern(sparse_mat: Any) -> SparsePattern:
    pattern = sparse_mat.pattern if isinstance(sparse_mat, SparseMatrix) else sparse_mat
    if not isinstance(pattern, SparsePattern):
        raise TypeError(
            f"[lacewing.etp.sparse_mm] sparse_mat must be a SparsePattern or SparseMatrix, not {type(pattern).__name__}"
        )
    return pattern


etp_sp_mm_p = _shipped("etp_sp_mm", "sparse", batched=True)
etp_sp_mv_p = _shipped("etp_sp_mv", "sparse", batched=False)
etp_mm_p = _shipped("etp_mm", "dense", batched=True)
etp_mv_p = _shipped("etp_mv", "dense", batched=False)
etp_elementwise_p = _shipped("etp_elementwise", "elementwise", batched=True)


def sparse_matmul(
    x: Tensor | Quantity,
    w_data: Tensor | Quantity,
    sparse_mat: SparsePattern | SparseMatrix,
    bias: Tensor | Quantity | None = None,
) -> Any:
    """``y = x @ sparse(w_data) (+ bias)``: by ``etp_sp_mv_p`` for a vector x, ``etp_sp_mm_p`` otherwise.

    Shapes: x (..., I), w_data (nse,), bias (O,), y (..., O). Differentiable to any order for x, w_data and bias. Where
    arguments are pint quantities the result has unit(x) * unit(w_data), the bias is converted to it (ValueError where
    it cannot be), and a dimensionless result is a plain tensor. Deterministic.
    """
    units = Units.of(x, w_data, bias)
    x_value, w_value, bias_value = units.magnitudes(x, w_data, bias)
    plain("sparse_matmul", "x", x_value)
    plain("sparse_matmul", "w_data", w_value)
    if bias_value is not None:
        plain("sparse_matmul", "bias", bias_value)
    primitive = etp_sp_mm_p if x_value.dim() >= 2 else etp_sp_mv_p
    values = (w_value,) if bias_value is None else (w_value, bias_value)
    y = primitive.bind(x_value, *values, sparse_mat=sparse_mat, has_bias=bias_value is not None)
    return units.attach(y)


def dense_matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y = x @ weight (+ bias)`` with the rules of a dense matrix: weight (I, O)."""
    plain("dense_matmul", "x", x)
    primitive = etp_mm_p if x.dim() >= 2 else etp_mv_p
    values = (weight,) if bias is None else (weight, bias)
    return primitive.bind(x, *values, has_bias=bias is not None)


def elementwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y = x * weight (+ bias)``: weight (O,)."""
    values = (weight,) if bias is None else (weight, bias)
    return etp_elementwise_p.bind(x, *values, has_bias=bias is not None)
