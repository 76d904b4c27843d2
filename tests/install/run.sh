#!/bin/sh
# Installs a build tree into a temporary folder, builds the consumer project against it, and runs the consumer.
#   tests/install/run.sh [build-dir]          PYTHON: the interpreter whose torch is used
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
build=${1:-$here/../../build/dev}
python=$(command -v "${PYTHON:-python3}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }

library=$(find "$work/prefix" -name liblacewing.so)
if readelf -d "$library" | grep -E 'R(UN)?PATH'; then
    echo "install test: the installed library has a run path" >&2
    exit 1
fi

cmake -S "$here" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DPython_EXECUTABLE="$python" >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build"
"$work/build/consumer"
