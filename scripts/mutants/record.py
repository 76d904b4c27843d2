"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LEVELS = ("baseline", "avx2", "avx512")
"""Instruction sets that the CPU kernels are compiled for."""

CONV_LEVELS = tuple(f"conv-{level}" for level in LEVELS)
"""The convolution kernels of each instruction set."""

BACKENDS = (
    *("reference", "cpu", *LEVELS, "sparse-matmul", "structure"),
    *("conv-map", "conv-reference", *CONV_LEVELS, "conv-pool"),
    *("gradient", "cuda"),
)
"""What a mutant can break. `cpu` is the part of the CPU kernels that all instruction sets share."""

PRODUCTS = ("mul", "outer", "inner", "vecmat", "vecsca", "scavec", "mat_t_vec")

RULES = (*(f"{op}.{operand}" for op in PRODUCTS for operand in ("x", "y")), "scale.x", "any.scale")
"""The gradient rules: of each product for each operand, of sparse scale, and of any product for its scale."""


@dataclass(frozen=True)
class Mutant:
    """A wrong change: `old`, which stands in `file` exactly once, becomes `new`.

    `units` are the sources of the library that are compiled anew for the backends `gradient` and `cuda`, relative to
    src/; none means the file itself. `rules` are the gradient rules that the change breaks.
    """

    name: str
    file: str
    old: str
    new: str
    backends: tuple[str, ...]
    breaks: str
    units: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def matches(self, root: Path) -> int:
        """How often the old text stands in the file of a tree."""
        return (root / self.file).read_text().count(self.old)

    def applied(self, text: str) -> str:
        """The file's text with the change."""
        return text.replace(self.old, self.new)

    def library_units(self) -> tuple[str, ...]:
        """The sources of the library to compile anew, relative to src/."""
        return self.units or (self.file.removeprefix("src/"),)
