# `make demo` and `make test` are the whole set-up: they need Python 3.11 (or 3.12) with venv, and make.
# The environment is .venv, from hash-pinned locks; uv installs them where it is on PATH, otherwise venv and pip.
# PYTHON=/path/to/python3.11 names another interpreter.

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
LOWEST := .venv-lowest
JAX := .venv-jax
CORE := .venv-scann-core
# What imports serving, and of the model nothing.
SERVING_TESTS = $(shell grep -rlE '^(from|import) serving' tests --include='test_*.py' | xargs grep -LE '^(from|import) (towers|tests.support.worlds.training)')
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help demo test long fast lint style types format mutants gpu-proof image-check lock lowest scann-core clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

demo: $(VENV)/.runtime  ## the whole path on a synthetic world, in demo/
	$(BIN)/towers demo --out demo

test: style  ## lint, types, import contracts and every test but the long ones
	$(call with_types,$(PYTEST))

long: $(VENV)/.dev  ## the tests marked long (many kills, many requests, whole searches); with glibc 2.34 or later scann-core, too
	$(PYTEST) -m long
	@if $(RUNS_CORE); then $(MAKE) --no-print-directory scann-core; else echo 'left out: scann-core $(NEEDS)'; fi

fast: style  ## as test, without the tests marked slow
	$(call with_types,$(PYTEST) -m "not slow and not long")

lint: style types  ## lint, types, import contracts and declared dependencies

style: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: $(VENV)/.dev  ## rewrite the files as lint wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

mutants: $(VENV)/.dev  ## 74 fixed mutants of the code, each must be killed by the tests of its area
	$(BIN)/python tools/mutants.py

gpu-proof: $(VENV)/.dev $(JAX)/.installed  ## the compiled train step of every loss and sampler by JAX on the GPU, or else the CPU
	$(BIN)/python -m benchmarks.gpu.export build/gpu.npz
	$(JAX)/bin/python -m benchmarks.gpu.run build/gpu.npz

image-check: $(VENV)/.runtime  ## build the Dockerfile without Docker, start its service, ask it once (root, Debian)
	$(BIN)/python tools/image_check.py

lock: ## rewrite all locks from pyproject.toml (needs uv)
	@test -n "$(UV)" || { echo "make lock needs uv on PATH" >&2; exit 1; }
	$(LOCK) pyproject.toml --extra dev -o requirements-dev.lock
	$(LOCK) pyproject.toml --constraint requirements-dev.lock -o requirements.lock
	echo 'scann-core>=0.2.1' | $(subst 2_28,2_34,$(LOCK)) - --constraint requirements-dev.lock -o requirements-scann-core.lock

lowest: $(LOWEST)/.installed  ## the tests of serving with the lowest versions that pyproject.toml allows (needs uv)
	$(LOWEST)/bin/python -m pytest $(SERVING_TESTS)

# Its wheels are for glibc 2.34. Elsewhere getconf says less, or nothing, which is no number.
RUNS_CORE = glibc=$$(getconf GNU_LIBC_VERSION 2>/dev/null); test "$${glibc\#glibc 2.}" -ge 34 2>/dev/null
NEEDS = needs glibc 2.34 or later (getconf GNU_LIBC_VERSION)

scann-core:  ## the tests of the index with scann-core in the place of scann, in .venv-scann-core
	@$(RUNS_CORE) || { echo 'error: scann-core $(NEEDS)' >&2; exit 1; }
	@$(MAKE) --no-print-directory $(CORE)/.installed
	$(CORE)/bin/python -m pytest -m "" tests/serving/search tests/repository/test_golden.py

clean:  ## remove the environment, the demo and every cache
	rm -rf $(VENV) $(LOWEST) $(JAX) $(CORE) demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

# A process for each core; a file's tests stay together, because they share what they train. tests/conftest.py says
# which files come first.
PYTEST = $(BIN)/pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# Runs tests and, at the same time, the checks that take half a minute on one core; the output of the checks comes last.
define with_types
@said=$$(mktemp) && trap 'rm -f "$$said"' EXIT; \
$(MAKE) --no-print-directory types >"$$said" 2>&1 & checks=$$!; \
echo '$(1)'; $(1); tests=$$?; \
wait $$checks; checked=$$?; cat "$$said"; exit $$((tests ? tests : checked))
endef

LOCK = uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-annotate \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28

ifdef UV
INSTALL = uv pip install --python $(BIN)/python
else
# An environment that uv made has no pip.
HAS_PIP = @$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
INSTALL = $(BIN)/python -m pip install
endif
INSTALL_PROJECT = $(INSTALL) --quiet --no-build-isolation --no-deps --editable .

# A stamp for each lock: a changed lock installs again, and a repeat costs nothing. The dev lock holds the runtime one.
$(VENV)/.runtime: requirements.lock pyproject.toml | $(BIN)/python
	$(HAS_PIP)
	@echo "installing requirements.lock into $(VENV)"
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL_PROJECT)
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(BIN)/python
	$(HAS_PIP)
	@echo "installing requirements-dev.lock into $(VENV)"
	$(INSTALL) --require-hashes -r requirements-dev.lock
	$(INSTALL_PROJECT)
	@touch $@ $(VENV)/.runtime

$(BIN)/python:
	@for python in $(or $(PYTHON),python3.11 python3.12 python3); do \
		if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then \
			found=$$python; break; \
		fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "error: no Python 3.11 or 3.12 found$(if $(PYTHON), at PYTHON=$(PYTHON)); install one, or name it:" \
			"make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	echo "creating $(VENV) with $$found"; \
	if [ -n "$(UV)" ]; then uv venv --quiet --python "$$found" $(VENV); else "$$found" -m venv $(VENV); fi || { \
		rm -rf $(VENV); \
		$(if $(UV),,echo "if ensurepip is missing: Debian and Ubuntu have it in the package python3-venv" >&2;) \
		exit 1; \
	}

# An environment of its own, without the lock: the versions of the direct dependencies are the lower bounds.
$(LOWEST)/.installed: pyproject.toml
	@test -n "$(UV)" || { echo "make lowest needs uv on PATH" >&2; exit 1; }
	rm -rf $(LOWEST)
	uv venv --quiet --python $(or $(PYTHON),3.11) $(LOWEST)
	uv pip install --python $(LOWEST)/bin/python --resolution lowest-direct -r pyproject.toml --extra dev
	uv pip install --python $(LOWEST)/bin/python --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# An environment of its own, because JAX with CUDA may want other versions than TensorFlow.
$(JAX)/.installed: benchmarks/gpu/requirements.txt | $(BIN)/python
	rm -rf $(JAX)
	$(BIN)/python -m venv $(JAX)
	$(JAX)/bin/python -m pip install --quiet -r $< $(if $(shell command -v nvidia-smi),'jax[cuda13]')
	@touch $@

# The packages of $(VENV), but before them those of scann-core, which owns the same modules `scann`.
$(CORE)/.installed: requirements-scann-core.lock $(VENV)/.dev
	rm -rf $(CORE)
	if [ -n "$(UV)" ]; then uv venv --quiet --python $(BIN)/python $(CORE); else $(BIN)/python -m venv $(CORE); fi
	$(subst $(VENV)/,$(CORE)/,$(INSTALL)) --quiet --require-hashes --no-deps -r $<
	folder='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$folder")')" \
		>"$$($(CORE)/bin/python -c "$$folder")/packages.pth"
	@touch $@
