# Everything runs from .venv, which `make setup` makes and keeps up to date; each target can be the first one on a fresh machine.
BIN := .venv/bin
SCRIPTS := scripts/setup scripts/test scripts/check-docs

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all bench prove docs clean lock

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv, install the locked packages, fetch the pinned jars (quick when nothing changed)
	@command -v python3 >/dev/null || { echo "setup: there is no python3 on the PATH; icefront needs Python 3.11 or newer" >&2; exit 1; }
	@scripts/setup

demo: setup ## a generated shop, crashes included, into a temporary lakehouse, with proof: a minute or two
	@$(BIN)/icefront demo

check: setup ## format, lint, types, import rules, links in the documentation
	$(BIN)/ruff format --check . $(SCRIPTS)
	$(BIN)/ruff check . $(SCRIPTS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check-docs

test: setup ## the test suite
	@$(BIN)/python scripts/test

test-all: setup ## the test suite with its long forms
	@$(BIN)/python scripts/test --all

bench: setup ## measure throughput and latency on this machine
	@$(BIN)/python -m bench

prove: setup ## random faults against real processes for MINUTES (3), with SEED to repeat, CATALOG=rest for a REST catalog behind a fault proxy
	@$(if $(filter rest,$(CATALOG)),$(BIN)/python -m tests.servers.rest) $(BIN)/icefront prove $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(CATALOG),--catalog $(CATALOG)) $(if $(filter rest,$(CATALOG)),--uri URI)

docs: setup ## check that every link in the documentation leads somewhere
	@$(BIN)/python scripts/check-docs

clean: ## remove what tools left behind; keeps .venv, fetched jars and your data in .icefront
	rm -rf .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .cache build dist spark-warehouse metastore_db derby.log
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

lock: ## write requirements.lock anew from pyproject.toml (needs uv)
	scripts/lock
