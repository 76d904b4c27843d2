#!/bin/sh
# Makes this machine ready to build: system packages (Debian/Ubuntu) and the virtual environment .venv.
# Quick when everything is there. PYTHON names the interpreter that .venv is made with (3.11 or newer).
set -eu
cd -- "$(dirname -- "$0")/.."

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

# An existing environment decides; otherwise the interpreter it will be made with.
python=.venv/bin/python
if ! { [ -x "$python" ] && new_enough "$python"; }; then
    python=$(find_python)
    [ -n "$python" ] || die "Python 3.11 or newer was not found; name one with PYTHON=..."
fi

has_header() {
    command -v g++ >/dev/null && printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" |
        g++ -std=c++17 -x c++ -E - >/dev/null 2>&1
}

can_make_environment() { [ -x .venv/bin/python ] || "$python" -c 'import venv, ensurepip' 2>/dev/null; }

has_python_headers() {
    "$python" -c 'import os, sysconfig as s, sys; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))'
}

# The distribution's packages belong to its own interpreter: python3-venv, or python3.12-venv for another version.
python_package() {
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    default=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)
    if [ "$version" = "$default" ]; then echo "python3-$1"; else echo "python$version-$1"; fi
}

find_missing() {
    needed=
    useful=
    command -v g++ >/dev/null || needed="$needed g++"
    command -v cmake >/dev/null || needed="$needed cmake"
    command -v ninja >/dev/null || needed="$needed ninja-build"
    has_header gtest/gtest.h || needed="$needed libgtest-dev"
    can_make_environment || needed="$needed $(python_package venv)"
    has_header benchmark/benchmark.h || useful="$useful libbenchmark-dev"
    command -v ccache >/dev/null || useful="$useful ccache"
    # torch.compile builds small extensions at run time.
    has_python_headers || useful="$useful $(python_package dev)"
}

apt_install() {
    if [ "$(id -u)" = 0 ]; then
        as_root="env DEBIAN_FRONTEND=noninteractive"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root="sudo -n env DEBIAN_FRONTEND=noninteractive"
    else
        return 1
    fi
    command -v apt-get >/dev/null || return 1
    say "installing$*"
    # shellcheck disable=SC2086,SC2048
    $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends $* >/dev/null
}

find_missing
if [ -n "$needed$useful" ]; then
    apt_install "$needed$useful" || true
    find_missing
    [ -z "$needed" ] || die "missing system packages:$needed$useful (as root: apt-get install$needed$useful)"
    [ -z "$useful" ] || say "going on without:$useful"
fi

if ! { [ -x .venv/bin/python ] && new_enough .venv/bin/python; }; then
    say "making .venv with $python"
    "$python" -m venv --clear .venv
elif ! ls .venv/lib/python3*/site-packages/pip >/dev/null 2>&1; then
    die ".venv has no pip: remove it and run this again"
fi

# The stamp names what was installed, so that a changed requirement is noticed.
stamp=.venv/.installed-$(cat requirements-torch.txt requirements-dev.txt | cksum | tr ' ' '-')
if [ ! -f "$stamp" ]; then
    say "installing the Python packages (torch is large; this takes a while)"
    .venv/bin/python -m pip install --disable-pip-version-check --quiet \
        -r requirements-torch.txt -r requirements-dev.txt
    rm -f .venv/.installed-*
    : >"$stamp"
fi
