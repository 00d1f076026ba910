# `make` lists the targets. Everything runs from .venv, which `make env` builds and the others need.

SHELL := /bin/bash
PYTHON := python3.11
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PINS := constraints/cpu.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' $(PINS))
# PIP_FIND_LINKS, where it is set, names folders or pages that hold wheels; uv reads no pip settings.
UV_INSTALL = $(BIN)/uv pip install --python $(BIN)/python --no-deps --compile-bytecode \
  $(addprefix --find-links ,$(PIP_FIND_LINKS))
# Unit tests first: they fail in seconds.
TESTS := tests/unit $(filter-out tests/unit tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))

# One thread: two on a busy two-core machine make small matrix products ten times slower.
export OMP_NUM_THREADS := 1
# Ray starts workers at nice 15, so anything else on the machine starves them.
export RAY_worker_niceness := 0
export RAY_USAGE_STATS_ENABLED := 0
# Records of every task, which nobody reads here, took a fifth of a core.
export RAY_task_events_report_interval_ms := 0
export TOKENIZERS_PARALLELISM := false
# Each run starts dozens of Python processes: compiled modules have to be kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env demo study test test-fast check bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

env: $(STAMP)  ## build .venv from constraints/cpu.txt; nothing to do when it is current

$(STAMP): $(PINS) pyproject.toml $(wildcard tools/torchvision_cpu/*.*)
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is not on PATH: mupo_ray needs Python 3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet uv==$(UV_VERSION)
	@$(UV_INSTALL) $(TORCH) || { echo "$(TORCH) was not installed (reason above): where the package" \
	  "index lacks this CPU build, set PIP_FIND_LINKS to a place that has it; see README, Install" >&2; exit 1; }
	$(UV_INSTALL) -r $(PINS)
	$(UV_INSTALL) --no-build-isolation ./tools/torchvision_cpu -e .
	@touch $@

demo: env  ## train a small Qwen2.5-VL by GRPO and by MUPO on this machine, and compare
	$(BIN)/python jobs/demo.py

study: env  ## GRPO, pass@k advantages and MUPO on both laptop tasks, three seeds; as far as an hour gets
	$(BIN)/python benchmarks/run_study.py

test: export HF_HUB_OFFLINE := 1
test: env  ## all tests, as CI runs them
	$(BIN)/pytest $(TESTS) --durations=15

test-fast: export HF_HUB_OFFLINE := 1
test-fast: env  ## the unit tests alone
	$(BIN)/pytest tests/unit

check: env  ## formatting, lint, types and who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: env  ## every benchmark, one after the other
	@set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done

clean:  ## remove caches and build outputs; keeps .venv and runs/
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
