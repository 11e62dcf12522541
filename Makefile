# Everything runs inside .venv, made from requirements.lock. Prerequisites:
# Python 3.11 or later and Java 17 or later.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done

# Tests and demo start hundreds of processes. Where nothing may keep bytecode, each of them
# compiles all that it imports: a receiver's start took 2.2 s of a processor instead of 0.8.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types bench soak lock clean check-java

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

setup: $(STAMP)  ## make .venv from the lock file, with penstock installed editable

# uv comes first, out of the same lock file, because it installs the rest in half
# the time; where it cannot (an index that only pip knows of), pip does it.
$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "penstock: $(PYTHON) not found; install Python 3.11 or later, or run 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "penstock: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or later is needed, name one with 'make PYTHON=python3.11 ...'" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV)
	@awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock > $(VENV)/uv.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r $(VENV)/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock \
		|| $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

check-java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1); \
	if [ -z "$$version" ]; then \
		echo "penstock: no Java found; Spark needs Java 17 or later (install a JDK, or set JAVA_HOME)" >&2; exit 1; \
	elif [ "$$version" -lt 17 ]; then \
		echo "penstock: Java $$version found; Spark needs Java 17 or later (set JAVA_HOME to one)" >&2; exit 1; \
	fi

demo: check-java setup  ## replicate a small shop into ./demo-lake, live
	$(BIN)/penstock demo

test: check-java setup  ## run the tests, in two processes (one: make test ARGS='-n 0 ...')
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not campaign" $(ARGS)

lint: setup  ## check lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## check types, strictly, on src
	$(BIN)/mypy

bench: check-java setup  ## measure, and write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(ARGS)

soak: check-java setup  ## the long tests, then 160 kills, and write benchmarks/SOAK.md
	$(BIN)/python -m pytest -n 2 --dist worksteal -m campaign
	$(BIN)/python -m benchmarks.soak $(ARGS)

# Hashes of every dependency for Python 3.11 to 3.13, and no index address. The
# build backend is locked too, so that installing penstock itself asks nobody.
lock: setup  ## pin every dependency again, as new as pyproject.toml allows
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade \
		--extra dev --output-file requirements.lock pyproject.toml

clean:  ## remove what the other targets make, but not the lock file
	rm -rf $(VENV) demo-lake .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		spark-warehouse metastore_db derby.log build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
