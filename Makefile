# The habits of this project, each one word. Everything is set up on first use.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what is imported, which is less than all that is installed, and keeps
# it: each process of the tests would compile jax again.
export PYTHONDONTWRITEBYTECODE =
PIP := $(BIN)/pip install --no-compile --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2

.PHONY: quickstart check fast test test-slow test-all lint format docs bench

quickstart: $(VENV)/.core  ## a federated model, with and without a sketch
	$(BIN)/python -m launch.quickstart

check: $(VENV)/.test  ## style, types, and the laws that take least time, at once
	$(MAKE) --jobs 2 --output-sync lint fast

fast: $(VENV)/.test
	$(BIN)/python -m pytest -m "fast and not slow"

test: $(VENV)/.test  ## the laws of all parts, and doctests
	$(PYTEST) --dist loadfile -m "not slow"

test-slow: $(VENV)/.test  ## whole runs from end to end, which `make test` leaves out
	$(PYTEST) --dist worksteal -m slow

test-all: test test-slow  ## all tests

lint: $(VENV)/.test  ## style and types, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.test  ## mend what lint complains about, where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## the site, in build/docs; a warning is an error
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs

bench: $(VENV)/.core  ## how fast the sketches are, against a copy
	$(BIN)/python -m benchmarks.sketch

$(VENV)/.core: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --requirement requirements.txt
	$(PIP) --no-deps --editable .
	touch $@

$(VENV)/.test: $(VENV)/.core requirements-test.txt
	$(PIP) --requirement requirements-test.txt
	touch $@

$(VENV)/.docs: $(VENV)/.core requirements-docs.txt
	$(PIP) --requirement requirements-docs.txt
	touch $@
