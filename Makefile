# Everything a person runs. `make` alone lists the targets.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
MAKEFLAGS += --no-print-directory

# How many schedules `make simulate` runs, and from which seed on.
SEEDS ?= 10000
START ?= 1
# What `make bench` measures: how many rounds of how many seconds, whom, and in which shapes (all, if none are named).
ROUNDS ?= 3
SECONDS ?= 3
WHO ?=
SHAPES ?=
# What `make crowd` does: how many acquires wait, and how often they are cut off.
WAITERS ?= 10000
CUTS ?= 10

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
export CARGO_TARGET_DIR := $(TARGET)
VENV := $(TARGET)/venv
PYTHON := $(VENV)/bin/python
REPORTS := target/reports
PY_SOURCES := bench bindings-python conformance/agents examples
# What `make test` runs, in this order, each once; it ends with the first one that fails.
STAGES := tools check unit servers real simulate-short wheel python examples conformance

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: tools
tools: ## Check that the toolchains are there
	@./scripts/check-tools.sh

.PHONY: demo
demo: tools wheel ## Watch the lock do its job: the month-end ledger on a real ZooKeeper
	@cargo build -q -p forelock-testkit
	@$(PYTHON) examples/ledger/run.py --testkit $(TARGET)/debug/forelock-testkit

.PHONY: test
test: ## Run everything that continuous integration runs
	@./scripts/stage.sh begin
	@done=""
	@for stage in $(STAGES); do ./scripts/stage.sh $$stage $(MAKE) $$done $$stage; done="$$done -o $$stage"; done
	@./scripts/stage.sh table
	@echo "all tests passed"

.PHONY: check
check: $(VENV)/.dev ## Formatting and lints, Rust and Python
	@echo "── formatting and lints"
	@cargo fmt --all --check
	@cargo clippy -q --workspace --all-targets -- -D warnings
	@$(VENV)/bin/ruff format --check -q $(PY_SOURCES)
	@$(VENV)/bin/ruff check -q $(PY_SOURCES)

.PHONY: servers
servers: tools ## Fetch ZooKeeper, both versions that the tests run on
	@cargo run -q -p forelock-testkit -- fetch --version 3.9.5
	@cargo run -q -p forelock-testkit -- fetch --version 3.8.6

.PHONY: unit
unit: tools ## Unit tests, tables and documentation tests
	@echo "── unit tests and tables"
	@cargo test -q --workspace --lib --bins
	@cargo test -q -p forelock --doc

.PHONY: real
real: servers ## The engine, its adapters and the testing ground on real servers
	@echo "── real servers"
	@cargo test -q -p forelock-testkit --tests
	@cargo test -q -p forelock --test contract --test real

.PHONY: simulate-short
simulate-short: tools
	@echo "── simulation"
	@cargo test -q -p forelock --test simulate

.PHONY: simulate
simulate: tools ## Run SEEDS schedules in simulation (SEEDS=10000 START=1; SEED=n replays one with its trace)
	@cargo run -q --release -p forelock --features simulation --example simulate -- $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS) --start $(START))

# The demo needs no more than what builds the wheel.
$(VENV)/.build: bindings-python/requirements-dev.txt
	@echo "── Python environment"
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install -q "$$(grep ^maturin== $<)"
	@touch $@

$(VENV)/.dev: $(VENV)/.build
	@echo "── Python tools"
	@$(VENV)/bin/pip install -q -r bindings-python/requirements-dev.txt
	@touch $@

.PHONY: wheel
wheel: tools $(VENV)/.build ## Build the Python wheel and install it into target/venv
	@echo "── Python wheel"
	@rm -rf $(TARGET)/wheels
	@cd bindings-python && $(VENV)/bin/maturin build -q --profile dev --generate-stubs -o $(TARGET)/wheels
	@$(VENV)/bin/pip install -q --force-reinstall --no-deps $(TARGET)/wheels/forelock-*.whl

.PHONY: python
python: wheel servers $(VENV)/.dev ## The Python package: its tests and its types
	@echo "── Python"
	@cd bindings-python && FORELOCK_TESTKIT=$(TARGET)/debug/forelock-testkit $(PYTHON) -m pytest -q

.PHONY: examples
examples: wheel servers $(VENV)/.dev ## The examples' own tests
	@echo "── examples"
	@FORELOCK_TESTKIT=$(TARGET)/debug/forelock-testkit $(PYTHON) -m pytest -q examples

.PHONY: conformance
conformance: wheel servers $(VENV)/.dev ## Every scenario in every language; writes target/reports/conformance.json
	@echo "── conformance"
	@mkdir -p $(REPORTS)
	@cargo build -q -p forelock-conformance
	@cargo run -q -p forelock-conformance -- --python $(PYTHON) --report $(REPORTS)/conformance.json

BENCH := $(TARGET)/bench

.PHONY: bench
bench: tools servers $(VENV)/.build ## Measure Forelock and its peers (ROUNDS=3 SECONDS=3 WHO= SHAPES=); writes target/reports/bench.json
	@cargo build -q --release -p forelock-bench
	@rm -rf $(BENCH)/wheels
	@cd bindings-python && $(VENV)/bin/maturin build -q --release -o $(BENCH)/wheels
	@cd $(CURDIR)
	@test -x $(BENCH)/venv/bin/python || python3 -m venv $(BENCH)/venv
	@$(BENCH)/venv/bin/pip install -q -r bench/requirements.txt
	@$(BENCH)/venv/bin/pip install -q --force-reinstall --no-deps $(BENCH)/wheels/forelock-*.whl
	@rm -rf $(BENCH)/curator/lib
	@mvn -q -B -f bench/curator/pom.xml -Dout=$(BENCH)/curator package
	@$(PYTHON) bench/run.py --testkit $(TARGET)/debug/forelock-testkit --bench $(TARGET)/release/forelock-bench \
		--python $(BENCH)/venv/bin/python --curator $(BENCH)/curator/lib --report $(REPORTS)/bench.json \
		--rounds $(ROUNDS) --seconds $(SECONDS) --who "$(WHO)" --shapes "$(SHAPES)"

.PHONY: crowd
crowd: servers ## Let WAITERS acquires of one client wait for one lock and cut them off CUTS times (WAITERS=10000 CUTS=10)
	@cargo run -q --release -p forelock-bench -- crowd $(WAITERS) $(CUTS)

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf target
