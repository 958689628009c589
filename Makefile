# Everything runs in .venv, which the first target makes and later ones reuse.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-odd test-all test-low test-ray gpu gpu-bundle dist check docs reference format weigh clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv: some minutes, and 7 GB with PyTorch for CUDA …"
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@! nvidia-smi >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet \
		".[cuda$$($(BIN)/python -c 'import torch; print((torch.version.cuda or "13").split(".")[0])')]"
	@touch $@

demo: $(READY) ## Run the whole pipeline on handwritten digits, offline, in about a minute
	@$(BIN)/clinit demo --out demo
	@echo "clinit is in .venv: source .venv/bin/activate"

# One thread per process, because the tensors of the tests are too small to divide, and idle threads
# spin. The commands that tests start write no bytecode, so it is compiled before. All tests of a
# file run in one process, because they share fixtures. Files keep their order, slow ones first,
# instead of being sorted by their number of tests.
COMPILE := $(BIN)/python -m compileall -q cli extract headtrain analysis src/clinit
THREADS = 1
PYTEST = OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
	--dist loadfile --no-loadscope-reorder

test: $(READY) ## Run the fast tests (GPU tests only if there is a GPU)
	@$(COMPILE)
	@$(PYTEST) -m "not slow"

# What some machines have: forced colours, another temporary folder, a CPU without AVX-512, threads,
# which wait asleep because two processes share two CPUs.
test-odd: THREADS = 2
test-odd: $(READY) ## Run the fast tests in another environment and in another order
	@$(COMPILE)
	@mkdir -p build/tmp
	@FORCE_COLOR=1 TMPDIR=$(CURDIR)/build/tmp ONEDNN_MAX_CPU_ISA=AVX2 OMP_WAIT_POLICY=PASSIVE \
		$(PYTEST) -m "not slow" --shuffle 1

# Kernels without AVX sum in another order, so tolerances that fit only one CPU fail here.
test-all: $(READY) build/cupy ## Run all tests, with other CPU kernels and run-time type checks
	@$(COMPILE)
	@CLINIT_CUPY=$(CURDIR)/build/cupy OPENBLAS_CORETYPE=Prescott ATEN_CPU_CAPABILITY=default $(PYTEST) \
		--jaxtyping-packages=clinit,checked.check --hypothesis-profile=random

# CuPy can be imported without a GPU. Only the test that checks its names reads this folder.
build/cupy: $(READY)
	@$(BIN)/python -m pip install --quiet --no-deps --target $@ cupy-cuda13x
	@touch $@

# What `pip install` accepts at the least: a GPU machine without a registry has its own versions.
LOWEST_PYTHON ?= python3.11
LOWEST = import tomllib; of = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	named = of["dependencies"] + of["optional-dependencies"]["onnx"]; \
	print(*(each.replace(">=", "==") for each in named), sep="\n")
test-low: ## Run the fast tests with the lowest versions of Python and all packages; 7 GB
	@test -x build/low/bin/python || $(LOWEST_PYTHON) -m venv build/low
	@build/low/bin/python -c '$(LOWEST)' > build/low/lowest.txt
	@build/low/bin/python -m pip install --quiet --requirement build/low/lowest.txt --editable . \
		array-api-strict beartype build hypothesis import-linter "pytest<9" pytest-xdist ruff
	@$(MAKE) test BIN=build/low/bin READY=

# Ray is large, so only its own tests get it, on a cluster in a network of its own.
test-ray: $(READY) build/ray ## Run the tests that need Ray; 260 MB are downloaded for them
	@PYTHONPATH=$(CURDIR)/build/ray $(BIN)/python -m pytest -rs tests/headtrain/protocol/sweep/test_ray.py

build/ray: $(READY)
	@$(BIN)/python -m pip install --quiet --target $@ "ray>=2.40"
	@touch $@

# The script has a time limit.
gpu: $(READY) ## Run GPU tests, then compare speeds with the GPU's limits: at most ten minutes
	@$(BIN)/python benchmarks/gpu.py --tests --out benchmarks

# Needs no environment of clinit: build makes its own.
dist: build/tools ## Build wheel and sdist into build/dist, and check them
	@rm -rf build/dist
	@PYTHONPATH=build/tools $(PYTHON) -m build --outdir build/dist . >/dev/null
	@PYTHONPATH=build/tools $(PYTHON) -m twine check --strict build/dist/*

build/tools:
	@$(PYTHON) -m pip install --quiet --target $@ build twine

# For a machine with PyTorch, timm and CuPy, but without a registry: unpack it there, then in `gpu`,
# PYTHONPATH=site:src python3 benchmarks/gpu.py --tests --out benchmarks
CARRIED = array-api-compat array-api-strict beartype msgspec plotext polars polars-runtime-32 timm torchcodec
PLATFORMS = $(foreach n,2_28 2_24 2_17,--platform manylinux_$(n)_x86_64) --platform manylinux2014_x86_64
gpu-bundle: $(READY) ## Write build/gpu.tar.xz (44 MB): what `make gpu` needs where pip does not work
	@rm -rf build/gpu && mkdir -p build/gpu
	@$(BIN)/python -m pip install --quiet --target build/gpu/site --no-deps --no-compile \
		--only-binary=:all: --python-version 3.12 $(PLATFORMS) $(CARRIED)
	@cp -r $$($(BIN)/python -c 'from importlib.metadata import distribution as d; \
		print(d("clinit")._path)') build/gpu/site
	@git archive HEAD | tar -xC build/gpu
	@XZ_OPT=-T0 tar -cJf build/gpu.tar.xz -C build gpu

check: $(READY) docs ## Run static checks: format, lint, types, layers, documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(READY) ## Build the documentation in site/; warnings are errors
	@PYTHONPATH=src $(BIN)/zensical build --clean --strict
	@echo "Open site/index.html"

reference: $(READY) ## Write docs/commands.md from the help of the commands
	@$(BIN)/python -m clinit.cli.reference docs/commands.md

format: $(READY) reference ## Format the code and apply automatic fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

weigh: $(READY) ## Print code lines and files of each room and of the tests
	@$(BIN)/python tests/weigh.py

clean: ## Remove files of the demo, the tests and the build, but not .venv
	@rm -rf demo build dist site .cache .coverage .*_cache src/*.egg-info
