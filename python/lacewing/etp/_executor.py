"""Executors: gradients over time, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from .._library import ops
from .._plan import check_flag, integer
from ._arguments import number, plain, plain_values
from ._cells import Cell, handle_of
from ._connection import Connection
from ._primitive import Values

_ALGORITHMS = ("d-rtrl", "pp-prop")


class Analysis(NamedTuple):
    """What an algorithm makes of a cell: ``"exact"``, ``"approximate"`` or ``"refused"``, and why."""

    exactness: str
    reason: str


def _algorithm(op: str, name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f'[lacewing.etp.{op}] algorithm must be "d-rtrl" or "pp-prop", not a {type(name).__name__}')
    if name not in _ALGORITHMS:
        raise ValueError(f'[lacewing.etp.{op}] algorithm must be "d-rtrl" or "pp-prop", not "{name}"')
    return name


def alpha_of_rank(rank: int) -> float:
    """The alpha of pp-prop for an integer rank r >= 1: (r - 1) / (r + 1)."""
    alpha: float = ops.etp_alpha_of_rank(integer("etp.alpha_of_rank", "rank", rank))
    return alpha


def analyze(cell: Cell, neurons: int, *, recurrent: bool = False, algorithm: str = "d-rtrl", like: Tensor) -> Analysis:
    """Whether the gradients of an algorithm are those of back-propagation through time, for this cell, and why.

    A cell of your own is run on random states of ``like``'s dtype and device: its Jacobian from an all-ones cotangent
    is compared with one from random signs, which differ where positions mix (a layer norm, say). ``recurrent``: there
    are recurrent weights between neurons; an executor also knows those that lead from a neuron to itself alone.
    """
    check_flag("etp.analyze", "recurrent", recurrent)
    plain("analyze", "like", like)
    count = integer("etp.analyze", "neurons", neurons)
    return Analysis(*handle_of("analyze", cell).analyze(count, recurrent, _algorithm("analyze", algorithm), like))


def _connection(argument: str, value: object) -> Connection:
    if not isinstance(value, Connection):
        raise TypeError(f"[lacewing.etp.Executor] {argument} must be a Connection, not {type(value).__name__}")
    return value


class Executor:
    """Trains ``y(t) = input(x(t)) + recurrent(output(h(t-1)))``, ``h(t) = cell(y(t), h(t-1))`` online.

    ``algorithm``: ``"d-rtrl"`` (one trace for each weight; exact where the recurrence is diagonal by position) or
    ``"pp-prop"`` (traces for inputs and outputs; ``alpha`` in [0, 1), or an int rank r for (r - 1) / (r + 1)).
    ``analysis`` says whether gradients are exact or approximate; a cell that mixes positions is refused unless
    ``allow_approximate``. With ``check_finite``, a state that is not finite raises, with the step and the neuron.
    ``absorb_every`` (1 to 8, D-RTRL): the trace takes so many steps in one pass over it, which is faster. Beyond 1 the
    derivatives of those steps are kept meanwhile, and ``.grad`` is complete after every so many steps and after
    ``flush()``. The gradients have the same bits. Calls of several threads take turns, one after the other.
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
        handle = handle_of("Executor", cell)
        first = _connection("input", input)
        again = None if recurrent is None else _connection("recurrent", recurrent)
        check_flag("etp.Executor", "allow_approximate", allow_approximate)
        check_flag("etp.Executor", "check_finite", check_finite)
        self.cell, self.input, self.recurrent = cell, first, again
        first_handle, first_rules = first.parts()
        again_handle, again_rules = (None, None) if again is None else again.parts()
        self._rules = first_rules, again_rules  # C++ calls them by number
        self._handle = torch.classes.lacewing.EtpExecutor(
            handle,
            first_handle,
            dict(first.values),
            again_handle,
            {} if again is None else dict(again.values),
            first.frozen,
            [] if again is None else again.frozen,
            _algorithm("Executor", algorithm),
            alpha_of_rank(alpha)
            if isinstance(alpha, int) and algorithm == "pp-prop"
            else number("Executor", "alpha", alpha),
            allow_approximate,
            check_finite,
            integer("etp.Executor", "absorb_every", absorb_every),
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
        with the state: it must not be changed in place, and that memory is used again once you have let h go. Under
        ``torch.no_grad()`` the network runs alone, which is faster: as in autograd, no gradient flows back across such
        a step, and the traces begin anew with the next one.
        """
        if x is not None:
            plain("step", "x", x)
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
        if x is not None:
            plain("window", "x", x)
        h: Tensor = self._handle.window(x)
        return h

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of a loss on what the last ``step`` or ``window`` returned.

        Other leaves that the loss reaches (a readout, a parameter of the cell, what x depends on) get their ordinary
        same-step gradient. Weights whose ``requires_grad`` was switched off get none. ``loss.backward()`` instead, and
        a loss on an earlier step, are errors: the weights would learn nothing from it.
        """
        plain("backward", "loss", loss)
        self._handle.backward(loss)

    def output(self, h: Tensor) -> Tensor:
        """What readouts and other neurons see of a state."""
        plain("output", "h", h)
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
        """Copies. D-RTRL: ``"input.weight"`` (B, nse, S) ...; pp-prop: ``"input.x"`` (B, I) ..., ``"f"`` (B, O, S)."""
        return dict(self._handle.traces())

    def state_dict(self) -> Values:
        """Values, state, traces and counters. Loading them goes on with the same bits."""
        return dict(self._handle.save())

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Restores what ``state_dict`` gave; without the values in it those at hand stay.

        Where it does not fit, the executor is as after ``reset_state``, and its values are as they were.
        """
        plain_values("load", "state_dict", saved)
        self._handle.load(dict(saved))
