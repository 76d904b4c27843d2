"""The list of mutants fits the sources; `make mutants` builds and runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from mutants import BACKENDS, MUTANTS, RULES, Mutant  # noqa: E402
from mutants.library import CUDA_TESTS, GRADIENT_TESTS  # noqa: E402
from mutants.record import PRODUCTS  # noqa: E402

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@each_mutant
def test_old_text_stands_in_its_file_once(mutant: Mutant) -> None:
    assert mutant.matches(ROOT) == 1
    assert mutant.old != mutant.new


@each_mutant
def test_units_of_the_library_exist(mutant: Mutant) -> None:
    if not {"gradient", "cuda"} & set(mutant.backends):
        assert mutant.units == ()
        return

    for unit in mutant.library_units():
        assert (ROOT / "src" / unit).suffix in (".cpp", ".cu")
        assert (ROOT / "src" / unit).exists()


def test_names_differ() -> None:
    names = [mutant.name for mutant in MUTANTS]

    assert len(set(names)) == len(names)


def test_every_backend_has_a_mutant() -> None:
    assert {backend for mutant in MUTANTS for backend in mutant.backends} == set(BACKENDS)


def test_every_gradient_rule_has_a_mutant() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.rules} == set(RULES)


def test_products_are_those_of_the_library() -> None:
    kinds = (ROOT / "src" / "product" / "kinds.h").read_text()
    products = re.findall(r'^    \{"sparse_(\w+)"', kinds, re.MULTILINE)

    assert products == [*PRODUCTS, "scale"]


@pytest.mark.parametrize("test", sorted({*GRADIENT_TESTS, *CUDA_TESTS}))
def test_selected_tests_exist(test: str) -> None:
    path, function = test.split("::")

    assert f"def {function}(" in (ROOT / path).read_text()
