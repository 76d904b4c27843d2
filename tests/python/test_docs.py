"""The snippets of the README and the guides run, and the C++ one is the example that the build compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_snippet_runs(code: str) -> None:
    exec(compile(code, "snippet", "exec"), {})


def test_cpp_snippet_is_the_compiled_example() -> None:
    (snippet,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    example = (ROOT / "examples" / "cpp" / "products.cpp").read_text()

    assert snippet == example


def test_cpp_lines_of_the_convolution_guide_stand_in_its_example() -> None:
    (snippet,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs" / "convolution.md").read_text(), re.DOTALL)

    example = (ROOT / "examples" / "cpp" / "point_cloud.cpp").read_text()
    assert all(line in example for line in snippet.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
