"""Plans as ops take them, and the types of arguments."""

from __future__ import annotations

import operator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import torch
from torch import Tensor


def outside_transforms() -> AbstractContextManager[object]:
    """Outside of torch.func's transforms, which would wrap what is made for as long as they run: it is kept longer."""
    return nullcontext() if torch.compiler.is_compiling() else torch._C._DisableFuncTorch()


def unwrapped(tensor: Tensor) -> Tensor:
    """A tensor of integers without the wrappers of torch.func's gradients."""
    if not torch.compiler.is_compiling():
        while torch._C._functorch.is_gradtrackingtensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


_MISSING: Final = -2
"""The numbers of a plan that is missing between others."""


class Plan(NamedTuple):
    """The engine's form of an info: an integer array and the integers that describe it, which ops read."""

    array: Tensor
    sizes: tuple[int, ...]

    @staticmethod
    def split(arrays: list[Tensor], sizes: list[int]) -> list[Plan]:
        """From what the ops that build plans return."""
        count = len(sizes) // max(1, len(arrays))
        return [Plan(array, tuple(sizes[k * count : (k + 1) * count])) for k, array in enumerate(arrays)]


def arguments(plan: Plan, *backward: Plan | None) -> tuple[list[Tensor], list[int]]:
    """What an op takes for the plans of a value and of its gradients; it derives those that are missing."""
    plans = [plan, *backward]
    while plans[-1] is None:
        plans.pop()
    missing = Plan(plan.array[:0], (_MISSING,) * len(plan.sizes)) if None in plans else plan
    full = [missing if given is None else given for given in plans]
    return [given.array for given in full], [size for given in full for size in given.sizes]


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether a gradient can flow to any of these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def check_flag(op: str, argument: str, value: object) -> None:
    """A choice is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"[lacewing.{op}] {argument} must be a bool, not {type(value).__name__}")


def check_text(op: str, argument: str, value: object) -> None:
    """A name is a string; whether it is one of those that an op knows, the op says."""
    if not isinstance(value, str):
        raise TypeError(f"[lacewing.{op}] {argument} must be a string, not {type(value).__name__}")


def as_index_number(value: object) -> int:
    """An integer of Python, numpy or torch; a bool is none."""
    if isinstance(value, bool):
        raise TypeError("a bool is not an integer")
    return operator.index(value)  # type: ignore[arg-type]


def integer(op: str, name: str, value: object) -> int:
    """An integer of Python, numpy or torch that fits 64 bits."""
    try:
        number = as_index_number(value)
    except TypeError:
        raise TypeError(f"[lacewing.{op}] {name} must be an integer, not {value!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"[lacewing.{op}] {name} does not fit 64 bits: {number}")
    return number


def check_tensor(op: str, argument: str, value: object) -> None:
    """An operand is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"[lacewing.{op}] {argument} must be a tensor, not {type(value).__name__}")
    if value.is_nested:
        raise ValueError(f"[lacewing.{op}] {argument} must be a dense tensor, not a nested one")
