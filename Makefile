# Two commands on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-one check docs docs-serve dist clean

demo: .venv/ready  ## four algorithms on the embedded digits, three seeds: a table, the figure of the README, a page
	$(BIN)/heterophony compare fedavg fedper fedrod fedreg --file examples/demo.toml --seeds 0-2 --out runs/demo
	$(BIN)/heterophony report runs/demo -o runs/demo/curves.png
	$(BIN)/heterophony report runs/demo

test: .venv/dev check  ## every check and every test
	scripts/system
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal  # many tests start Python: compile once

test-one: .venv/dev  ## everything that concerns one algorithm, in under a minute: make test-one NAME=ditto
	$(BIN)/python scripts/test_one $(NAME)

check: .venv/dev  ## lint, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: .venv/dev  ## the site, without the network: build/docs/site/index.html
	$(BIN)/python scripts/docs

docs-serve: .venv/dev  ## the same, shown on http://127.0.0.1:8000/
	$(BIN)/python scripts/docs serve

dist: .venv/dev  ## wheel and sdist in dist/, checked: metadata, contents, and a run in an empty environment
	$(BIN)/python scripts/dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

.venv/dev: .venv/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
