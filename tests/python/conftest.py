"""Fixtures of the Python suite."""

from __future__ import annotations

import os

import pytest
import torch


def _devices() -> list[str]:
    """ "cpu", and "cuda" where there is one; LACEWING_TEST_DEVICE names a single one instead."""
    wanted = os.environ.get("LACEWING_TEST_DEVICE")
    if wanted:
        return [wanted]
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=_devices())
def device(request: pytest.FixtureRequest) -> str:
    """Each device that the tests run on."""
    return request.param
