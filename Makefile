# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV ?= .venv
# The build of torch to train with; choose another with e.g. `make test TORCH_CONSTRAINT=my-constraints.txt`.
TORCH_CONSTRAINT ?= constraints-torch.txt
PYTEST_ARGS ?= -n auto --dist worksteal
BIN := $(VENV)/bin
# One thread a process: a second BLAS thread on a busy machine only slows the first.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
SOURCES := src tests benchmarks scripts rollouts examples

.PHONY: help demo demo-train test lint format docs unit integration e2e browser bench nightly nightly-tests nightly-series test-pythons model clean

help:
	@echo "make demo          evaluate an agent with the built-in model: no account, no key, no GPU"
	@echo "make demo-train    train that model, too, and show what it learned (installs torch)"
	@echo "make test          lint, type-check and test everything"
	@echo "make unit          the unit tests alone: what to run after each change"
	@echo "make browser       the tests in a browser, with what they need (Chromium itself: apt install chromium)"
	@echo "make docs          build the documentation site in build/site"
	@echo "make bench         run the benchmarks"
	@echo "make nightly       run the long checks: full test matrix, fault series, simulations, every Python"
	@echo "make format        format the code"
	@echo "make model         rebuild the built-in model from scratch (about 7 CPU-minutes, needs torch)"
	@echo "make test-pythons  run the unit and integration tests on every Python 3.10-3.13 found"

demo: $(VENV)/.demo
	@$(BIN)/osmosis demo

demo-train: $(VENV)/.train
	@$(BIN)/osmosis demo --train

test: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

unit: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not e2e and not integration"

integration: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "integration and not e2e"

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest -m e2e

browser: $(VENV)/.browser
	OSMOSIS_TEST_BROWSER=required $(BIN)/python -m pytest tests/browser

bench: $(VENV)/.dev
	@for bench in $(filter-out benchmarks/harness.py benchmarks/gpu.py,$(wildcard benchmarks/*.py)); do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

# Hours on two cores. Its parts can be run one by one.
nightly: nightly-tests nightly-series test-pythons

nightly-tests: $(VENV)/.nightly
	NIGHTLY=1 $(BIN)/python -m pytest $(PYTEST_ARGS) -m "nightly or hypothesis"

nightly-series: $(VENV)/.nightly
	OSMOSIS_KILLS=15 $(BIN)/python -m pytest -q -s tests/e2e/test_kill_and_resume.py tests/e2e/test_platform_kill.py \
		tests/e2e/test_eval_rubric.py::test_kills_and_resume
	NIGHTLY=1 OSMOSIS_KILLS=4 $(BIN)/python -m pytest -q -s tests/e2e/test_training_kill.py tests/e2e/test_training_platform_kill.py
	$(BIN)/python -m tests.nightly.worker_faults
	$(BIN)/python -m tests.nightly.worker_faults --ray
	$(BIN)/python -m tests.nightly.interval_coverage

model: $(VENV)/.dev
	$(BIN)/python scripts/make_tiny_model.py
	$(BIN)/python -m tests.inference.make_transformers_reference

test-pythons:
	@PYTHON_VERSIONS="3.10 3.11 3.12 3.13" sh scripts/test_pythons.sh

clean:
	rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: Osmosis needs Python 3.10 or newer, and $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[platform]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@

$(VENV)/.browser: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e '.[browser]'
	@touch $@

$(VENV)/.nightly: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e '.[browser,ray]' -c $(TORCH_CONSTRAINT)
	@touch $@

# First and by itself: asked for by another package, torch comes as a build with gigabytes of CUDA.
$(VENV)/.torch: $(TORCH_CONSTRAINT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -r $(TORCH_CONSTRAINT)
	@touch $@

$(VENV)/.train: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet -e '.[platform,train]' -c $(TORCH_CONSTRAINT)
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet -e '.[dev,platform,train,loggers,openai-agents,strands]' -c $(TORCH_CONSTRAINT)
	@touch $@
