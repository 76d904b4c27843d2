"""Arguments of this module: one sentence where they are something else."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from .._plan import check_tensor


def has_units(value: Any) -> bool:
    """Whether this is a pint quantity; pint itself is never imported here."""
    return hasattr(value, "magnitude") and hasattr(value, "units") and hasattr(value, "_REGISTRY")


def plain(op: str, argument: str, value: object) -> None:
    """A tensor without units."""
    if has_units(value):
        raise TypeError(
            f"[lacewing.etp.{op}] {argument} is a quantity, but only sparse_matmul knows units: give its magnitude"
        )
    check_tensor(f"etp.{op}", argument, value)


def plain_values(op: str, argument: str, values: object) -> None:
    """Tensors without units, by name."""
    if not isinstance(values, Mapping):
        raise TypeError(f"[lacewing.etp.{op}] {argument} must be a dict of tensors, not {type(values).__name__}")
    for name, value in values.items():
        plain(op, f"{argument}[{name!r}]", value)


def parts_of(op: str, state: object, *names: str) -> list[Any]:
    """What a pickled object was saved as."""
    if not isinstance(state, Mapping):
        raise TypeError(f"[lacewing.etp.{op}] a state must be a dict, not {type(state).__name__}")
    for name in names:
        if name not in state:
            raise ValueError(f"[lacewing.etp.{op}] {name} is missing in the state")
    return [state[name] for name in names]


def number(op: str, argument: str, value: object) -> float:
    """A constant of a cell: one for all neurons."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise TypeError(
                f"[lacewing.etp.{op}] {argument} requires grad, but it is a constant of the cell and would not learn: "
                f"give {argument}.item(), or write the step as a FunctionCell"
            )
        if value.numel() != 1 or value.is_complex():
            raise TypeError(
                f"[lacewing.etp.{op}] {argument} is one number for all neurons, not a tensor of shape "
                f"{tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}: a FunctionCell takes one for each"
            )
        return float(value)
    if not isinstance(value, Real):
        raise TypeError(f"[lacewing.etp.{op}] {argument} must be a number, not {type(value).__name__}")
    return float(value)


def check_callable(op: str, argument: str, value: object) -> None:
    """A function of the user's."""
    if not callable(value):
        raise TypeError(f"[lacewing.etp.{op}] {argument} must be a function, not {type(value).__name__}")
