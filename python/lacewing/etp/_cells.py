"""Cells: the step of a hidden group."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._library import ops
from .._plan import check_flag, check_text, integer
from . import _callbacks
from ._arguments import check_callable, number, parts_of, plain


class Cell:
    """S states of one shape, stacked on the last dim, and their step.

    Not for deriving from: ``FunctionCell`` makes a cell of functions.
    """

    _made: Any = None

    @property
    def _handle(self) -> Any:
        """What C++ runs."""
        if self._made is None:
            raise TypeError(
                f"[lacewing.etp.Cell] {type(self).__name__} derives from Cell, which has no step of its own: "
                "FunctionCell(states, step, output) makes a cell of functions, or of a subclass's methods"
            )
        return self._made

    @property
    def states(self) -> int:
        """S."""
        count: int = self._handle.states()
        return count

    def forward(self, y: Tensor, h: Tensor) -> Tensor:
        """h(t) from y (B, O) and h(t-1) (B, O, S); differentiable."""
        next: Tensor = self._handle.forward(y, h)
        return next

    def output(self, h: Tensor) -> Tensor:
        """What other neurons and readouts see of a state: (B, O, S) -> (B, O)."""
        seen: Tensor = self._handle.output(h)
        return seen

    def linearize(self, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h(t), dh_a/dy (B, O, S) and dh_a(t)/dh_c(t-1) (B, O, S, S), position by position."""
        next, df, decay = self._handle.linearize(y, h)
        return next, df, decay


def handle_of(op: str, cell: object) -> Any:
    """What C++ runs."""
    if not isinstance(cell, Cell):
        raise TypeError(
            f"[lacewing.etp.{op}] cell must be a cell (leaky(), lif(), alif(), gated() or a FunctionCell), not "
            f"{type(cell).__name__}"
        )
    return cell._handle


