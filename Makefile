# Needs Python 3.11 or newer, make, and (the first time) a connection to a Python package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
JOBS   ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore

.DEFAULT_GOAL := help
.PHONY: help run test check long bench judges crash power clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.installed  ## install into .venv and run the demo (no key, no network)
	@$(BIN)/stead demo

test: check  ## ruff, import-linter, mypy --strict, then every test at small size, in parallel
	@$(PYTEST) -n $(JOBS)

check: $(VENV)/.installed-test  ## only the checks that read the code: ruff, import-linter, mypy --strict
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy --strict src

long: $(VENV)/.installed-test  ## every test, also the long ones, at full size (STEAD_SCALE=1)
	@STEAD_SCALE=1 $(PYTEST) -n $(JOBS) -m "" --durations=20

crash: $(VENV)/.installed-test  ## tests that kill the process at named points, at full size
	@STEAD_SCALE=1 $(call marked,crash,the restart work)

power: $(VENV)/.installed-test  ## tests that cut the power under the file system, at full size
	@STEAD_SCALE=1 $(call marked,power,the restart work)

judges: $(VENV)/.installed-judges  ## tests in which software that nobody here wrote judges stead
	@$(call marked,judges,the work on the doors)

bench: $(VENV)/.installed-test  ## figures beside baselines of the same run, no verdicts (BENCH="append open --json" chooses)
	@$(BIN)/python bench $(BENCH)

clean:  ## remove .venv and what the tools left (never your data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist

# Run the tests with one marker; where there is none yet, say so and fail instead of pretending.
define marked
$(PYTEST) -n $(JOBS) -m $(1); code=$$?; \
if [ $$code = 5 ]; then echo "There is no test marked '$(1)' yet: $(2) adds them." >&2; exit 1; fi; exit $$code
endef

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("stead needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (make PYTHON=... names another)" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[test]'
	@touch $@ $(VENV)/.installed

# The judges have an environment of their own, so that nothing of theirs hides a dependency that is missing in ours.
$(VENV)/.installed-judges: tests/judges/requirements.txt tests/judges/package.json | $(VENV)/.installed-test
	$(BIN)/python -m venv $(VENV)/judges
	$(VENV)/judges/bin/python -m pip install --quiet -r tests/judges/requirements.txt
	@if command -v npm >/dev/null; then \
	  cp tests/judges/package.json $(VENV)/judges/ && \
	  npm install --prefix $(VENV)/judges --loglevel error --no-audit --no-fund --no-update-notifier && touch $@; \
	else echo "npm is missing: the judge aimock is left out, and its tests say so."; fi
