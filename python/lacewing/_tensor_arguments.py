"""What users give to sparse tensors, brought into the form that the C++ library takes; one sentence where it is not."""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import Tensor


class Undefined:
    """The fill of tensors whose elements without an entry are nothing, such as missing edges of a graph."""

    def __repr__(self) -> str:
        return "lacewing.undefined"


undefined: Final = Undefined()


def is_whole(item: Any) -> bool:
    return item is Ellipsis or (isinstance(item, slice) and item == slice(None))


def index_item(item: Any) -> Any:
    """Integers of any kind as int, arrays and lists as tensors."""
    if isinstance(item, (Tensor, slice, bool)) or item is None or item is Ellipsis:
        return torch.tensor(item) if isinstance(item, bool) else item
    try:
        return operator.index(item)
    except TypeError:
        pass
    try:
        array = torch.as_tensor(item)
        return array.to(torch.int64) if array.numel() == 0 and array.dtype == torch.get_default_dtype() else array
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotImplementedError(f"[lacewing.SparseTensor] {item!r} is no index of an assignment") from error


def is_by_column(op: str, compressed: str) -> bool:
    if compressed not in ("rows", "columns"):
        raise ValueError(f'[lacewing.{op}] compressed must be "rows" or "columns", not "{compressed}"')
    return compressed == "columns"


def slices_of(index: Any, shape: tuple[int, ...]) -> tuple[list[int], ...] | None:
    """Starts, ends and steps where several leading dims are sliced: they are cut in one pass."""
    if not isinstance(index, tuple) or len(index) < 2 or len(index) > len(shape):
        return None
    if any(
        type(s) is not slice or any(type(n) not in (int, type(None)) for n in (s.start, s.stop, s.step)) for s in index
    ):
        return None
    if any(s.step is not None and s.step <= 0 for s in index):
        return None
    bounds = [s.indices(size) for s, size in zip(index, shape, strict=False)]
    starts, ends, steps = (list(numbers) for numbers in zip(*bounds, strict=True))
    return starts, ends, steps


def fill_arguments(op: str, fill_value: object, values: Tensor) -> tuple[int, Tensor | None]:
    """The kind of a fill (3: a number, 4: a list of them) and its tensor, beside values of such dtype and device."""
    if fill_value is None:
        return 0, None
    if isinstance(fill_value, Undefined) or (isinstance(fill_value, (list, tuple)) and len(fill_value) == 0):
        return 1, None
    if isinstance(fill_value, Tensor):
        return (0 if fill_value.dim() == 0 else 2), fill_value
    with torch._C._DisableFuncTorch():  # a number is no part of a transform
        return number_arguments(op, fill_value, values)


def number_arguments(op: str, fill_value: object, values: Tensor) -> tuple[int, Tensor]:
    if isinstance(fill_value, (bool, int, float, complex)):
        wide = _wide_type(op, fill_value, values)
        if not torch.can_cast(wide, values.dtype):
            raise TypeError(
                f"[lacewing.{op}] a {type(fill_value).__name__} as fill cannot be cast to the values' {values.dtype}"
            )
        return 3, torch.tensor(fill_value, dtype=wide, device="cpu")  # on the host, whatever the device
    array = as_tensor(op, "the elements of a fill", fill_value, device=values.device)
    if array.dim() == 0:
        return number_arguments(op, array.item(), values)
    if hasattr(fill_value, "dtype"):
        return 2, array
    # Lists of numbers have no dtype.
    wide = torch.float64 if array.is_floating_point() else torch.complex128 if array.is_complex() else array.dtype
    return 4, torch.as_tensor(fill_value, dtype=wide, device=values.device)


def _wide_type(op: str, number: bool | int | float | complex, values: Tensor) -> torch.dtype:
    """The dtype that holds every number of such a type."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        if not -(1 << 63) <= number < 1 << 64:
            raise TypeError(f"[lacewing.{op}] the fill {number} does not fit into the values' {values.dtype}")
        return torch.int64 if number < 1 << 63 else torch.uint64
    return torch.float64 if isinstance(number, float) else torch.complex128


def sizes_of(op: str, name: str, sizes: object) -> list[int]:
    """Sizes or dims as a list of integers that int64 holds."""
    try:
        numbers = [operator.index(s) for s in sizes]  # type: ignore[attr-defined]
    except TypeError as error:
        raise TypeError(f"[lacewing.{op}] {name} must be a sequence of integers, not {sizes!r}") from error
    if any(not -(1 << 63) <= s < 1 << 63 for s in numbers):
        raise ValueError(f"[lacewing.{op}] {name} {tuple(numbers)} has a number that int64 cannot hold")
    return numbers


def as_tensor(
    op: str,
    name: str,
    data: object,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """A tensor of numbers in lists; ragged lists and other things get a sentence."""
    try:
        return torch.as_tensor(data, dtype=dtype, device=device)
    except (ValueError, TypeError) as error:
        raise type(error)(f"[lacewing.{op}] {name} are no array of numbers: {error}") from error
    except RuntimeError as error:
        if "infer dtype" not in str(error):
            raise
        raise TypeError(f"[lacewing.{op}] {name} are no array of numbers, but {type(data).__name__}") from error


def index_array(op: str, name: str, data: object, values: Tensor) -> Tensor:
    """Indices from lists, beside the values; those of a tensor stay where they are."""
    if isinstance(data, Tensor):
        return data
    array = as_tensor(op, name, data, device=values.device)
    return array.to(torch.int64) if array.numel() == 0 else array
