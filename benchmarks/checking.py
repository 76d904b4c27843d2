"""Results are compared with an fp64 oracle before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Contender


class WrongResultError(RuntimeError):
    """A contender's result is too far from the oracle's."""


def max_relative_error(got: Tensor, want: Tensor) -> float:
    """max |got - want| over max |want|; infinite where shapes differ or a value is not finite."""
    if got.shape != want.shape:
        return float("inf")
    if want.numel() == 0:
        return 0.0
    error = (got.to(want.dtype) - want).abs().max()
    if not torch.isfinite(error):
        return float("inf")
    return float(error / want.abs().max().clamp_min(torch.finfo(want.dtype).tiny))


def check_contenders(
    contenders: Mapping[str, Contender],
    inputs: Any,
    oracle: Callable[[Any], Sequence[Tensor]],
    tolerances: Sequence[float],
    readers: Mapping[str, Callable[[Any], Sequence[Tensor]]] | None = None,
) -> dict[str, list[float]]:
    """The error of each result of each contender; raises where one exceeds its tolerance.

    A reader turns what a contender returns into tensors, where it returns something else.
    """
    wanted = oracle(inputs)
    errors: dict[str, list[float]] = {}
    for name, run in contenders.items():
        read = (readers or {}).get(name, tuple)
        results = read(run(inputs))
        if len(results) != len(wanted):
            raise WrongResultError(f"{name} returned {len(results)} results, expected {len(wanted)}")
        errors[name] = [max_relative_error(got, want) for got, want in zip(results, wanted, strict=True)]
        for position, (error, tolerance) in enumerate(zip(errors[name], tolerances, strict=True)):
            if error > tolerance:
                raise WrongResultError(
                    f"{name}: result {position} is off by {error:.2e} of the oracle's maximum, allowed {tolerance:.0e}"
                )
    return errors
