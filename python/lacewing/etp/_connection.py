"""Connections: primitives with their values, as executors take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .._plan import integer
from . import _callbacks
from ._arguments import plain_values
from ._pattern import SparseMatrix, SparsePattern
from ._primitive import Primitive, etp_elementwise_p, etp_mm_p, etp_sp_mm_p, native


class Connection:
    """A primitive with its values, which become leaves that require grad: gradients are added to their ``.grad``.

    ``Connection(pattern, weight, bias)`` is sparse, ``Connection.dense`` and ``Connection.elementwise`` the others that
    ship, and ``Connection.of(primitive, values, outputs)`` one of your own. ``frozen`` values stay as they are, those
    of a reservoir: True for all, or their names. An ``nn.Parameter`` that requires no grad is frozen too, and so is any
    value whose ``requires_grad`` is switched off once the connection is made: before, it is off in every fresh tensor.
    """

    values: Mapping[str, Tensor]
    primitive: Primitive
    _again: tuple[Callable[..., Connection], tuple[Any, ...], dict[str, Any]]

    def __init__(
        self,
        pattern: SparsePattern | SparseMatrix,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        frozen: bool | Iterable[str] = False,
    ) -> None:
        self._native = native("sparse", pattern, bias is not None)
        outputs = (pattern.pattern if isinstance(pattern, SparseMatrix) else pattern).shape[1]
        self._ship(etp_sp_mm_p, outputs, weight, bias, frozen, sparse_mat=pattern)
        self._again = Connection, (pattern, weight, bias), {}

    def _ship(
        self,
        primitive: Primitive,
        outputs: int | None,
        weight: Tensor,
        bias: Tensor | None,
        frozen: bool | Iterable[str],
        **params: Any,
    ) -> None:
        values = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        plain_values("Connection", "values", values)
        if outputs is None:  # the executor checks the shape
            outputs = weight.shape[-1] if weight.dim() > 0 else 0
        self._set(primitive, values, outputs, frozen, {"has_bias": bias is not None, **params})

    def _set(
        self,
        primitive: Primitive,
        values: Mapping[str, Tensor],
        outputs: int,
        frozen: bool | Iterable[str],
        params: Mapping[str, Any],
    ) -> None:
        self.primitive = primitive
        # Read-only: an executor goes on with the tensors that it was made with.
        self.values = MappingProxyType(dict(values))
        self._outputs, self._params = outputs, dict(params)
        if isinstance(frozen, str) or not isinstance(frozen, (bool, Iterable)):
            raise TypeError(f"[lacewing.etp.Connection] frozen must be a bool or a list of names, not {frozen!r}")
        kept = set(values if frozen is True else () if frozen is False else frozen)
        if unknown := sorted(kept - set(values)):
            raise ValueError(f"[lacewing.etp.Connection] {unknown[0]} is frozen, but there is no such value")
        for name, value in values.items():
            if not value.is_leaf or not value.is_floating_point():
                continue  # the executor refuses it
            if name in kept:
                value.requires_grad_(False)
            elif not isinstance(value, torch.nn.Parameter):
                value.requires_grad_()

    def parts(self) -> tuple[Any, Rules | None]:
        """What C++ runs, and the rules that it calls meanwhile, as they are registered now: keep a reference to them.

        Rules that were registered over those that ship are called like those of the user.
        """
        if self._native is not None and not self.primitive.overridden:
            return self._native, None
        rules = Rules(self.primitive.snapshot(), self._params)
        return torch.classes.lacewing.EtpPrimitive.callback(
            _callbacks.register(rules), self.primitive.name, rules.names, self._outputs
        ), rules

    @property
    def frozen(self) -> list[str]:
        """The names of the values that do not learn."""
        return sorted(name for name, value in self.values.items() if not value.requires_grad)

    def __reduce__(self) -> tuple[Any, ...]:
        function, args, keywords = self._again
        return partial(function, frozen=self.frozen, **keywords), args

    @classmethod
    def dense(cls, weight: Tensor, bias: Tensor | None = None, *, frozen: bool | Iterable[str] = False) -> Connection:
        """``y = x @ weight (+ bias)``: weight (I, O)."""
        return cls._of_kind("dense", etp_mm_p, weight, bias, frozen)

    @classmethod
    def elementwise(
        cls, weight: Tensor, bias: Tensor | None = None, *, frozen: bool | Iterable[str] = False
    ) -> Connection:
        """``y = x * weight (+ bias)``: weight (O,)."""
        return cls._of_kind("elementwise", etp_elementwise_p, weight, bias, frozen)

    @classmethod
    def _of_kind(
        cls, kind: str, primitive: Primitive, weight: Tensor, bias: Tensor | None, frozen: bool | Iterable[str]
    ) -> Connection:
        connection = object.__new__(cls)
        connection._native = native(kind, None, bias is not None)
        connection._ship(primitive, None, weight, bias, frozen)
        connection._again = getattr(Connection, kind), (weight, bias), {}
        return connection

    @classmethod
    def of(
        cls,
        primitive: Primitive,
        values: Mapping[str, Tensor],
        outputs: int,
        *,
        frozen: bool | Iterable[str] = False,
        **params: Any,
    ) -> Connection:
        """A registered primitive with so many outputs, by its rules; ``params`` go to all of them."""
        if not isinstance(primitive, Primitive):
            raise TypeError(
                f"[lacewing.etp.Connection] primitive must be a Primitive (see register_primitive), not "
                f"{type(primitive).__name__}"
            )
        plain_values("Connection", "values", values)
        connection = object.__new__(cls)
        connection._native = None
        connection._set(primitive, values, integer("etp.Connection", "outputs", outputs), frozen, params)
        connection._again = Connection.of, (primitive, dict(values), outputs), params
        return connection

    _native: Any


class Rules:
    """A primitive of Python's as the executors call it: tensors in the order of its trainable values, batches first.

    Rules of one sample, and those that an executor needs for each sample of a batch, are mapped over the batch in one
    call where torch.vmap can, and called for one sample after the other where it cannot.
    """

    def __init__(self, primitive: Primitive, params: Mapping[str, Any]) -> None:
        self.primitive, self.params = primitive, dict(params)
        # C++ maps run in the order of their keys.
        self.places = primitive.trainable(**params)
        self.names = sorted(self.places)
        self._one_by_one: set[str] = set()

    def _call(self, what: str, args: list[Tensor]) -> list[Tensor]:
        count = len(args) - len(self.names)
        first, values = args[:count], dict(zip(self.names, args[count:], strict=True))
        answer: list[Tensor] = getattr(self, f"_{what}")(*first, values)
        return answer

    def _forward(self, x: Tensor, values: dict[str, Tensor]) -> list[Tensor]:
        ordered = [values[name] for name in sorted(self.names, key=self.places.__getitem__)]

        def impl(x: Tensor) -> list[Tensor]:
            y = self.primitive.bind(x, *ordered, **self.params)
            return [_callbacks.tensor(self.primitive.name, "impl", y)]

        return impl(x) if self.primitive.batched else self._each("impl", impl, x)

    def _xy_to_dw(self, x: Tensor, g: Tensor, values: dict[str, Tensor]) -> list[Tensor]:
        if not self.primitive.batched:
            return [each.sum(0) for each in self._each_xy_to_dw(x, g, values)]
        return self._listed("xy_to_dw", self.primitive.xy_to_dw(x, g, values, **self.params))

    def _each_xy_to_dw(self, x: Tensor, g: Tensor, values: dict[str, Tensor]) -> list[Tensor]:
        def rule(x: Tensor, g: Tensor) -> list[Tensor]:
            one = (x.unsqueeze(0), g.unsqueeze(0)) if self.primitive.batched else (x, g)
            return self._listed("xy_to_dw", self.primitive.xy_to_dw(*one, values, **self.params))

        return self._each("xy_to_dw", rule, x, g)

    def _yw_to_w(self, g: Tensor, traces: dict[str, Tensor]) -> list[Tensor]:
        def rule(g: Tensor, *each: Tensor) -> list[Tensor]:
            trace = dict(zip(self.names, each, strict=True))
            return self._listed("yw_to_w", self.primitive.yw_to_w(g, trace, **self.params))

        given = [traces[name] for name in self.names]
        return rule(g, *given) if self.primitive.batched else self._each("yw_to_w", rule, g, *given)

    def _init_drtrl(self, x: Tensor, y: Tensor, states: Tensor, values: dict[str, Tensor]) -> list[Tensor]:
        if self.primitive.batched:
            return self._listed("init_drtrl", self.primitive.init_drtrl(x, y, values, int(states)))
        one = (x.new_zeros(x.shape[1:]), y.new_zeros(y.shape[1:]))
        found = self._listed("init_drtrl", self.primitive.init_drtrl(*one, values, int(states)))
        return [each.expand(len(x), *each.shape) for each in found]

    def _init_pp(self, x: Tensor, y: Tensor, states: Tensor, values: dict[str, Tensor]) -> list[Tensor]:
        if self.primitive.batched:
            found = self.primitive.init_pp(x, y, values, int(states))
            return [_callbacks.tensor(self.primitive.name, "init_pp", found)]
        one = (x.new_zeros(x.shape[1:]), y.new_zeros(y.shape[1:]))
        found = self.primitive.init_pp(*one, values, int(states))
        return [_callbacks.tensor(self.primitive.name, "init_pp", found).expand(len(x), *found.shape)]

    def _each(self, name: str, rule: Callable[..., list[Tensor]], *batches: Tensor) -> list[Tensor]:
        """What a rule of one sample gives for each sample of a batch."""
        if len(batches[0]) == 0:
            return [found[:0] for found in self._each(name, rule, *(b.new_zeros(1, *b.shape[1:]) for b in batches))]
        if name not in self._one_by_one:
            try:
                return list(torch.vmap(rule)(*batches))
            except Exception:  # whatever a rule cannot do with a mapped tensor; its own errors come again below
                self._one_by_one.add(name)
        each = [rule(*sample) for sample in zip(*batches, strict=True)]
        return [torch.stack(found) for found in zip(*each, strict=True)]

    def _listed(self, rule: str, found: Any) -> list[Tensor]:
        if not isinstance(found, Mapping) or not all(isinstance(found.get(name), Tensor) for name in self.names):
            raise TypeError(
                f"[lacewing.etp.{self.primitive.name}] {rule} must give a dict with a tensor for each of "
                f"{', '.join(self.names)}, not {found!r}"
            )
        if len(found) != len(self.names):
            raise TypeError(
                f"[lacewing.etp.{self.primitive.name}] {rule} must give {', '.join(self.names)} alone, not also "
                f"{', '.join(sorted(set(found) - set(self.names)))}"
            )
        return [found[name] for name in self.names]
