#!/bin/sh
# Everything `make test` checks, step by step, with one closing line. Called by the Makefile.
#   PYTHON: interpreter with torch; JOBS: parallel jobs; PYTEST_ARGS: more arguments for pytest
#   scripts/test.sh cpu|gpu
set -u
cd -- "$(dirname -- "$0")/.."

mode=${1:-cpu}
python=$(command -v "${PYTHON:=.venv/bin/python}") || { echo "test: no interpreter '$PYTHON'" >&2; exit 1; }
case $python in /*) ;; *) python=$PWD/$python ;; esac
jobs=${JOBS:-$(nproc)}
failed=
skipped=
passed=0
started=$(date +%s)

finish() {
    seconds=$(($(date +%s) - started))
    if [ -n "$failed" ]; then
        echo "lacewing: FAILED:$failed ($passed steps passed, ${seconds} s)"
        exit 1
    fi
    echo "lacewing: all $passed steps passed${skipped:+, skipped:$skipped} (${seconds} s)"
    exit 0
}

# step <name> <command>...
step() {
    name=$1
    shift
    echo "==> $name"
    step_started=$(date +%s)
    if "$@"; then
        passed=$((passed + 1))
        echo "==> $name: passed ($(($(date +%s) - step_started)) s)"
    else
        failed="$failed $name"
        echo "==> $name: FAILED ($(($(date +%s) - step_started)) s)"
        return 1
    fi
}

skip() {
    echo "==> $1: skipped: $2"
    skipped="$skipped $1 ($2)"
}

build() {
    cmake --preset "$1" -DPython_EXECUTABLE="$python" >"build/configure-$1.log" 2>&1 ||
        { cat "build/configure-$1.log"; return 1; }
    grep 'Lacewing' "build/configure-$1.log"
    cmake --build --preset "$1" -j "$jobs"
}

has_cpp_tests() { ! ctest --preset "$1" -N 2>/dev/null | grep -q 'Total Tests: 0'; }

run_ctest() { ctest --preset "$1" -j "$2" --no-tests=error; }

run_pytest() {
    workers=
    if "$python" -c 'import xdist' 2>/dev/null; then
        workers="-n $1"
    fi
    # shellcheck disable=SC2086
    PYTHONPATH=python "$python" -m pytest $workers -q ${PYTEST_ARGS:-}
}

# Builds the wheel against the installed torch, unpacks it in a folder of its own, and imports it from there.
check_wheel() {
    target=$(mktemp -d)
    # The compiler by the name that CMake finds it under: ccache tells names apart.
    CC=${CC:-cc} CXX=${CXX:-c++} "$python" -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps --target "$target" \
        --config-settings build-dir=build/wheel --config-settings cmake.build-type=RelWithDebInfo \
        --config-settings cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1" \
        --config-settings cmake.define.CMAKE_CUDA_FLAGS_RELWITHDEBINFO="-O2 -lineinfo" . &&
        (cd "$target" && PYTHONPATH=$target "$python" -c "
import pathlib, lacewing
where = pathlib.Path(lacewing.__file__).parent
assert where == pathlib.Path('$target').resolve() / 'lacewing', where
assert (where / 'py.typed').exists() and (where / 'lib' / 'liblacewing.so').exists()
print('wheel: imported from', where)")
    status=$?
    rm -rf "$target"
    return $status
}

mkdir -p build
case $mode in
cpu)
    step build build dev || finish
    if has_cpp_tests dev; then
        step ctest run_ctest dev "$jobs"
    else
        skip ctest "GoogleTest was not found"
    fi
    step pytest run_pytest 2
    if has_cpp_tests dev; then
        step asan-build build asan && step asan run_ctest asan 1
    else
        skip asan "GoogleTest was not found"
    fi
    step install env PYTHON="$python" tests/install/run.sh build/dev
    step wheel check_wheel
    ;;
gpu)
    step build build cuda || finish
    if has_cpp_tests cuda; then
        step ctest run_ctest cuda 2
    else
        skip ctest "GoogleTest was not found"
    fi
    LACEWING_TEST_DEVICE=cuda
    export LACEWING_TEST_DEVICE
    step pytest run_pytest 4
    ;;
*)
    echo "test: unknown mode '$mode' (cpu or gpu)" >&2
    exit 1
    ;;
esac
finish
