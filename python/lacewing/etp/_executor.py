"""Executors: gradients over time, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .._library import ops
from . import _callbacks
from ._cells import Cell
from ._pattern import SparseMatrix, SparsePattern
from ._primitive import Primitive, Values, native

_ALGORITHMS = ("d-rtrl", "pp-prop")


class Analysis(NamedTuple):
    """What an algorithm makes of a cell: ``"exact"``, ``"approximate"`` or ``"refused"``, and why."""

    exactness: str
    reason: str


def _algorithm(op: str, name: str) -> str:
    if name not in _ALGORITHMS:
        raise ValueError(f'[lacewing.etp.{op}] algorithm must be "d-rtrl" or "pp-prop", not "{name}"')
    return name


def alpha_of_rank(rank: int) -> float:
    """The alpha of pp-prop for an integer rank r >= 1: (r - 1) / (r + 1)."""
    alpha: float = ops.etp_alpha_of_rank(rank)
    return alpha


class Connection:
    """A primitive with its values, which become leaves that require grad: gradients are added to their ``.grad``.

    ``Connection(pattern, weight, bias)`` is sparse, ``Connection.dense`` and ``Connection.elementwise`` the others that
    ship, and ``Connection.of(primitive, values, outputs)`` one of your own.
    """

    values: Mapping[str, Tensor]
    _handle: Any
    _again: tuple[Callable[..., Connection], tuple[Any, ...], dict[str, Any]]

    def __init__(self, pattern: SparsePattern | SparseMatrix, weight: Tensor, bias: Tensor | None = None) -> None:
        self._set(native("sparse", pattern, bias is not None), weight, bias)
        self._again = Connection, (pattern, weight, bias), {}

    def _set(self, handle: Any, weight: Tensor, bias: Tensor | None) -> None:
        self._handle = handle
        # Read-only: an executor goes on with the tensors that it was made with.
        self.values = MappingProxyType({"weight": weight} if bias is None else {"weight": weight, "bias": bias})

    def __reduce__(self) -> tuple[Any, ...]:
        function, args, keywords = self._again
        return partial(function, **keywords), args

    @classmethod
    def dense(cls, weight: Tensor, bias: Tensor | None = None) -> Connection:
        """``y = x @ weight (+ bias)``: weight (I, O)."""
        connection = object.__new__(cls)
        connection._set(native("dense", None, bias is not None), weight, bias)
        connection._again = Connection.dense, (weight, bias), {}
        return connection

    @classmethod
    def elementwise(cls, weight: Tensor, bias: Tensor | None = None) -> Connection:
        """``y = x * weight (+ bias)``: weight (O,)."""
        connection = object.__new__(cls)
        connection._set(native("elementwise", None, bias is not None), weight, bias)
        connection._again = Connection.elementwise, (weight, bias), {}
        return connection

    @classmethod
    def of(cls, primitive: Primitive, values: Mapping[str, Tensor], outputs: int, **params: Any) -> Connection:
        """A registered primitive with so many outputs, by its rules; ``params`` go to all of them."""
        connection = object.__new__(cls)
        rules = _Rules(primitive, params)
        connection._rules = rules
        connection._handle = torch.classes.lacewing.EtpPrimitive.callback(
            _callbacks.register(rules), primitive.name, rules.names, outputs
        )
        connection.values = MappingProxyType(dict(values))
        connection._again = Connection.of, (primitive, dict(values), outputs), params
        return connection

    _rules: Any = None


class _Rules:
    """A primitive of Python's as the executors call it: tensors in the order of its trainable values."""

    def __init__(self, primitive: Primitive, params: Mapping[str, Any]) -> None:
        self.primitive, self.params = primitive, dict(params)
        # C++ maps run in the order of their keys.
        self.names = sorted(primitive.trainable(**params))
        self.places = primitive.trainable(**params)

    def _call(self, what: str, args: list[Tensor]) -> list[Tensor]:
        count = len(args) - len(self.names)
        first, values = args[:count], dict(zip(self.names, args[count:], strict=True))
        primitive, params = self.primitive, self.params
        if what == "forward":
            ordered = (values[n] for n in sorted(self.names, key=self.places.__getitem__))
            return [_callbacks.tensor(primitive.name, "impl", primitive.bind(*first, *ordered, **params))]
        if what == "each_xy_to_dw":
            x, g = first
            each = [self._listed("xy_to_dw", primitive.xy_to_dw(x[b], g[b], values, **params)) for b in range(len(x))]
            return [torch.stack(one) for one in zip(*each, strict=True)]
        if what == "xy_to_dw":
            found = primitive.xy_to_dw(first[0], first[1], values, **params)
        elif what == "yw_to_w":
            found = primitive.yw_to_w(first[0], values, **params)
        else:
            found = primitive.init_drtrl(first[0], first[1], values, int(first[2]))
        return self._listed(what, found)

    def _listed(self, rule: str, found: Any) -> list[Tensor]:
        if not isinstance(found, Mapping) or not all(isinstance(found.get(name), Tensor) for name in self.names):
            raise TypeError(
                f"[lacewing.etp.{self.primitive.name}] {rule} must give a dict with a tensor for each of "
                f"{', '.join(self.names)}, not {found!r}"
            )
        return [found[name] for name in self.names]


