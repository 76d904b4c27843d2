"""A small training loop around an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _callbacks
from ._cells import Cell
from ._executor import Connection, Executor


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
        if update_every is not None and update_every < 1:
            raise ValueError(f"[lacewing.etp.Learner] update_every must be at least 1, not {update_every}")
        self.executor = Executor(cell, input, recurrent, algorithm=algorithm, **options)
        plain = list(readout.parameters()) if isinstance(readout, torch.nn.Module) else []
        self.optimizer = optimizer([*self.executor.parameters(), *plain])
        self._parts = _Parts(readout, loss, self.optimizer)
        self._handle = torch.classes.lacewing.EtpLearner(
            self.executor._handle, _callbacks.register(self._parts), readout is not None, update_every or 0
        )

    def step(self, x: Tensor, target: Tensor | None = None) -> Step:
        """One step of the network; with a target, its gradients as well."""
        return Step(*self._handle.step(x, target))

    def update(self) -> None:
        """The optimizer's step, with the gradients that have added up, and zeroes them."""
        self._handle.update()

    def reset_state(self) -> None:
        """Before a new sequence."""
        self._handle.reset_state()


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
