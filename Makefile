# The habits of this project, each one word. Everything is set up on first use.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: quickstart test lint format bench

quickstart: $(VENV)/.core  ## a federated model, with and without a sketch
	$(BIN)/python -m launch.quickstart

test: $(VENV)/.test  ## all tests and doctests
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.test  ## style, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test  ## mend what lint complains about, where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.core  ## how fast the sketches are, against a copy
	$(BIN)/python -m launch.benchmark --suite=sketch

$(VENV)/.core: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --requirement requirements.txt
	$(PIP) --no-deps --editable .
	touch $@

$(VENV)/.test: $(VENV)/.core requirements-test.txt
	$(PIP) --requirement requirements-test.txt
	touch $@
