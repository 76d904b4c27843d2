"""Random arguments: mostly small and fit, now and then of another size, sign, type or kind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

EDGES = (-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
FLOATS = (0.0, -0.0, 0.5, 1.0, -3.0, 1e300, 1e-300, float("inf"), float("-inf"), float("nan"))
VALUE_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.float32, torch.bool)
STRANGERS: tuple[Any, ...] = (None, "", "coo", b"\xff", 3.5, True, {}, (), [[]], [1, "x"], object(), 1j, range(3))


class Draw:
    """What one case draws from."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._torch = torch.Generator().manual_seed(seed % 2**63)
        self._wildness = self.pick((0.0, 0.1, 0.4, 1.0))

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def odd(self, probability: float) -> bool:
        """Whether to do what does not fit: seldom in some cases, so that they get far."""
        return self.chance(probability * self._wildness)

    def pick(self, items: Sequence[Any]) -> Any:
        return self._random.choice(items)

    def sample(self, items: Sequence[Any], count: int) -> list[Any]:
        return [self.pick(items) for _ in range(count)]

    def upto(self, most: int) -> int:
        return self._random.randint(0, most)

    def size(self, most: int = 6) -> int:
        """A size of a dim or a count."""
        return self.pick(EDGES) if self.odd(0.06) else self.upto(most)

    def sizes(self, most_dims: int = 3, most: int = 6) -> list[int]:
        return [self.size(most) for _ in range(self.upto(most_dims))]

    def number(self) -> float:
        return self.pick(FLOATS) if self.chance(0.3) else self._random.uniform(-2, 2)

    def or_strange(self, value: Any, probability: float = 0.04) -> Any:
        """The value, or one of another kind."""
        return self.pick(STRANGERS) if self.odd(probability) else value

    def optional(self, value: Any, probability: float = 0.3) -> Any:
        return None if self.chance(probability) else value

    def indices(self, count: int, rows: int) -> Any:
        """Of rows below `rows`: a list, or a tensor of a type, a layout and a device that a user may have."""
        count = max(0, count + (self.upto(2) - 1 if self.odd(0.08) else 0))
        numbers = [self.upto(max(0, min(rows, 1000) - 1)) for _ in range(count)]
        if numbers and self.odd(0.06):
            numbers[self.upto(count - 1)] = self.pick((*EDGES, rows))
        if self.chance(0.3):
            return self.or_strange(numbers)
        dtype = self.pick(INDEX_TYPES) if self.odd(0.1) else torch.int64
        return self.or_strange(self.altered(torch.tensor(numbers, dtype=torch.int64).to(dtype)))

    def values(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> Any:
        """A tensor of about that shape."""
        shape = [min(max(n, 0), 8) for n in shape]
        if shape and self.odd(0.06):
            shape[self.upto(len(shape) - 1)] += 1
        if self.odd(0.04):
            shape = shape[1:] if self.chance(0.5) else [*shape, 2]
        dtype = dtype or (self.pick(VALUE_TYPES) if self.odd(0.2) else torch.float32)
        return self.or_strange(self.altered(self._filled(shape).to(dtype)))

    def _filled(self, shape: Sequence[int]) -> Tensor:
        filled = torch.randn(shape, dtype=torch.float64, generator=self._torch)
        if filled.numel() and self.chance(0.1):
            filled.view(-1)[self.upto(filled.numel() - 1)] = self.pick(FLOATS)
        return filled

    def altered(self, tensor: Tensor) -> Tensor:
        """The same numbers with other strides, another device or a gradient; or one element for all."""
        if not self.odd(0.15):
            return tensor
        ways = [
            lambda t: torch.stack([t, t], -1)[..., 0],
            lambda t: t.flip(0) if t.dim() else t,
            lambda t: t.to("meta"),
            lambda t: t.expand(2, *t.shape),
            lambda t: t.requires_grad_() if t.is_floating_point() else t,
            lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
            lambda t: t.conj() if t.is_complex() else t,
            lambda t: t[..., :0],
        ]
        return self.pick(ways)(tensor)
