# Everything a newcomer needs: `make demo`, `make test`. The rest is for developers.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WITH_RAY := $(VENV)/.installed-distributed
WITH_TORCH := $(VENV)/.installed-gpu
WITH_SPHINX := $(VENV)/.installed-docs
OLDEST := .venv-oldest
NEWEST := .venv-newest
PEERS := .venv-peers
CONNECTORS := .venv-connectors

# Contiguous halves of the suite: workers seldom compile the same kernel at the same time.
QUICK := -m pytest -q -n auto --dist worksteal -m "not slow"

.PHONY: demo test learners devices lint types check check-full bench bench-distributed bench-gpu bench-peers bench-serve \
  bench-track coverage docs durability figures repro-quick clean build wheel-test oldest newest nojit other-cpus connectors

demo: $(INSTALLED) ## the main job on bundled data: a table and a picture
	$(BIN)/simstream demo --output-dir demo-output

test: $(WITH_RAY) ## the tests, on all cores
	$(BIN)/python $(QUICK)

# Nothing here depends on the operating system: no service, no processes, no limits of memory.
learners: ## the tests of the learners alone, with what is installed: CI runs them on macOS and Windows
	$(BIN)/python $(QUICK) @tests/learners.txt

docs: $(WITH_SPHINX) ## the documentation site, in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -j auto -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

figures: $(WITH_SPHINX) ## the pictures of the site, in docs/images
	$(BIN)/python docs/_site/figures.py

coverage: $(INSTALLED) ## which lines the tests run, in htmlcov/
	$(BIN)/python $(QUICK) --cov --cov-report=html

# The code for GPUs on the CPU. On a machine with one: make devices DEVICE=cuda
DEVICE ?= torch
devices: $(WITH_TORCH) ## the contract of learners that know devices, on one of torch
	$(BIN)/python $(QUICK) --device $(DEVICE) -k "oasis or ogd or pa-" \
	  tests/test_contract.py tests/test_against_reference.py tests/test_pairs.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

check: $(WITH_TORCH) lint types test devices repro-quick ## what CI runs

check-full: check nojit other-cpus wheel-test oldest newest docs ## the long checks too
	$(BIN)/python -m pytest -q -m slow

# The whole matrix of learners, layouts and precisions, of which `make test` compiles a sample.
nojit: $(INSTALLED) ## kernels as plain Python: every line, every branch, no compiler
	NUMBA_DISABLE_JIT=1 $(BIN)/python $(QUICK) \
	  tests/test_against_reference.py tests/test_stores.py tests/test_pairs.py tests/test_multitask.py \
	  tests/test_sdca.py tests/test_low_rank.py \
	  -k "not float32_threshold and not blocked_float32 and not interrupted_fit and not history_is_full"

# What a test sees must not depend on the machine: other BLAS kernels, numba for a generic CPU, NumPy without AVX2.
other-cpus: $(INSTALLED) ## the tests as if on other CPUs
	OPENBLAS_CORETYPE=Haswell $(BIN)/python $(QUICK) tests
	OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=generic $(BIN)/python $(QUICK) tests
	NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python tests/cpu_features.py)" $(BIN)/python $(QUICK) tests

wheel-test: build ## the built wheel in an empty environment runs the README and the tour
	rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install -qq -c constraints.txt dist/*.whl
	.venv-wheel/bin/simstream --help > /dev/null
	.venv-wheel/bin/python tests/readme_tour.py

oldest: ## the oldest dependencies pyproject allows
	test -x $(OLDEST)/bin/pytest || ($(PYTHON) -m venv $(OLDEST) && \
	  $(OLDEST)/bin/python -m pip install -qq -c constraints-oldest.txt -e ".[repro]" pytest pytest-xdist hypothesis)
	$(OLDEST)/bin/python $(QUICK) tests

newest: ## the newest releases of everything, and examples of hypothesis that no run has seen
	test -x $(NEWEST)/bin/pytest || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install -qq -U -e ".[dev]"
	HYPOTHESIS_PROFILE=random $(NEWEST)/bin/python $(QUICK) tests

connectors: ## the recipes for vector stores, encoders and frameworks, with everything that they use
	test -x $(CONNECTORS)/bin/python || $(PYTHON) -m venv $(CONNECTORS)
	$(CONNECTORS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	  -e ".[connectors]" hypothesis pytest
	$(CONNECTORS)/bin/python -m pytest -q tests/test_recipes.py tests/test_connectors.py src/simstream/connectors

durability: $(INSTALLED) ## all tests of the service, slow ones too: kills, full disks, damage, replicas, PostgreSQL (half an hour)
	$(BIN)/python -m pytest -q --counts tests/serve

bench: $(INSTALLED) ## speed and memory, written to docs/benchmarks.md (20 minutes)
	$(BIN)/python benchmarks/bench.py --write

bench-track: $(INSTALLED) ## a few benchmarks of this commit, kept in .asv to compare with others (asv)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt asv virtualenv
	$(BIN)/asv machine --yes --config benchmarks/asv.conf.json
	$(BIN)/asv run --config benchmarks/asv.conf.json HEAD^!

bench-peers: $(INSTALLED) $(PEERS)/.installed ## against metric-learn and eager NumPy, to docs/benchmarks-peers.md
	$(BIN)/python benchmarks/bench_peers.py --write

bench-gpu: $(WITH_TORCH) ## on a CUDA device, written to docs/benchmarks-gpu.md (3 minutes)
	$(BIN)/python benchmarks/bench_gpu.py --write

bench-distributed: $(WITH_RAY) ## columns divided over workers, written to docs/distributed.md (5 minutes)
	$(BIN)/python benchmarks/bench_distributed.py --write

bench-serve: $(INSTALLED) ## the service on loopback, written to docs/service.md (10 minutes)
	$(BIN)/python benchmarks/bench_serve.py --write

repro-quick: $(INSTALLED) ## every published experiment in small, on bundled data (part of CI)
	$(BIN)/simstream repro run --quick --jobs 2 --results repro-results/quick

build: $(INSTALLED) ## source distribution and, from it, the wheel, in dist/
	rm -rf dist && $(BIN)/python -m build -q

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(PEERS) $(CONNECTORS) .venv-wheel dist demo-output docs/_build docs/reference .asv .pytest_cache .mypy_cache .ruff_cache

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(WITH_RAY): $(INSTALLED)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[distributed]"
	touch $@

$(WITH_TORCH): $(WITH_RAY)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[gpu]"
	touch $@

$(WITH_SPHINX): $(INSTALLED)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

$(PEERS)/.installed: constraints-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-peers.txt metric-learn
	touch $@
