"""A small training loop around an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._plan import integer
from . import _callbacks
from ._arguments import check_callable, plain, plain_values
from ._cells import Cell
from ._connection import Connection
from ._executor import Executor


class Step(NamedTuple):
    """What a step gives: the readout's output, and the loss where there was a target."""

    output: Tensor
    loss: Tensor | None


class Learner:
    """``Learner(cell, algorithm, optimizer, input=...)``: an executor, a readout, a loss and an optimizer.

    ``optimizer`` takes parameters and gives a torch optimizer: ``lambda p: torch.optim.Adam(p, 1e-3)``. ``readout``
    maps the state (B, O, S) to the output (a module's parameters are trained too, those inside any other function only
    where the optimizer is given them); without one the output is what the cell shows. ``loss(output, target)``: mean
    squared error unless given. ``update_every``: the optimizer steps after so many losses; None leaves it to
    ``update()``.
    """

    def __init__(
        self,
        cell: Cell,
        algorithm: str,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        *,
        input: Connection,
        recurrent: Connection | None = None,
        readout: Callable[[Tensor], Tensor] | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] = torch.nn.functional.mse_loss,
        update_every: int | None = None,
        **options: Any,
    ) -> None:
        if update_every is not None and integer("etp.Learner", "update_every", update_every) < 1:
            raise ValueError(f"[lacewing.etp.Learner] update_every must be at least 1, not {update_every}")
        if not callable(optimizer):
            raise TypeError(
                "[lacewing.etp.Learner] optimizer must be a function from parameters to an optimizer, such as "
                f"lambda p: torch.optim.Adam(p, 1e-3), not a {type(optimizer).__name__}"
            )
        check_callable("Learner", "loss", loss)
        if readout is not None:
            check_callable("Learner", "readout", readout)
        self.executor = Executor(cell, input, recurrent, algorithm=algorithm, **options)
        own = list(readout.parameters()) if isinstance(readout, torch.nn.Module) else []
        self._readout = readout
        self.optimizer = optimizer([*self.executor.parameters(), *own])
        for method in ("step", "zero_grad"):
            if not callable(getattr(self.optimizer, method, None)):
                raise TypeError(
                    f"[lacewing.etp.Learner] optimizer must give something with step() and zero_grad(), not a "
                    f"{type(self.optimizer).__name__}"
                )
        self._parts = _Parts(readout, loss, self.optimizer)
        self._handle = torch.classes.lacewing.EtpLearner(
            self.executor._handle, _callbacks.register(self._parts), readout is not None, update_every or 0
        )

    def step(self, x: Tensor, target: Tensor | None = None) -> Step:
        """One step of the network; with a target, its gradients as well."""
        plain("step", "x", x)
        if target is not None:
            plain("step", "target", target)
        return Step(*self._handle.step(x, target))

    def update(self) -> None:
        """The optimizer's step, with the gradients that have added up, and zeroes them."""
        self._handle.update()

    def reset_state(self) -> None:
        """Before a new sequence."""
        self._handle.reset_state()

    def state_dict(self) -> dict[str, Any]:
        """Executor, optimizer, gradients that have added up, and the readout where it is a module.

        Loading it into a learner that was made alike goes on with the same bits.
        """
        saved: dict[str, Any] = {"executor": dict(self._handle.save())}
        for name, part in self._modules().items():
            saved[name] = part.state_dict()
        saved["gradients"] = [None if p.grad is None else p.grad.clone() for p in self._parameters()]
        return saved

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` gave."""
        if not isinstance(saved, Mapping):
            raise TypeError(f"[lacewing.etp.Learner] a state must be a dict, not {type(saved).__name__}")
        parameters = self._parameters()
        for name in ("executor", *self._modules(), "gradients"):
            if name not in saved:
                raise ValueError(f"[lacewing.etp.Learner] {name} is missing: this was not made by state_dict()")
        if len(saved["gradients"]) != len(parameters):
            raise ValueError(
                f"[lacewing.etp.Learner] gradients has {len(saved['gradients'])} entries, but there are "
                f"{len(parameters)} parameters"
            )
        for k, (parameter, gradient) in enumerate(zip(parameters, saved["gradients"], strict=True)):
            if gradient is not None and gradient.shape != parameter.shape:
                raise ValueError(
                    f"[lacewing.etp.Learner] gradients[{k}] has shape {tuple(gradient.shape)}, but the parameter has "
                    f"shape {tuple(parameter.shape)}"
                )
        plain_values("load", "executor", saved["executor"])
        self._handle.load(dict(saved["executor"]))
        for name, part in self._modules().items():
            part.load_state_dict(saved[name])
        for parameter, gradient in zip(parameters, saved["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.clone()

    def _modules(self) -> dict[str, Any]:
        """What saves itself."""
        parts = {"optimizer": self.optimizer, "readout": self._readout}
        return {name: part for name, part in parts.items() if hasattr(part, "load_state_dict")}

    def _parameters(self) -> list[Tensor]:
        """All that the optimizer steps, in its order."""
        groups = getattr(self.optimizer, "param_groups", None)
        if groups is None:
            return self.executor.parameters()
        return [parameter for group in groups for parameter in group["params"]]


class _Parts:
    """What the learner of C++ calls."""

    def __init__(
        self,
        readout: Callable[[Tensor], Tensor] | None,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.readout, self.loss, self.optimizer = readout, loss, optimizer

    def _call(self, what: str, args: list[Tensor]) -> list[Tensor]:
        if what == "readout" and self.readout is not None:
            return [_callbacks.tensor("Learner", "readout", self.readout(*args))]
        if what == "loss":
            return [_callbacks.tensor("Learner", "loss", self.loss(*args))]
        if what == "step":
            self.optimizer.step()
        else:
            self.optimizer.zero_grad()
        return []
