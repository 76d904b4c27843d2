# `make help` lists what there is. On a machine of its own kind (a GPU machine without network, say):
#   make test-gpu PYTHON=python3 BOOTSTRAP=0
# uses that interpreter and its torch, and installs nothing.

BOOTSTRAP ?= 1
PRESET ?= dev
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?= --seed 1000 --seconds 60
# What compute-sanitizer watches: every op and gradient on the device, in a selection that takes minutes.
MEMCHECK_TESTS ?= $(addprefix tests/python/,test_product_matrix.py::test_third_derivatives \
  test_product_layouts.py::test_conjugated_views test_sparse_scale.py::test_value test_conv_values.py \
  test_etp_executors.py)

ifeq ($(BOOTSTRAP),1)
PY := .venv/bin/python
else
PYTHON ?= python3
PY := $(PYTHON)
endif
PY_PATH = $(abspath $(shell command -v $(PY);))
RUN = PYTHONPATH=python $(PY)

CPP_DIRS = $(wildcard include src tests benchmarks examples cmake)
CPP_FILES = $(shell find $(CPP_DIRS) -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
PY_DIRS = $(wildcard python benchmarks examples scripts tests/python)

.DEFAULT_GOAL := help
.PHONY: help bootstrap build demo test test-gpu memcheck-gpu bench bench-gpu fuzz mutants lint tidy format clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bootstrap: ## install what is missing: system packages and .venv (BOOTSTRAP=0: nothing)
ifeq ($(BOOTSTRAP),1)
	@PYTHON='$(PYTHON)' sh scripts/bootstrap.sh
endif

build: bootstrap ## build the library and its C++ tests (PRESET=dev, release, cuda, asan, tsan)
	cmake --preset $(PRESET) -DPython_EXECUTABLE=$(PY_PATH)
	cmake --build --preset $(PRESET) -j $(JOBS)

demo: PRESET = release
demo: build ## show what works, with pictures
	$(RUN) examples/demo.py

test: bootstrap ## everything: C++, Python, sanitizers, install and wheel
	@PYTHON='$(PY)' JOBS='$(JOBS)' PYTEST_ARGS='$(PYTEST_ARGS)' sh scripts/test.sh cpu

test-gpu: bootstrap ## C++ and Python tests with the CUDA device
	@PYTHON='$(PY)' JOBS='$(JOBS)' PYTEST_ARGS='$(PYTEST_ARGS)' sh scripts/test.sh gpu

memcheck-gpu: PRESET = cuda
memcheck-gpu: build ## a selection of the tests under compute-sanitizer memcheck
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 LACEWING_TEST_DEVICE=cuda PYTHONPATH=python compute-sanitizer --tool memcheck \
	  --error-exitcode 9 $(PY) -m pytest -q -p no:cacheprovider $(MEMCHECK_TESTS)

bench: PRESET = release
bench: build ## side by side with peers on the CPU (BENCH_ARGS=...)
	$(RUN) -m benchmarks $(BENCH_ARGS)

bench-gpu: PRESET = release
bench-gpu: build ## the same on the CUDA device
	$(RUN) -m benchmarks --device cuda $(BENCH_ARGS)

fuzz: build ## call the library with arguments that nobody would think of (FUZZ_ARGS=--seconds 3600)
	$(RUN) scripts/fuzz.py $(FUZZ_ARGS)

mutants: build ## break the kernels on purpose; the tests must notice
	$(RUN) scripts/mutants.py

lint: bootstrap ## formatting, ruff and mypy
	$(PY) -m ruff check $(PY_DIRS)
	$(PY) -m ruff format --check $(PY_DIRS)
	$(PY) -m mypy
	$(dir $(PY))clang-format --dry-run -Werror $(CPP_FILES)

tidy: build ## clang-tidy over the library (slow)
	clang-tidy -p build/$(PRESET) --quiet --extra-arg=-fno-openmp $(filter src/%.cpp,$(CPP_FILES))

format: bootstrap ## rewrite sources in the project's format
	$(PY) -m ruff format $(PY_DIRS)
	$(PY) -m ruff check --fix --exit-zero $(PY_DIRS)
	$(dir $(PY))clang-format -i $(CPP_FILES)

clean: ## remove what was built
	rm -rf build dist python/lacewing/lib .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean ## and the environment
	rm -rf .venv
