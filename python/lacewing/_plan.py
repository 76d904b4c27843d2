"""The engine's form of an info: an integer array and the integers that describe it (src/structure/plan.h)."""

from __future__ import annotations

import operator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from ._library import ops

_HAS_SEGMENTS, _HAS_INDEX1, _HAS_INDEX2, _HAS_ORDER, _HAS_INVERSE = 1, 2, 4, 8, 16
_ABSENT = -2


def outside_transforms() -> AbstractContextManager[object]:
    """Outside of torch.func's transforms, which would wrap what is made for as long as they run: it is kept longer."""
    return nullcontext() if torch.compiler.is_compiling() else torch._C._DisableFuncTorch()


def unwrapped(tensor: Tensor) -> Tensor:
    """A tensor of integers without the wrappers of torch.func's gradients."""
    if not torch.compiler.is_compiling():
        while torch._C._functorch.is_gradtrackingtensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


class Plan(NamedTuple):
    """What an op takes for one info."""

    array: Tensor
    sizes: tuple[int, ...]

    @staticmethod
    def split(arrays: list[Tensor], sizes: list[int]) -> list[Plan]:
        """From what the ops that build plans return."""
        count = len(sizes) // len(arrays)
        return [Plan(array, tuple(sizes[k * count : (k + 1) * count])) for k, array in enumerate(arrays)]

    @property
    def entries(self) -> int | None:
        """T, or None where it follows the inputs."""
        return None if self.sizes[0] < 0 else self.sizes[0]

    @property
    def rows(self) -> int | None:
        """Rows of the output, or None where they follow the inputs."""
        return None if self.sizes[2] < 0 else self.sizes[2]

    def serves(self, forward: Plan, view: int, scaled: bool) -> bool:
        """Whether this plan of a gradient can stand beside the forward plan.

        False where it has the same terms but its scale is in another order: then one is derived. The op refuses a plan
        with other terms.
        """
        same_terms = self.sizes[6] == forward.sizes[6 + view]
        same_order = self.sizes[9] == forward.sizes[9] and self.sizes[0] == forward.sizes[0]
        return not (scaled and same_terms and not same_order)

    def to(self, device: torch.device | str) -> Plan:
        """The plan on another device."""
        return Plan(self.array.to(device), self.sizes)

    def fits(self, rows1: int, rows2: int | None = None) -> bool:
        """Whether the inputs have the rows that the indices reach."""
        return self.sizes[3] <= rows1 and (rows2 is None or self.sizes[4] <= rows2)

    def resolved(self, rows: int) -> Plan:
        """With T settled to the rows of the first input, where it was open."""
        return Plan(self.array, tuple(ops.resolved_sizes(self.sizes, rows)))

    def derived(self, view: int, rows: int, unary: bool = False) -> Plan:
        """The plan of a gradient: view 1 for the first input and 2 for the second, of so many rows."""
        with outside_transforms():
            array = ops.derive_plan(unwrapped(self.array), self.sizes, view, rows, unary)
        return Plan(array, tuple(ops.derived_sizes(self.sizes, view, rows, unary)))

    @property
    def repeats_entries(self) -> bool:
        """Whether several terms use one entry of scale."""
        return bool(self.sizes[5] & _HAS_INVERSE)

    def _part(self, flag: int) -> Tensor | None:
        """One of the packed arrays, as a view in the width that it is stored in."""
        _, terms, rows, _, _, flags = self.sizes[:6]
        if not flags & flag:
            return None
        start = 0
        for part, length in (
            (_HAS_SEGMENTS, rows + 1),
            (_HAS_INDEX1, terms),
            (_HAS_INDEX2, terms),
            (_HAS_ORDER, terms),
        ):
            if part == flag:
                return self.array[start : start + length]
            start += length if flags & part else 0
        return None

    def segments(self) -> Tensor | None:
        """seg_out over all rows of the output, or None where each term is a row."""
        return self._part(_HAS_SEGMENTS)

    def order(self) -> Tensor | None:
        """The entry of scale of each term, or None where that is the identity."""
        return self._part(_HAS_ORDER)

    def by_entry(self, input: int) -> Tensor | None:
        """The rows of input 1 or 2 in the order of scale, or None where they are 0, 1, ...; no entry has two terms.

        An entry that no term uses has row 0.
        """
        entries, terms = self.sizes[:2]
        index, order = self._part(_HAS_INDEX1 if input == 1 else _HAS_INDEX2), self.order()
        if order is None and entries == terms:
            return index
        identity = torch.arange(entries, dtype=self.array.dtype, device=self.array.device)
        places = identity[:terms] if order is None else order
        rows = torch.zeros_like(identity).index_copy_(0, places.long(), identity[:terms] if index is None else index)
        return None if torch.equal(rows, identity) else rows

    def terms(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """index1, index2, output row and entry of scale of each term, in the order of the plan."""
        identity = torch.arange(self.sizes[1], device=self.array.device)
        parts = [self._part(flag) for flag in (_HAS_INDEX1, _HAS_INDEX2, _HAS_ORDER)]
        first, second, order = (identity if part is None else part.long() for part in parts)
        segments = self.segments()
        if segments is None:
            return first, second, identity, order
        rows = torch.arange(self.sizes[2], device=self.array.device)
        return first, second, rows.repeat_interleave(segments.long().diff()), order


def arguments(*plans: Plan | None) -> tuple[list[Tensor], list[int]]:
    """What an op takes for the plans of a value and of its gradients; a plan that is missing is derived by the op."""
    given = list(plans)
    while given[-1] is None:
        given.pop()
    empty = Plan(plans[0].array[:0], (_ABSENT,) * len(plans[0].sizes)) if plans[0] and None in given else None
    all_plans = [plan or empty for plan in given]
    return [plan.array for plan in all_plans if plan], [size for plan in all_plans if plan for size in plan.sizes]


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
