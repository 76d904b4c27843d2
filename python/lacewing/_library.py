"""Loads the shared library, which registers every op."""

from __future__ import annotations

from pathlib import Path

import torch


def _load() -> None:
    path = Path(__file__).parent / "lib" / "liblacewing.so"
    if not path.exists():
        raise ImportError(
            f"[lacewing] {path.name} is missing beside the package: build it with `make build` in a source tree, or "
            "install the package with `pip install --no-build-isolation .`"
        )
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(
            f"[lacewing] {path.name} does not load with torch {torch.__version__}: it must be built with the torch "
            f"that it runs with ({error})"
        ) from error


_load()

ops = torch.ops.lacewing

if ops.key_refusal():
    raise ImportError(ops.key_refusal())
