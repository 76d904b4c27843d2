"""Functions of Python that the C++ executors call: under a number, through one registered op."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_numbers = itertools.count(1)
_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(owner: Any) -> int:
    """A number for an object whose method ``_call(what, tensors)`` answers; forgotten when the object goes."""
    number = next(_numbers)
    _owners[number] = owner
    return number


def tensor(owner: str, what: str, value: Any) -> Tensor:
    """What a function of the user's gave, which must be a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"[lacewing.etp.{owner}] {what} must give a tensor, not {type(value).__name__}")
    return value


def _answer(id: int, what: str, args: Sequence[Tensor]) -> list[Tensor]:
    owner = _owners.get(id)
    if owner is None:
        raise RuntimeError(f"[lacewing.etp] the Python object behind callback {id} is gone: keep a reference to it")
    answer: list[Tensor] = owner._call(what, list(args))
    return answer


_library = torch.library.Library("lacewing", "IMPL")  # type: ignore[no-untyped-call]
_library.impl("etp_callback", _answer, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
