"""The mutants of this library: small wrong changes, each of which some test must catch."""

from __future__ import annotations

from .conv import CONV_MUTANTS
from .cuda import CUDA_MUTANTS
from .gradients import GRADIENT_MUTANTS
from .kernels import KERNEL_MUTANTS
from .record import BACKENDS, RULES, Mutant
from .sparse_matmul import SPARSE_MATMUL_MUTANTS
from .structure import STRUCTURE_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *KERNEL_MUTANTS,
    *STRUCTURE_MUTANTS,
    *CONV_MUTANTS,
    *SPARSE_MATMUL_MUTANTS,
    *GRADIENT_MUTANTS,
    *CUDA_MUTANTS,
)

__all__ = ["BACKENDS", "MUTANTS", "RULES", "Mutant"]
