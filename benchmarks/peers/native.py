"""Native code that is measured beside ours, compiled on first use with the system's compiler."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("native.cpp")
FOLDER = Path(__file__).resolve().parents[2] / "build" / "benchmarks"


@cache
def library() -> ctypes.CDLL | None:
    """The compiled helpers, or None where there is no compiler."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / "native.so"
    command = ["c++", "-std=c++20", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", str(SOURCE), "-o"]
    try:
        subprocess.run([*command, str(target)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    loaded = ctypes.CDLL(str(target))
    loaded.fma_rate.restype = ctypes.c_double
    loaded.hash_kernel_map.restype = ctypes.c_int64
    return loaded


def fma_rate() -> float | None:
    """fp32 operations per second of a loop of multiply-adds on torch's threads."""
    native = library()
    return None if native is None else float(native.fma_rate(ctypes.c_int(torch.get_num_threads())))


def hash_kernel_map(voxels: Tensor) -> tuple[Tensor, Tensor]:
    """Source and target rows of a submanifold 3^3 kernel, by a hash table and 27 probes per voxel."""
    native = library()
    if native is None:
        raise RuntimeError("no C++ compiler was found")
    rows = len(voxels)
    source, target = (torch.empty(27 * rows, dtype=torch.int32) for _ in range(2))
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (source, target))
    count = native.hash_kernel_map(ctypes.c_void_p(voxels.data_ptr()), ctypes.c_int64(rows), *pointers)
    return source[:count], target[:count]
