"""Real Clebsch-Gordan coefficients and Wigner D matrices in fp64, in e3nn's basis and signs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import factorial, sqrt

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]
Path = tuple[int, int, int]

THRESHOLD = 1e-10


@dataclass(frozen=True)
class Terms:
    """The nonzero terms c[t] * x[index1[t]] * y[index2[t]] -> z[index[t]] of a sum over paths (l1, l2, l3)."""

    paths: tuple[Path, ...]
    path: npt.NDArray[np.int64]
    index1: npt.NDArray[np.int64]
    index2: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    scale: Array
    size: int

    def __len__(self) -> int:
        return len(self.scale)

    def dense(self) -> Array:
        """The same sum as a tensor over (index1, index2, index)."""
        tensor = np.zeros((self.size, self.size, self.size))
        np.add.at(tensor, (self.index1, self.index2, self.index), self.scale)
        return tensor


def complex_clebsch_gordan(l1: int, m1: int, l2: int, m2: int, l3: int, m3: int) -> float:
    """<l1 m1 l2 m2 | l3 m3> by Racah's formula, in exact fractions up to one square root."""
    if m1 + m2 != m3 or not abs(l1 - l2) <= l3 <= l1 + l2:
        return 0.0
    f = factorial
    square = Fraction(
        (2 * l3 + 1) * f(l3 + l1 - l2) * f(l3 - l1 + l2) * f(l1 + l2 - l3) * f(l3 + m3) * f(l3 - m3),
        f(l1 + l2 + l3 + 1) * f(l1 - m1) * f(l1 + m1) * f(l2 - m2) * f(l2 + m2),
    )
    total = Fraction(0)
    for v in range(max(0, -l1 + l2 + m3, -l1 + m1), min(l2 + l3 + m1, l3 - l1 + l2, l3 + m3) + 1):
        total += Fraction(
            (-1) ** (v + l2 + m2) * f(l2 + l3 + m1 - v) * f(l1 - m1 + v),
            f(v) * f(l3 - l1 + l2 - v) * f(l3 + m3 - v) * f(v + l1 - l2 - m3),
        )
    return sqrt(square) * float(total)


def real_to_complex(ell: int) -> npt.NDArray[np.complex128]:
    """The unitary change of basis Q of degree ell, with the phase that makes real coefficients real."""
    q = np.zeros((2 * ell + 1, 2 * ell + 1), dtype=np.complex128)
    q[ell, ell] = 1
    for m in range(1, ell + 1):
        q[ell - m, ell + m] = 1 / sqrt(2)
        q[ell - m, ell - m] = -1j / sqrt(2)
        q[ell + m, ell + m] = (-1) ** m / sqrt(2)
        q[ell + m, ell - m] = 1j * (-1) ** m / sqrt(2)
    return (-1j) ** ell * q


@cache
def real_clebsch_gordan(l1: int, l2: int, l3: int) -> Array:
    """The invariant tensor of shape (2*l1+1, 2*l2+1, 2*l3+1) with unit Frobenius norm (e3nn's wigner_3j)."""
    tensor = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1), dtype=np.complex128)
    for m1 in range(-l1, l1 + 1):
        for m2 in range(-l2, l2 + 1):
            if abs(m1 + m2) <= l3:
                tensor[l1 + m1, l2 + m2, l3 + m1 + m2] = complex_clebsch_gordan(l1, m1, l2, m2, l3, m1 + m2)
    q1, q2, q3 = real_to_complex(l1), real_to_complex(l2), real_to_complex(l3)
    rotated = np.einsum("ij,kl,nm,ikn->jlm", q1, q2, q3.conj(), tensor)
    if np.abs(rotated.imag).max() > 1e-12:
        raise ArithmeticError(f"coefficients of ({l1}, {l2}, {l3}) are not real")
    return np.asarray(rotated.real / np.linalg.norm(rotated.real))


def all_paths(lmax: int) -> tuple[Path, ...]:
    """Every (l1, l2, l3) up to lmax that the triangle rule allows."""
    degrees = range(lmax + 1)
    return tuple((a, b, c) for a in degrees for b in degrees for c in degrees if abs(a - b) <= c <= a + b)


def product_terms(lmax: int) -> Terms:
    """All nonzero terms of all paths up to lmax; degree l sits at rows l*l .. l*l+2*l of each operand."""
    paths = all_paths(lmax)
    columns: list[npt.NDArray[np.int64]] = []
    scales: list[Array] = []
    for number, (l1, l2, l3) in enumerate(paths):
        tensor = real_clebsch_gordan(l1, l2, l3)
        where = np.argwhere(np.abs(tensor) > THRESHOLD)
        scales.append(tensor[tuple(where.T)])
        shifted = where + np.array([l1 * l1, l2 * l2, l3 * l3])
        columns.append(np.column_stack([np.full(len(where), number), shifted]))
    path, index1, index2, index = np.concatenate(columns).T.copy()
    return Terms(paths, path, index1, index2, index, np.concatenate(scales), (lmax + 1) ** 2)


def generators(ell: int) -> Array:
    """The three real antisymmetric generators of rotations of degree ell, shape (3, 2*ell+1, 2*ell+1)."""
    m = np.arange(-ell, ell)
    raising = np.diag(-np.sqrt(ell * (ell + 1) - m * (m + 1)), k=-1)
    lowering = np.diag(np.sqrt(ell * (ell + 1) - m * (m + 1)), k=1)
    diagonal = np.diag(1j * np.arange(-ell, ell + 1))
    stacked = np.stack([0.5 * (raising + lowering), diagonal, -0.5j * (raising - lowering)])
    q = real_to_complex(ell)
    return np.asarray((q.conj().T @ stacked @ q).real)


def wigner_d(ell: int, rotation: Array) -> Array:
    """The rotation matrix of degree ell for a rotation vector (axis times angle)."""
    exponent = np.tensordot(rotation, generators(ell), axes=1)
    return np.asarray(torch.matrix_exp(torch.from_numpy(exponent)).numpy())


def block_wigner_d(lmax: int, rotation: Array) -> Array:
    """The block-diagonal rotation of the stacked degrees 0..lmax."""
    size = (lmax + 1) ** 2
    matrix = np.zeros((size, size))
    for ell in range(lmax + 1):
        block = slice(ell * ell, (ell + 1) ** 2)
        matrix[block, block] = wigner_d(ell, rotation)
    return matrix
