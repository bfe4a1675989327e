# make demo | make test: from a fresh checkout, python3 (3.11-3.13) and a C++ compiler to a result; each makes what it needs, once.
# make help lists the rest. PYTHON=python3.12 chooses the interpreter, VENV=path the environment.

PYTHON ?= python3
VENV ?= .venv
NOTEBOOK ?= notebooks/00_quickstart.ipynb
PYTEST_ARGS ?=

PY := $(VENV)/bin/python
# Absolute, because recipes change folders; Node may come from the environment too.
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
STAMPS := $(VENV)/stamps

LAB_SOURCES := $(wildcard labextension/src/*.ts labextension/src/*/*.ts labextension/src/*/*/*.ts labextension/style/*) \
               labextension/package.json labextension/tsconfig.json labextension/yarn.lock
NATIVE_SOURCES := $(wildcard compiler/native/*.c compiler/native/*.cpp compiler/native/*.h compiler/native/build.py)

.PHONY: help setup demo test lab lint optable gradients fuzz cpython leak bench wheel labextension browser constraints clean distclean

help:
	@echo "make demo     run the quick start notebook and print what it showed"
	@echo "make test     lint, types and every test; browser tests where a browser can be had"
	@echo "make lab      open JupyterLab on the quick start"
	@echo "make lint     ruff and mypy"
	@echo "make optable  operators of torch's op_db against eager; rewrites the table in tests/ops"
	@echo "make gradients  their gradients against eager and float64, for GRADIENT_SECONDS=2400 at most"
	@echo "make fuzz     the four fuzzers for FUZZ_SECONDS=600 in all; what differs from eager is made smaller, in build/fuzz"
	@echo "make cpython  CPython's own tests under the compiler, plain against forced through capture (MODULES=\"test_grammar ...\")"
	@echo "make leak     10,000 times compile and drop (LEAK=...), each way: nothing stays"
	@echo "make bench    the budgets, measured on this machine; results in tests/benchmarks/results"
	@echo "make wheel    sdist and wheel in dist/"
	@echo "make clean    remove what was built; make distclean also the environment"

# ---------------------------------------------------------------------------------------------- the environment
setup: $(STAMPS)/install $(STAMPS)/native

$(STAMPS)/venv:
	@$(PYTHON) tools/environment.py machine
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: constraints.txt | $(STAMPS)/venv
	@$(PY) tools/environment.py torch
	@touch $@

$(STAMPS)/packages: constraints.txt pyproject.toml | $(STAMPS)/torch
	@$(PY) tools/environment.py packages
	@touch $@

# The labextension is worth having and not worth failing for: without Node or npm's registry, all else works.
$(STAMPS)/labextension: $(LAB_SOURCES) | $(STAMPS)/packages
	@$(PY) tools/environment.py labextension
	@touch $@

$(STAMPS)/install: pyproject.toml hatch_build.py $(wildcard extension/*.py) $(STAMPS)/packages $(STAMPS)/labextension
	SKIP_JUPYTER_BUILDER=1 $(PY) -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(STAMPS)/native: $(NATIVE_SOURCES) hatch_build.py | $(STAMPS)/install
	@$(PY) hatch_build.py
	@$(PY) -m compileall -q compiler kernel_magics extension
	@touch $@

# What was not built (there was no Node, the registry did not answer) is tried again.
labextension:
	@test -e extension/labextension/package.json || rm -f $(STAMPS)/labextension
	@$(MAKE) --no-print-directory $(STAMPS)/labextension $(STAMPS)/install

# ---------------------------------------------------------------------------------------------- what one does with it
demo: setup
	@$(PY) tools/run_notebook.py $(NOTEBOOK) --out build/demo
	@echo
	@echo "Open it yourself:  make lab     (the executed copy: build/demo/$(notdir $(NOTEBOOK)), as a page: build/demo/$(notdir $(basename $(NOTEBOOK))).html)"

lab: setup
	$(PY) -m jupyterlab $(NOTEBOOK)

lint: setup
	@status=0; $(PY) -m ruff check . || status=1; $(PY) -m mypy || status=1; exit $$status

browser: | $(STAMPS)/packages
	@$(PY) tools/environment.py browser --install

# Lint does not keep the tests from running; either failing fails the target, and pytest's line is the last.
test: setup browser
	@status=0; $(MAKE) --no-print-directory lint || status=1; \
	 $(PY) -m pytest $(PYTEST_ARGS) || status=1; exit $$status

JOBS ?= 2
optable: setup
	$(PY) -m tests.ops.table --jobs $(JOBS)

GRADIENT_SECONDS ?= 2400
gradients: setup
	$(PY) -m tests.ops.gradients --seconds $(GRADIENT_SECONDS)

# Programs, changes and numbers by turns, mostly capture alone; tensors through the whole compiler.
FUZZ_SECONDS ?= 600
fuzz: setup
	@status=0; for part in "programs eager 30" "changes eager 30" "numbers eager 10" "tensors tcompile 20" "programs tcompile 5" "changes tcompile 5"; do set -- $$part; \
	   $(PY) -m tests.fuzz.bulk $$1 --backend $$2 --seconds $$(($(FUZZ_SECONDS) * $$3 / 100)) || status=1; done; exit $$status

cpython: setup
	$(PY) -m tests.oracles.cpython $(MODULES)
	$(PY) -m tests.oracles.cpython --forced $(MODULES)

leak: setup
	TCOMPILE_LEAK=$(or $(LEAK),10000) $(PY) -m pytest tests/e2e/test_leaks.py $(PYTEST_ARGS)

bench: setup
	$(PY) -m tests.benchmarks.run

# The JavaScript is built anew: an old build must never ship.
wheel: setup
	$(PY) tools/environment.py labextension --clean
	$(PY) -m build --no-isolation --outdir dist .

constraints: setup
	@$(PY) -m pip freeze --exclude-editable | grep -v -i -E '^(triton|nvidia|cuda|setuptools|pip|wheel)' | sed 's/+cpu$$//'

clean:
	rm -rf build/demo build/lib build/temp* dist .pytest_cache .hypothesis .mypy_cache .ruff_cache tests/browser/artifacts
	rm -rf labextension/lib labextension/tsconfig.tsbuildinfo extension/labextension
	find compiler extension kernel_magics tests -name '__pycache__' -type d -prune -exec rm -rf {} +
	find compiler -name '*.so' -delete
	rm -f $(STAMPS)/labextension $(STAMPS)/install $(STAMPS)/native

distclean: clean
	rm -rf $(VENV) labextension/node_modules labextension/.yarn
