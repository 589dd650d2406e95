# Every target sets up what it needs. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := build/demo

# tests start many processes; without compiled files each would compile the package again
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo loop-demo test test-cluster check format bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/mbcal/kernels/native/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "mbcal needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	# torch by its exact pin and first: a range could fetch a CUDA build of several gigabytes
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "$$(grep '^torch==' constraints.txt)" setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	touch $@

setup: $(STAMP) ## make the virtual environment and install everything, pinned

demo: $(STAMP) ## MBCAL against three other policies on a generated newsfeed: a simulator, Batch-RL, growing rounds, the report
	rm -rf $(DEMO)
	$(BIN)/mbcal experiment newsfeed --agents mbcal,gru4rec,dqn,random --seeds 1 --set rounds=2 --set round_sessions=800 \
	  --set test_sessions=1000 --set log_sessions=6400 --set net.hidden=32 --out $(DEMO)

loop-demo: $(STAMP) ## simulated users and a real server: collect, update, gate, canary, again
	$(BIN)/python examples/closed_loop.py --folder build/loop

test: $(STAMP) ## run the tests
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not cluster"  # tests of a file share fixtures, such as a cluster

test-cluster: $(STAMP) ## tests whose clusters are killed and started again (minutes)
	$(BIN)/pytest -m cluster

check: $(STAMP) ## format, lint, types, import contract
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## format and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP) ## run the benchmarks (minutes, gigabytes of disk)
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/experiment.py
	$(BIN)/python benchmarks/log.py
	$(BIN)/python benchmarks/scale.py

clean: ## remove everything that was made
	rm -rf $(VENV) build dist src/*.egg-info src/mbcal/kernels/native/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
