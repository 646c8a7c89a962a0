# Everything runs in .venv, which `make setup` fills once; a second `make` finds its stamp and does nothing.

# FedML comes along on 3.11 and 3.10 alone, so those first.
PYTHON ?= $(shell for p in python3.11 python3.10 python3.13 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup.done
FLOWER := .venv-flower
WORKERS ?= 3

.PHONY: help setup demo test coverage test-fast test-flower lint docs generated wheels clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## the environment in .venv (Python 3.10 or later; about 5.5 GB with torch)

# One pip call, so that torch and torchvision are resolved together: FedML breaks on an unmatched pair.
$(STAMP): pyproject.toml registry/pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.10 or later found" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e registry -e '.[test,dev]'
	! test -x $(BIN)/fedml || $(BIN)/python -m pip install --quiet --no-deps \
		mlflow-skinny==2.12.2 entrypoints pytz sqlparse  # docs/trackers.md says why
	touch $@

# Flower excludes FedML. Its environment sees all packages of .venv behind its own ones.
$(FLOWER)/.setup.done: pyproject.toml registry/pyproject.toml
	$(BIN)/python -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet 'flwr[simulation]==1.42.*'
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(FLOWER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_venv.pth"
	$(FLOWER)/bin/python -m pip install --quiet --no-deps -e registry -e .
	touch $@

demo: setup  ## a first run: several minutes to set up, then a short training on the digits
	$(BIN)/labelskew run recipes/quickstart.yaml

# Files in the order of tests/conftest.py: xdist would sort them by their number of tests.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SYSTEM = $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/system

test: test-fast  ## all tests, first the unit tests
	$(SYSTEM)

test-fast: setup  ## the unit tests: no processes, no network, no long training; one minute on two cores
	$(PYTEST) -n 2 --dist worksteal tests/unit

test-flower: setup $(FLOWER)/.setup.done  ## the tests on Flower, in .venv-flower (Python 3.11 or later)
	OMP_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest tests/unit/runtimes/flower
	FLOWER_VENV=$(CURDIR)/$(FLOWER) $(PYTEST) tests/system/runtimes/flower

coverage: setup  ## all tests, and which lines they run: half as long again
	$(PYTEST) -n 2 --dist worksteal --cov --cov-report= --cov-fail-under=0 tests/unit
	$(SYSTEM) --cov --cov-append --cov-report=term-missing:skip-covered

lint: setup  ## ruff, mypy strict on both packages, and the order of imports (import-linter)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## the documentation as a site, docs/_build/html; whatever it warns of is an error
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q docs docs/_build/html

generated: setup  ## write the generated files again: the schema of recipes, tables in docs/; after a change of a plugin
	$(BIN)/python tools/generate.py

wheels:  ## both wheels, into dist/, for `pip install dist/*.whl`; seconds, and no setup
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist ./registry .

clean:  ## everything that make made
	rm -rf $(VENV) $(FLOWER) dist docs/_build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
