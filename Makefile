# The commands of daily work. `make` lists them.
BIN := .venv/bin

.PHONY: help install test lint coverage docs ci

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: .venv  ## create .venv and install vfl with the tools of development
	$(BIN)/pip install -e '.[test,docs]'

.venv:
	python3 -m venv .venv

test:  ## run the tests on all cores
	$(BIN)/python -m pytest

lint:  ## format the code, then check style and types
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

coverage:  ## run the tests with coverage and enforce its floor
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered --cov-report=html

docs:  ## build the site into site/
	$(BIN)/python -m mkdocs build --strict

ci:  ## run everything that must hold in a clean checkout
	.ci/run