def analyze(cell: Cell, neurons: int, *, recurrent: bool = False, algorithm: str = "d-rtrl", like: Tensor) -> Analysis:
    """Whether the gradients of an algorithm are those of back-propagation through time, for this cell, and why.

    A cell of your own is run on random states of ``like``'s dtype and device: its Jacobian from an all-ones cotangent
    is compared with one from random signs, which differ where positions mix (a layer norm, say).
    """
    return Analysis(*cell._handle.analyze(neurons, recurrent, _algorithm("analyze", algorithm), like))


class Executor:
    """Trains ``y(t) = input(x(t)) + recurrent(output(h(t-1)))``, ``h(t) = cell(y(t), h(t-1))`` online.

    ``algorithm``: ``"d-rtrl"`` (one trace for each weight; exact where the recurrence is diagonal by position) or
    ``"pp-prop"`` (traces for inputs and outputs; ``alpha`` in [0, 1), or an int rank r for (r - 1) / (r + 1)).
    ``analysis`` says whether gradients are exact or approximate; a cell that mixes positions is refused unless
    ``allow_approximate``. With ``check_finite``, a state that is not finite raises, with the step and the neuron.
    ``absorb_every`` (1 to 8, D-RTRL): the trace takes so many steps in one pass over it, which is faster. Beyond 1 the
    derivatives of those steps are kept meanwhile, and ``.grad`` is complete after every so many steps and after
    ``flush()``. The gradients have the same bits.
    """

    def __init__(
        self,
        cell: Cell,
        input: Connection,
        recurrent: Connection | None = None,
        *,
        algorithm: str = "d-rtrl",
        alpha: float | int = 0.9,
        allow_approximate: bool = False,
        check_finite: bool = False,
        absorb_every: int = 1,
    ) -> None:
        self.cell, self.input, self.recurrent = cell, input, recurrent
        self._handle = torch.classes.lacewing.EtpExecutor(
            cell._handle,
            input._handle,
            dict(input.values),
            None if recurrent is None else recurrent._handle,
            {} if recurrent is None else dict(recurrent.values),
            _algorithm("Executor", algorithm),
            alpha_of_rank(alpha) if isinstance(alpha, int) and algorithm == "pp-prop" else float(alpha),
            allow_approximate,
            check_finite,
            absorb_every,
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "[lacewing.etp.Executor] an executor cannot be copied or pickled: make another over the same connections "
            "and give it state_dict()"
        )

    @property
    def analysis(self) -> Analysis:
        """Exact or approximate, and why."""
        return Analysis(*self._handle.analysis())

    def parameters(self) -> list[Tensor]:
        """The traced values, for an optimizer."""
        parts = [self.input] if self.recurrent is None else [self.input, self.recurrent]
        return [value for part in parts for value in part.values.values()]

    def step(self, x: Tensor) -> Tensor:
        """h(t): (B, O, S) for x (B, I), or (O, S) for x (I,). Build a loss on it and call ``backward``.

        The trace is rolled by that call, in one pass with its contraction, or by the next step. h shares its memory
        with the state: it must not be changed in place, and that memory is used again once you have let h go.
        """
        h: Tensor = self._handle.step(x)
        return h

    def states(self) -> list[Tensor]:
        """The S states of the last step one by one, (B, O) each, for losses that reach only some of them.

        Slicing h gives the same gradients, through zeros for all other states.
        """
        found: list[Tensor] = self._handle.states()
        return found

    def window(self, x: Tensor) -> Tensor:
        """H of k steps, (k, B, O, S), for x (k, B, I).

        Ordinary autograd inside the window, and the trace for what lies before it.
        """
        h: Tensor = self._handle.window(x)
        return h

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of a loss on what the last ``step`` or ``window`` returned.

        Other leaves that the loss reaches (a readout, a parameter of the cell, what x depends on) get their ordinary
        same-step gradient. Weights whose ``requires_grad`` was switched off get none. ``loss.backward()`` instead, and
        a loss on an earlier step, are errors: the weights would learn nothing from it.
        """
        self._handle.backward(loss)

    def output(self, h: Tensor) -> Tensor:
        """What readouts and other neurons see of a state."""
        seen: Tensor = self._handle.output(h)
        return seen

    def flush(self) -> None:
        """With ``absorb_every`` > 1: the gradients of all losses so far are in ``.grad`` afterwards."""
        self._handle.flush()

    def reset_state(self) -> None:
        """Forgets the state and zeroes the trace."""
        self._handle.reset_state()

    @property
    def state(self) -> Tensor | None:
        """The last state, detached."""
        h: Tensor | None = self._handle.state()
        return h

    @property
    def steps(self) -> int:
        """Steps since the last reset."""
        count: int = self._handle.steps()
        return count

    @property
    def trace_elements(self) -> int:
        """Elements that the traces hold."""
        count: int = self._handle.trace_elements()
        return count

    def traces(self) -> Values:
        """Copies. D-RTRL: ``"input.weight"`` (B, nnz, S) ...; pp-prop: ``"input.x"`` (B, I) ..., ``"f"`` (B, O, S)."""
        return dict(self._handle.traces())

    def state_dict(self) -> Values:
        """State, traces and counters. Loading them goes on with the same bits."""
        return dict(self._handle.save())

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Restores what ``state_dict`` gave; where that does not fit, the executor is as after ``reset_state``."""
        self._handle.load(dict(saved))