class _ReadyCell(Cell):
    def __init__(self, kind: str, betas: Tensor | None = None, **options: Any) -> None:
        values: dict[str, Any] = {
            "surrogate": "triangle",
            "reset": "subtract",
            "reset_gradient": False,
            "filtered": False,
            "membrane": 0.9,
            "adaptation": 0.99,
            "filter": 0.9,
            "threshold": 1.0,
            "beta": 0.1,
            "gain": 0.3,
            "width": 1.0,
            "gate_input": 1.0,
            "gate_state": 1.0,
            "gate_bias": 0.0,
            "candidate_state": 1.0,
        }
        values.update(options)
        self.kind, self.options, self.betas = kind, values, betas
        for name in ("surrogate", "reset"):
            check_text(f"etp.{kind}", name, values[name])
        check_flag(f"etp.{kind}", "reset_gradient", values["reset_gradient"])
        words = [kind, values["surrogate"], values["reset"]]
        flags = [int(values["reset_gradient"]), int(values["filtered"])]
        given = {name: values[name] for name in list(values)[4:]}
        by_neuron = {name: value for name, value in given.items() if _is_by_neuron(name, value)}
        numbers = [0.5 if name in by_neuron else number(kind, name, value) for name, value in given.items()]
        self._made = torch.classes.lacewing.EtpCell(words, flags, numbers, betas, by_neuron)

    def __getstate__(self) -> dict[str, Any]:
        return {"kind": self.kind, "betas": self.betas, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind, betas, options = parts_of("Cell", state, "kind", "betas", "options")
        _ReadyCell.__init__(self, kind, betas, **options)


def _is_by_neuron(name: str, value: object) -> bool:
    """Whether a constant is one for each neuron, or learns; those of surrogates are always numbers."""
    return (
        isinstance(value, Tensor)
        and (value.numel() != 1 or value.requires_grad)
        and name not in ("beta", "gain", "width")
    )


def _decay(op: str, argument: str, tau: float | Tensor) -> float | Tensor:
    if isinstance(tau, Tensor) and tau.numel() != 1 and not tau.requires_grad:
        if not tau.gt(0).all():
            raise ValueError(f"[lacewing.etp.{op}] {argument} must be positive for each neuron")
        return torch.exp(-1.0 / tau)
    constant = number(op, argument, tau)
    if not constant > 0:
        raise ValueError(f"[lacewing.etp.{op}] {argument} must be positive, not {constant:g}")
    return math.exp(-1.0 / constant)


def _spiking(
    kind: str, tau: float | Tensor, filter_tau: float | Tensor | None, betas: Tensor | None = None, **options: Any
) -> Cell:
    return _ReadyCell(
        kind,
        betas,
        membrane=_decay(kind, "tau", tau),
        filtered=filter_tau is not None,
        filter=0.0 if filter_tau is None else _decay(kind, "filter_tau", filter_tau),
        **options,
    )


def leaky(tau: float | Tensor = 10.0) -> Cell:
    """Leaky integrator, S = 1: ``v' = exp(-1/tau) v + y``; tau is a number, or (O,) with one for each neuron."""
    return _ReadyCell("leaky", membrane=_decay("leaky", "tau", tau))


def lif(
    tau: float | Tensor = 20.0,
    *,
    threshold: float | Tensor = 1.0,
    reset: str = "subtract",
    reset_gradient: bool = False,
    surrogate: str = "triangle",
    gain: float = 0.3,
    width: float = 1.0,
    filter_tau: float | Tensor | None = None,
) -> Cell:
    """Leaky integrate-and-fire, S = 1: ``v' = exp(-1/tau) v + y - threshold z`` with ``z = [v > threshold]``.

    ``filter_tau`` adds a last state r that filters the spikes z' of the new state: ``r' = f r + (1 - f) z'`` with
    f = exp(-1/filter_tau). ``reset``: ``"subtract"``, ``"to_zero"`` or ``"none"``;
    ``reset_gradient``: whether derivatives flow through it; not, as in e-prop, unless asked, and then the trace of v is
    the same for all weights of an input, so that D-RTRL keeps one state less for each weight. ``surrogate``, with
    u = (v - threshold) / width and m = abs(u): ``"triangle"`` gain max(0, 1 - m), ``"fast_sigmoid"`` gain / (1 + m)^2,
    ``"arctan"`` gain / (1 + u^2), ``"gaussian"`` gain exp(-u^2 / 2), ``"boxcar"`` gain [m < 1].

    ``tau``, ``filter_tau`` and ``threshold`` are numbers, or (O,) with one for each neuron; a threshold that requires
    grad learns by its same-step gradient. Tensors cost the fused kernel: the step is composed of torch's ops then.
    """
    return _spiking(
        "lif",
        tau,
        filter_tau,
        threshold=threshold,
        reset=reset,
        reset_gradient=reset_gradient,
        surrogate=surrogate,
        gain=gain,
        width=width,
    )


def alif(
    tau: float | Tensor = 20.0,
    adaptation_tau: float | Tensor = 200.0,
    beta: float | Tensor = 0.1,
    *,
    threshold: float | Tensor = 1.0,
    reset: str = "subtract",
    reset_gradient: bool = False,
    surrogate: str = "triangle",
    gain: float = 0.3,
    width: float = 1.0,
    filter_tau: float | Tensor | None = None,
) -> Cell:
    """Adaptive LIF, S = 2: the threshold is raised by ``beta a``, with ``a' = exp(-1/adaptation_tau) a + z``.

    ``beta`` is a number, or (O,) with one for each neuron (0 makes it a plain LIF), which learn where they require
    grad; the fused kernel takes those that do not. The rest as for ``lif``.
    """
    betas = beta if isinstance(beta, Tensor) and beta.dim() > 0 else None
    return _spiking(
        "alif",
        tau,
        filter_tau,
        betas,
        adaptation=_decay("alif", "adaptation_tau", adaptation_tau),
        beta=0.0 if betas is not None else beta,
        threshold=threshold,
        reset=reset,
        reset_gradient=reset_gradient,
        surrogate=surrogate,
        gain=gain,
        width=width,
    )


def gated(
    gate_input: float | Tensor = 1.0,
    gate_state: float | Tensor = 1.0,
    gate_bias: float | Tensor = 0.0,
    candidate_state: float | Tensor = 1.0,
) -> Cell:
    """Position-wise gated cell, S = 1; constants are numbers, or (O,) each, which learn where they require grad.

    ``h' = h + z (tanh(y + candidate_state h) - h)`` with
    ``z = sigmoid(gate_input y + gate_state h + gate_bias)``.
    """
    return _ReadyCell(
        "gated", gate_input=gate_input, gate_state=gate_state, gate_bias=gate_bias, candidate_state=candidate_state
    )


class FunctionCell(Cell):
    """A cell of your own: ``step(y, h)`` gives the new state, ``output(h)`` what is seen (if not given, the first).

    Derivatives come from autograd. The executor checks that positions do not mix. Parameters that the functions use get
    their same-step gradient.

    >>> cell = FunctionCell(1, lambda y, h: torch.tanh(0.9 * h + y.unsqueeze(-1)))
    """

    def __init__(
        self,
        states: int,
        step: Callable[[Tensor, Tensor], Tensor],
        output: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        check_callable("FunctionCell", "step", step)
        if output is not None:
            check_callable("FunctionCell", "output", output)
        count = integer("etp.FunctionCell", "states", states)
        self._step, self._output = step, output
        self._made = torch.classes.lacewing.EtpCell.callback(_callbacks.register(self), count)

    def _call(self, what: str, args: list[Tensor]) -> list[Tensor]:
        if what == "forward":
            return [_callbacks.tensor("FunctionCell", "step", self._step(*args))]
        if self._output is None:
            return [args[0].select(-1, 0)]
        return [_callbacks.tensor("FunctionCell", "output", self._output(args[0]))]

    def __getstate__(self) -> dict[str, Any]:
        return {"states": self.states, "step": self._step, "output": self._output}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FunctionCell.__init__(self, *parts_of("FunctionCell", state, "states", "step", "output"))


def spike(x: Tensor, surrogate: str = "triangle", gain: float = 0.3, width: float = 1.0) -> Tensor:
    """``[x > 0]`` with a surrogate derivative; see ``lif``."""
    plain("spike", "x", x)
    check_text("etp.spike", "surrogate", surrogate)
    z: Tensor = ops.etp_spike(x, surrogate, number("spike", "gain", gain), number("spike", "width", width))
    return z
