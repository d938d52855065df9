# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo

.PHONY: help install demo test lint test-slow bench clean

help:
	@echo "make demo       synthetic cohort, ASMIL and ABMIL trained on it, a table and a report"
	@echo "make test       everything: ruff, mypy, import-linter, pytest"
	@echo "make test-slow  the tests that take longer"
	@echo "make bench      speed of the folded ASMIL beside the plain form, as ratios"
	@echo "make clean      remove the environment, the demo and all caches"

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml src/asmil/version.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/asmil synthetic $(DEMO)/cohort --slides 60 --seed 0
	$(BIN)/asmil train $(DEMO)/cohort/cohort.csv --method asmil --out $(DEMO)/runs/asmil
	$(BIN)/asmil train $(DEMO)/cohort/cohort.csv --method abmil --out $(DEMO)/runs/abmil
	$(BIN)/asmil evaluate $(DEMO)/runs/asmil $(DEMO)/runs/abmil --out $(DEMO)/report

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: install
	$(BIN)/python -m pytest -m slow

bench: install
	$(BIN)/python benchmarks/asmil_speed.py

clean:
	rm -rf $(VENV) $(DEMO) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
