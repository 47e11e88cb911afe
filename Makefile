# Every target does its own set-up: a fresh clone, an empty HOME, python3 (3.11 or newer) and pip are enough.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.infctl-stamp
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

.PHONY: venv
venv: $(STAMP) ## Create .venv with everything needed, etcd included (made once)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about a minute the first time)" >&2
	@$(BIN)/python -m pip install --quiet --editable '.[dev,etcd]'
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Kill a rank in mid-stream and watch the stream go on (ARGS='--fault freeze-rank --json')
	@$(BIN)/infctl demo $(ARGS)

.PHONY: test
test: $(STAMP) ## All tests that need no GPU and no SGLang: unit, property, contract, conformance on the simulator, faults
	$(BIN)/pytest -m 'not sglang and not root' $(ARGS)

.PHONY: etcd-debian
etcd-debian: ## Unpack Debian's etcd 3.4 into the cache, so that the tests run on it too (needs apt)
	@.ci/debian_etcd.sh

.PHONY: shells
shells: ## Install zsh and fish, so that completion is tested in them too (needs root and apt)
	@.ci/shells.sh

.PHONY: faults
faults: $(STAMP) ## Only the tests that kill and freeze real processes
	$(BIN)/pytest -m 'faults and not sglang and not root' $(ARGS)

.PHONY: test-root
test-root: $(STAMP) ## Tests that need root: units in a real systemd (apt fetches it once), several hosts, in namespaces
	@.ci/systemd_root.sh >/dev/null
	@.ci/hosts_tools.sh
	$(BIN)/pytest -m root $(ARGS)

.PHONY: sglang
sglang: ## Build SGLang's own environment and the tiny model (minutes, about 7 GB, cached)
	@.ci/sglang_env.sh

.PHONY: conformance-sglang
conformance-sglang: $(STAMP) sglang ## The conformance suite on the real SGLang, two ranks
	$(BIN)/pytest -m sglang $(ARGS)

.PHONY: demo-sglang
demo-sglang: $(STAMP) sglang ## The demo on the real SGLang, two groups of two ranks (ARGS='--fault freeze-rank')
	@$(BIN)/infctl demo --engine sglang $(ARGS)

.PHONY: check
check: $(STAMP) ## Lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: bench
bench: $(STAMP) ## Measurements (ARGS='NAME --quick --json'; without ARGS: the list)
	@$(BIN)/python -m bench.run $(ARGS)

.PHONY: clean
clean: ## Remove what was built here (not the cached SGLang environment)
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find infctl daemon tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
