"""The choice of the backend: by context manager, for the process, and by an environment variable."""

from __future__ import annotations

import pytest

import lacewing
from products_support import run_python


def test_automatic_is_the_default() -> None:
    assert run_python("import lacewing; print(lacewing.get_backend())") == "automatic"


def test_context_manager_restores_the_backend() -> None:
    with lacewing.backend("reference"):
        inside = lacewing.get_backend()
        with lacewing.backend("automatic"):
            assert lacewing.get_backend() == "automatic"
        assert lacewing.get_backend() == "reference"

    assert inside == "reference"
    assert lacewing.get_backend() == "automatic"


def test_context_manager_restores_the_backend_after_an_error() -> None:
    with pytest.raises(KeyError), lacewing.backend("reference"):
        raise KeyError

    assert lacewing.get_backend() == "automatic"


def test_set_backend_holds_for_the_process() -> None:
    lacewing.set_backend("reference")
    try:
        assert lacewing.get_backend() == "reference"
    finally:
        lacewing.set_backend("automatic")


def test_environment_variable_sets_the_first_choice() -> None:
    assert run_python("import lacewing; print(lacewing.get_backend())", LACEWING_BACKEND="reference") == "reference"


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing\.backend\] .* automatic or reference, not fast"):
        lacewing.set_backend("fast")


def test_unknown_backend_in_the_environment_is_refused() -> None:
    code = """
import lacewing
try:
    lacewing.get_backend()
    lacewing.sparse_mul
except (RuntimeError, ValueError, ImportError) as error:
    print(error)
"""

    assert "LACEWING_BACKEND" in run_python(code, LACEWING_BACKEND="fast")


def test_product_by_the_reference_from_the_environment() -> None:
    code = """
import torch, lacewing
info = lacewing.SparseProductInfo([2.0], [0], [0])
x = torch.full((1, 1, 2), 3.0, requires_grad=True)
lacewing.sparse_mul(x, x, info).sum().backward()
print(x.grad.flatten().tolist())
"""

    assert run_python(code, LACEWING_BACKEND="reference") == "[12.0, 12.0]"
