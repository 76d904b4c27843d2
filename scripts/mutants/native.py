"""Test-only builds of the torch-free kernels and the structure, with plain command lines of g++."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .command import TestRun, build, describe_end, run_tests
from .record import LEVELS
from .tree import ROOT, WORK, Tree

# As in cmake/LacewingIsa.cmake.
LEVEL_FLAGS = {
    "baseline": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mfma", "-mf16c", "-mprefer-vector-width=512"),
    ),
}
LEVEL_FEATURES = {
    "baseline": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
}
# The kernels of an instruction set that test_kernels runs.
LEVEL_SOURCES = ("product", "gathered", "rows")


def processor_features() -> set[str]:
    """The flags of /proc/cpuinfo; none where there is no such file."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return set(found.group(1).split()) if found else set()


def is_x86() -> bool:
    """Whether all instruction sets are compiled here."""
    return platform.machine() in ("x86_64", "AMD64", "amd64")


def levels_here() -> list[str]:
    """The instruction sets that this processor has."""
    features = processor_features() if is_x86() else set()
    return [level for level in LEVELS if features >= LEVEL_FEATURES[level]]


@dataclass(frozen=True)
class Unit:
    """A source below src/, with the instruction set that it is compiled for."""

    source: str
    level: str | None = None

    @property
    def object(self) -> str:
        return f"{Path(self.source).stem}_{Path(self.source).parent.name}_{self.level or 'any'}.o"


# A backend's sources; a mutant compiles all of them anew, those that it leaves as they are come from ccache.
UNITS = {
    "reference": (Unit("kernels/reference/product.cpp"),),
    "cpu": (Unit("kernels/cpu/product.cpp"),),
    **{level: tuple(Unit(f"kernels/cpu/{name}_isa.cpp", level) for name in LEVEL_SOURCES) for level in LEVELS},
    "sparse-matmul": (Unit("kernels/cpu/sparse_matmul.cpp"),),
    "structure": (
        *(Unit(f"structure/{name}.cpp") for name in ("plan_builder", "plan_views", "entry_groups", "entry_scan")),
        Unit("common/kept_memory.cpp"),
    ),
    "conv-map": (Unit("conv/kernel_map.cpp"),),
    "conv-reference": (Unit("kernels/reference/conv.cpp"),),
    **{f"conv-{level}": (Unit("kernels/cpu/conv_isa.cpp", level),) for level in LEVELS},
    "conv-pool": (Unit("kernels/cpu/pool.cpp"),),
}

_MUTATED = {unit.source for unit in UNITS["structure"]}
_STRUCTURE = sorted({f"structure/{path.name}" for path in (ROOT / "src/structure").glob("*.cpp")} - _MUTATED)

# What the tests of a suite also need, and no mutant changes.
COMPANIONS = {
    "kernels": (Unit("kernels/dispatch/rows_cpu.cpp"), Unit("kernels/reference/sparse_matmul.cpp")),
    "structure": tuple(Unit(source) for source in _STRUCTURE),
    "conv": tuple(Unit(f"{n}.cpp") for n in ("conv/geometry", "conv/voxels", "kernels/cpu/conv", "common/kept_memory")),
}

# The sources of a suite under tests/cpp/.
TESTS = {
    "kernels": ("kernels/*.cpp",),
    "structure": ("structure/*.cpp",),
    "conv": ("conv/*_kernels.cpp", "kernels/chosen_isa.cpp"),
}


def suite_of(backend: str) -> str:
    """The folder of tests/cpp that tests a backend."""
    return "conv" if backend.startswith("conv-") else "structure" if backend == "structure" else "kernels"


class NativeBuild:
    """The executables test_kernels, test_structure and test_conv.

    The tests and one object for each backend are compiled once. A mutant replaces the object of one backend alone:
    -fno-weak keeps inline functions apart, which the linker would otherwise merge with those of unchanged objects.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.backends = [name for name, units in UNITS.items() if units[0].level in (None, "baseline") or is_x86()]
        launcher = shutil.which("ccache")
        self.compiler = [*([launcher] if launcher else []), os.environ.get("CXX", "g++")]

    @cached_property
    def base(self) -> Path:
        """The folder of everything that is compiled without a mutant; the first worker fills it, by its check."""
        folder = WORK / "base"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.tree.first:
            return folder
        for unit in (unit for backend in self.backends for unit in UNITS[backend]):
            self._compile(unit, folder / unit.object, "-O1")
        for suite, companions in COMPANIONS.items():
            for unit in companions:
                self._compile(unit, folder / unit.object, "-O1")
            for source in self._tests(suite):
                self._run_compiler(source, folder / f"{suite}_{source.stem}.o", "-O1", ())
        return folder

    def check(self, backend: str) -> TestRun:
        """The tests of the unchanged sources."""
        return self._test(suite_of(backend), {})

    def test(self, backend: str) -> TestRun:
        """The tests with one backend compiled from the tree as it is now."""
        folder = self.tree.work / "mutant"
        folder.mkdir(exist_ok=True)
        replaced = {unit.object: folder / unit.object for unit in UNITS[backend]}
        for unit in UNITS[backend]:
            # Compiling costs more than running: most mutants fail early.
            self._compile(unit, replaced[unit.object], "-O0")
        return self._test(suite_of(backend), replaced)

    def _tests(self, suite: str) -> list[Path]:
        folder = self.tree.root / "tests" / "cpp"
        return sorted(path for pattern in TESTS[suite] for path in folder.glob(pattern))

    def _compile(self, unit: Unit, to: Path, optimise: str) -> None:
        flags: tuple[str, ...] = ("-fno-weak",)
        if unit.level is not None:
            number = LEVELS.index(unit.level)
            flags += (f"-DLACEWING_ISA={unit.level}", f"-DLACEWING_ISA_LEVEL={number}")
            flags += ("-fno-math-errno", "-ffp-contract=fast", *LEVEL_FLAGS[unit.level])
        self._run_compiler(self.tree.root / "src" / unit.source, to, optimise, flags)

    def _run_compiler(self, source: Path, to: Path, optimise: str, flags: tuple[str, ...]) -> None:
        includes = (f"-I{self.tree.root / 'src'}", f"-I{self.tree.root / 'include'}")
        common = ("-std=c++20", "-w", optimise, f"-DLACEWING_HAVE_X86_ISA={int(is_x86())}")
        build([*self.compiler, *common, *includes, *flags, "-c", str(source), "-o", str(to)], self.tree.work)

    def _test(self, suite: str, replaced: dict[str, Path]) -> TestRun:
        units = [unit for backend in self.backends if suite_of(backend) == suite for unit in UNITS[backend]]
        units += COMPANIONS[suite]
        objects = [self.base / f"{suite}_{source.stem}.o" for source in self._tests(suite)]
        objects += [replaced.get(unit.object, self.base / unit.object) for unit in units]
        program = self.tree.work / f"test_{suite}"
        libraries = ["-lgtest_main", "-lgtest", "-pthread"]
        build([self.compiler[-1], *map(str, objects), *libraries, "-o", str(program)], self.tree.work)
        return run_tests([str(program), "--gtest_fail_fast"], self.tree.work, {})


def failed_test(run: TestRun) -> str:
    """The first test that failed, as GoogleTest names it, or the one that did not come to its end."""
    found = re.search(r"^\[  FAILED  \] ([\w./]+)", run.output, re.MULTILINE)
    if found:
        return found.group(1)
    started = re.findall(r"^\[ RUN      \] ([\w./]+)", run.output, re.MULTILINE)
    return f"{started[-1]}: {describe_end(run)}" if started else describe_end(run)
