# One file for people and CI. `make run` and `make test` set everything up by themselves.

PYTHON ?= python3
VENV ?= .venv
# On a machine without GPUs PyTorch's CPU build is enough and much smaller; see README, "Install".
TORCH ?= torch==2.13.0
PIP_FLAGS ?= --quiet --disable-pip-version-check
PYTEST_FLAGS ?=
# Tests wait for processes more than they compute: four at a time on two cores.
WORKERS ?= 4

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install run test test-all coverage test-py312 lint format typecheck check bench ui clean
.PHONY: slurm-up slurm-down slurm-packages slurm-if-possible test-slurm-24.11

help:            ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## virtual environment with everything, in .venv

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) $(TORCH)
	$(BIN)/pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

run: install     ## the whole pipeline, small: configs/quickstart.yaml
	$(BIN)/overland run configs/quickstart.yaml

test: install slurm-if-possible  ## all tests but the longest
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

coverage: install  ## the same, and which lines they do not reach (slower)
	$(MAKE) --no-print-directory test PYTEST_FLAGS="--cov --cov-report=term $(PYTEST_FLAGS)"

test-all: install  ## all tests: chaos, benchmarks and whole runs on a Slurm cluster too
	$(BIN)/python -m pytest -m "" $(PYTEST_FLAGS)

lint: install    ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: install  ## types
	$(BIN)/mypy

check: lint typecheck test  ## what CI runs

bench: install   ## our training loop beside a bare megatron-core loop
	$(BIN)/overland bench train --json

ui: install      ## the Prefect and MLflow pages over runs/
	$(BIN)/overland ui

slurm-up: install  ## a real Slurm cluster on this machine, for trying things out: docs/slurm.md
	$(BIN)/python -m infra.slurm up

slurm-down: install  ## end it
	$(BIN)/python -m infra.slurm down

# policy-rc.d keeps Debian from starting a cluster of its own.
slurm-packages: install  ## Debian's packages of Slurm, for slurm-up and the tests (needs root)
	@missing="$$($(BIN)/python -m infra.slurm missing)"; [ -z "$$missing" ] || { \
	  [ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; \
	    chmod 755 /usr/sbin/policy-rc.d; trap 'rm -f /usr/sbin/policy-rc.d' EXIT; }; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -q --no-install-recommends $$missing; }

# Where they can be installed (a container, CI), they are; SLURM=no leaves the machine as it is.
slurm-if-possible: install
	@missing="$$($(BIN)/python -m infra.slurm missing)"; \
	if [ -n "$$missing" ] && [ "$(SLURM)" != no ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	  then $(MAKE) --no-print-directory slurm-packages || true; fi; \
	missing="$$($(BIN)/python -m infra.slurm missing)"; [ -z "$$missing" ] || \
	  echo "SKIPPED: tests on a Slurm cluster; not installed: $$missing (as root on Debian: make slurm-packages)"
SLURM ?= yes

# The chroot is made once, of Debian 13's packages, by mmdebstrap (needs root).
SLURM_ROOT ?= /var/tmp/overland-slurm-24.11
test-slurm-24.11: install  ## the launcher's tests against Slurm 24.11 (not in CI)
	$(BIN)/python -m infra.slurm release $(SLURM_ROOT)
	OVERLAND_SLURM_ROOT=$(SLURM_ROOT) $(BIN)/python -m pytest -m "" $(PYTEST_FLAGS) -k "not local" \
	  tests/infra/launch/on_slurm tests/infra/launch/test_launcher_contract.py \
	  tests/infra/launch/test_distributed_contract.py

# The newest megatron-core needs Python 3.12; no constraints: this looks for what breaks next.
PY312 ?= python3.12
test-py312:      ## all tests on Python 3.12 with the newest megatron-core (not in CI)
	$(PY312) -m venv .venv-py312
	.venv-py312/bin/pip install $(PIP_FLAGS) $(TORCH_PY312)
	.venv-py312/bin/pip install $(PIP_FLAGS) --editable '.[dev]'
	.venv-py312/bin/python -m pytest $(PYTEST_FLAGS)
TORCH_PY312 ?= torch

clean:           ## virtual environments and caches; runs/ stays
	rm -rf .venv .venv-py312 .mypy_cache .ruff_cache .pytest_cache .coverage build *.egg-info
