# Two commands do everything:  make accept   and   make test
PYTHON ?= python3
VENV ?= .venv
TARGET ?= sim
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: accept test lint types format bench lab lab-vllm lab-dynamo wheel clean

accept: $(VENV)/.run
	$(BIN)/pytest --pd-target=$(TARGET) $(ARGS)

test: $(VENV)/.dev
	$(BIN)/pytest tests -n $(JOBS) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m bench $(ARGS)

# Real deployments on this machine: vLLM behind vllm-router, and Dynamo's frontend with its mock engines.
lab: lab-vllm lab-dynamo

lab-vllm: $(VENV)/.dev
	$(BIN)/python -m tests.lab vllm run

lab-dynamo: $(VENV)/.dev
	$(BIN)/python -m tests.lab dynamo run

wheel: $(VENV)/.dev
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11: name a newer one, make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.run
