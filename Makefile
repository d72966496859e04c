# Needs python3 (3.11 or newer) with its venv module, and nothing else: every target sets up what it uses.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With an NVIDIA driver, CUDA's packages and cuBLAS come along; on any other machine they would be of no use
# PyTorch's tests have an environment of their own: it brings its own CUDA packages, 5 GB
TORCH := .venv-torch
GPU := $(if $(wildcard /dev/nvidiactl /proc/driver/nvidia/version),$(VENV)/ready-gpu)
PIP := -m pip install -q --disable-pip-version-check

.PHONY: ladder test test-slow test-torch test-wheel test-gpu test-all fuzz faults lint tables report site wheels lock clean

ladder: $(VENV)/ready $(GPU)
	$(BIN)/toprung ladder kepler
	@echo "now: . $(BIN)/activate; toprung explain kepler/r09 (why a rung stops where it does); toprung report (a page of what is kept)"

# Tests start many processes, each of which would compile the package again if the environment kept Python from storing bytecode
test test-slow test-torch test-all: export PYTHONDONTWRITEBYTECODE :=

# Each test file in a process of its own; what passed here with the same inputs is taken as passed (ALL=--all: nothing is)
ALL ?=
RUN = $(BIN)/python tests/run.py $(ALL) --preload numpy --preload hypothesis --preload pyopencl --without tests/pytorch

test: lint
	$(RUN) -m "not slow and not drawn" tests

# Tests of what the host decides, remembers and stores, and of what measures: whatever their kernels are compiled with
HOST := bandwidth banks bench cli explain faults first_use guidelines held keys planning probe results shares site store tune \
  tune_runs tuned warm

# PoCL's optimiser takes 3 s a kernel: long tests, which compile hundreds, planted bugs, and tests of the host go without it
test-slow: $(VENV)/ready-dev $(TORCH)/ready
	$(RUN) -m "slow and not drawn" tests
	$(RUN) $(HOST:%=--without tests/test_%.py) --optimised -m "on_device and not slow and not drawn" -k "not planted and not another_legal_tile" tests
	$(TORCH)/bin/python tests/run.py $(ALL) --preload torch --disable-warnings -m "slow and not drawn" tests/pytorch

# PyTorch with toprung's kernels below it: its own samples of operators, gradients, compilation; CUDA graphs where there is a GPU.
# JAX's arrays, NumPy's bfloat16, and tensors in the tests of remembered calls are here, too
test-torch: $(TORCH)/ready
	$(TORCH)/bin/python tests/run.py $(ALL) --preload torch --disable-warnings -m "not slow and not drawn" tests/pytorch \
	  tests/test_jax.py tests/test_mixed.py tests/test_warm.py tests/test_keys.py

# What needs an NVIDIA GPU, CuPy's tests among it: the log is kept in results/<device>. GPU_PYTHON has PyTorch, CuPy and JAX for CUDA
GPU_PYTHON ?= $(TORCH)/bin/python
test-gpu:
	$(GPU_PYTHON) tools/gpu_tests.py

# Everything, whatever passed before, and tests that draw seeds of their own
test-all: ALL = --all
test-all: test test-slow test-torch test-wheel
	$(RUN) -m drawn tests

# This machine's wheel with the native code for the oldest and the newest PyTorch, and its tests with that; downloads 0.5 GB for each
test-wheel: $(VENV)/ready-wheels $(TORCH)/ready
	$(BIN)/python tools/wheels.py --arch $$(uname -m) --ends --out build/wheels
	rm -rf build/wheel && $(BIN)/python -m zipfile -e build/wheels/*linux*.whl build/wheel
	PYTHONPATH=build/wheel $(TORCH)/bin/python -m pytest tests/pytorch/test_bridge.py tests/pytorch/test_taken.py

# Random products beside float64 and the vendor's on the same data, for as long as wanted: make fuzz MINUTES=30
MINUTES ?= 1
fuzz: $(VENV)/ready-dev
	$(BIN)/python benchmarks/fuzz.py --minutes $(MINUTES)

# Commands killed at drawn moments, and with KINDS="words results store" given drawn words and damaged files: make faults TIMES=200
TIMES ?= 10
KINDS ?= kill
faults: $(VENV)/ready-dev
	$(BIN)/python tests/faults.py $(KINDS) --times $(TIMES) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Make the tables in README and docs anew from results/
tables: $(VENV)/ready
	$(BIN)/python tools/make_tables.py

# The report that pages link to: compiles every rung, for which no GPU is needed; machine code is kept in the user's cache
REPORT := $(BIN)/toprung report results/nvidia-h200 --out docs/report

# The documentation as a site in site/: fails on dead links and anchors, and on pages that docs/index.md does not name
site: $(VENV)/ready-dev $(VENV)/ready-site
	$(REPORT)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python tools/site/check.py site

# Make the report and its picture in docs/report anew from results/
report: $(VENV)/ready-dev
	$(REPORT) --picture docs/report/ladders.svg

# Wheels in dist/: pure Python, and with native code for Linux on x86-64 and aarch64, each with compiled CUDA kernels, which take
# half an hour the first time. Needs Debian's g++-aarch64-linux-gnu
wheels: $(VENV)/ready-wheels $(VENV)/ready-dev
	$(BIN)/python tools/cubins.py
	$(BIN)/python tools/wheels.py
	$(BIN)/python tools/cubins.py --check dist/*.whl

# Pin what pyproject.toml asks for, with hashes and without naming any package host
COMPILE := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
  --no-emit-find-links --group build --extra plot --extra report pyproject.toml
lock: $(VENV)/ready-dev
	$(BIN)/python -m pip install -q uv
	$(BIN)/$(COMPILE) -o requirements.lock
	$(BIN)/$(COMPILE) --extra dev -o requirements-dev.lock
	$(BIN)/$(COMPILE) --extra site -o requirements-site.lock
	$(BIN)/$(COMPILE) --group wheels -o requirements-wheels.lock
	$(BIN)/$(COMPILE) --extra cuda13 --group gpu -o requirements-gpu.lock
	$(BIN)/$(COMPILE) --group pytorch -o requirements-torch.lock

clean:
	rm -rf $(VENV) $(TORCH) dist build site docs/report/index.html

$(VENV)/ready: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --require-hashes -r requirements.lock
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/ready-dev: requirements-dev.lock $(VENV)/ready
	$(BIN)/python $(PIP) --require-hashes -r requirements-dev.lock
	touch $@

$(VENV)/ready-site: requirements-site.lock $(VENV)/ready
	$(BIN)/python $(PIP) --require-hashes -r requirements-site.lock
	touch $@

$(VENV)/ready-wheels: requirements-wheels.lock $(VENV)/ready
	$(BIN)/python $(PIP) --require-hashes -r requirements-wheels.lock
	touch $@

$(TORCH)/ready: requirements-torch.lock pyproject.toml
	test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python $(PIP) --require-hashes -r requirements-torch.lock
	$(TORCH)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/ready-gpu: requirements-gpu.lock $(VENV)/ready
	$(BIN)/python $(PIP) --require-hashes -r requirements-gpu.lock
	touch $@
