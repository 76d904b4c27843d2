"""Copies of the library with a few sources compiled anew, under a copy of the Python package."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from .command import BuildError, TestRun, build, describe_end, run_tests
from .tree import ROOT, Tree

LIBRARY = "lib/liblacewing.so"

# Quick, and together they see every rule: derivatives up to the third, forward and reverse, real and complex, of
# shared, accumulated and frozen operands.
GRADIENT_TESTS = (
    "tests/python/test_product_matrix.py::test_third_derivatives",
    "tests/python/test_product_layouts.py::test_conjugated_views",
    "tests/python/test_product_matrix.py::test_mixed_dtypes_promote_and_gradients_keep_their_operands",
    "tests/python/test_product_citizenship.py::test_complex_gradcheck",
    "tests/python/test_sparse_scale.py::test_derivatives",
    "tests/python/test_known_wrong_answers.py::test_frozen_operands_do_not_break_the_gradient_of_the_others",
    "tests/python/test_product_infos.py::test_wrong_backward_infos_are_refused",
    "tests/python/test_product_memory.py::test_backward_runs_one_kernel_for_each_gradient",
    "tests/python/test_product_citizenship.py::test_opcheck_of_the_gradient_of_scale",
)
CUDA_TESTS = (
    "tests/python/test_product_matrix.py::test_third_derivatives",
    "tests/python/test_product_layouts.py::test_conjugated_views",
    "tests/python/test_product_kernels.py::test_many_terms",
)

# Most of the time of compiling a source of the library is reading these.
TORCH_HEADERS = (
    "ATen/ATen.h",
    "ATen/Parallel.h",
    "torch/csrc/autograd/saved_variable.h",
    "torch/csrc/autograd/variable.h",
    "torch/library.h",
)


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


class LibraryBuild:
    """The library of an existing build, with some of its objects replaced."""

    def __init__(self, tree: Tree, build_dir: Path) -> None:
        self.tree = tree
        self.build_dir = build_dir
        self.package = tree.work / "python"

    def has_cuda(self) -> bool:
        """Whether the build holds the CUDA kernels."""
        return any("kernels/cuda/product.cu" in command for command in self._commands)

    def check(self, backend: str) -> TestRun:
        """The tests with the build's own library."""
        self._stage(self.build_dir / LIBRARY)
        return self._test(backend)

    def test(self, backend: str, units: tuple[str, ...]) -> TestRun:
        """The tests with some sources, below src/, compiled from the tree as it is now."""
        folder = self.tree.work / "mutant"
        folder.mkdir(exist_ok=True)
        replaced = {}
        for number, unit in enumerate(units):
            to = folder / f"unit{number}.o"
            replaced[self._compile(unit, to)] = str(to)
        self._link(replaced, folder / "liblacewing.so")
        self._stage(folder / "liblacewing.so")
        return self._test(backend)

    @cached_property
    def _commands(self) -> list[str]:
        done = subprocess.run(
            ["ninja", "-C", str(self.build_dir), "-t", "commands", LIBRARY], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BuildError(f"{self.build_dir} holds no build of the library: run make build\n{done.stderr}")
        return done.stdout.splitlines()

    @cached_property
    def _torch_header(self) -> Path:
        """A header with torch's, precompiled."""
        header = self.tree.work / "torch_headers.h"
        header.write_text("".join(f"#include <{name}>\n" for name in TORCH_HEADERS))
        command, _ = self._compile_command("product/autograd.cpp")
        build([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], self.build_dir)
        return header

    def _compile_command(self, unit: str) -> tuple[list[str], str]:
        """The build's command for a source without the source and its output, and that output."""
        source = str(ROOT / "src" / unit)
        command = next((c for c in self._commands if shlex.split(c)[-1:] == [source] or f" -c {source} " in c), None)
        if command is None:
            raise BuildError(f"{self.build_dir} does not compile src/{unit}")
        words = shlex.split(command)
        output = words[words.index("-o") + 1]
        launcher = [i for i, word in enumerate(words) if word.endswith("ccache")]
        kept = []
        skip = False
        for word in words[launcher[0] + 1 if launcher else 0 :]:
            if skip or word in ("-c", "-o", "-MF", "-MT", "-MD", "-include", source):
                skip = word in ("-o", "-MF", "-MT", "-include")
                continue
            if not unit.endswith(".cu") and re.fullmatch(r"-O\d|-g\d?|-W(all|extra|pedantic|invalid-pch)", word):
                continue
            kept.append(word.replace(f"-I{ROOT}", f"-I{self.tree.root}"))
        return kept, output

    def _compile(self, unit: str, to: Path) -> str:
        """Compiles a source; returns the name of the object that it replaces."""
        command, output = self._compile_command(unit)
        extra = [] if unit.endswith(".cu") else ["-w", "-include", str(self._torch_header)]
        build([*command, *extra, "-c", str(self.tree.root / "src" / unit), "-o", str(to)], self.build_dir)
        return output

    def _link(self, replaced: dict[str, str], to: Path) -> None:
        words = [word for word in shlex.split(self._commands[-1]) if word not in (":", "&&")]
        words = [replaced.get(word, word) for word in words]
        words[words.index("-o") + 1] = str(to)
        build(words, self.build_dir)

    def _stage(self, library: Path) -> None:
        """A copy of the Python package with this library."""
        shutil.rmtree(self.package, ignore_errors=True)
        ignored = shutil.ignore_patterns("lib", "__pycache__")
        shutil.copytree(ROOT / "python" / "lacewing", self.package / "lacewing", ignore=ignored)
        (self.package / "lacewing" / "lib").mkdir()
        shutil.copy(library, self.package / "lacewing" / "lib" / "liblacewing.so")

    def _test(self, backend: str) -> TestRun:
        tests = CUDA_TESTS if backend == "cuda" else GRADIENT_TESTS
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-o", f"pythonpath={self.package}"]
        environment = {
            "PYTHONPATH": str(self.package),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LACEWING_TEST_DEVICE": "cuda" if backend == "cuda" else "cpu",
        }
        return run_tests([sys.executable, "-m", "pytest", *options, *tests], ROOT, environment)


def failed_test(run: TestRun) -> str:
    """The first test that failed, as pytest names it, without its folder."""
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/python/)?(\S+)", run.output, re.MULTILINE)
    return found.group(1) if found else describe_end(run)
