# Everything runs in .venv, which is made on first use and reused.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# CuPy for the machine's CUDA driver; nothing where nvidia-smi does not answer.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
EXTRA := $(if $(CUDA),$(if $(filter 12,$(CUDA)),[cuda12],[cuda13]))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all gpu check docs reference format weigh clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv: some minutes, and 7 GB with PyTorch for CUDA …"
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable ".$(EXTRA)" --group dev
	@touch $@

demo: $(READY) ## The whole pipeline on handwritten digits, offline, in about a minute
	@$(BIN)/clinit demo --out demo
	@echo "clinit is in .venv: source .venv/bin/activate"

# One thread in each process: the tensors of the tests are too small to share, and idle threads
# spin. The commands that the tests start write no bytecode, so it is written before. A file stays
# in one process, for what its tests share; files with slow tests come first, not those with many.
COMPILE := $(BIN)/python -m compileall -q cli extract headtrain analysis src/clinit
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
	--dist loadfile --no-loadscope-reorder

test: $(READY) ## Tests that guard a change (GPU tests if there is a GPU)
	@$(COMPILE)
	@$(PYTEST) -m "not slow"

# Kernels without AVX sum in another order: no tolerance of a test may come from one CPU.
test-all: $(READY) build/cupy ## All tests, with other CPU kernels, and types checked as they run
	@$(COMPILE)
	@CLINIT_CUPY=$(CURDIR)/build/cupy OPENBLAS_CORETYPE=Prescott ATEN_CPU_CAPABILITY=default $(PYTEST) \
		--jaxtyping-packages=clinit,checked.check

# CuPy, which imports without a GPU, in a place that only the test of its names reads.
build/cupy: $(READY)
	@$(BIN)/python -m pip install --quiet --no-deps --target $@ cupy-cuda13x
	@touch $@

# One command for a day with a GPU; the script has the time limit.
gpu: $(READY) ## GPU tests, then speeds next to the GPU's limits: at most ten minutes
	@$(BIN)/python benchmarks/gpu.py --tests --out benchmarks

check: $(READY) docs ## Static checks: format, lint, types, layers, documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(READY) ## The documentation site, in site/; a warning is an error
	@PYTHONPATH=src $(BIN)/zensical build --clean --strict
	@echo "Open site/index.html"

reference: $(READY) ## Write docs/commands.md from the help of the commands
	@$(BIN)/python -m clinit.cli.reference docs/commands.md

format: $(READY) reference ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

weigh: $(READY) ## Code lines and files of each room and of the tests
	@$(BIN)/python tests/weigh.py

clean: ## Remove what the demo, the tests and the build left (not .venv)
	@rm -rf demo build dist site .cache .coverage .*_cache src/*.egg-info
