# make demo            build the digits model and classify held-out digits on the CPU and on the GPU
# make demo-chat       build a chat with SmolLM2-135M (a download of 98 MB), and serve it
# make demos           build all demos and their gallery, and serve them (downloads of 240 MB; ARGS="file_type --no-serve" for some)
# make test            lint, types, tests in Python, on the GPU and in Node
# make test-onnx       the 4,000 tests of ONNX's own backend suite, on the CPU and on the GPU
# make test-browsers   pages in Chromium; packages in Chromium, Firefox, WebKit, Node, Deno and Bun
# make npm             pack the runtime as the npm package webmlc, into build/
# make test-doors      models of PyTorch, Keras, TensorFlow, JAX and scikit-learn, in a venv of their own (3 GB)
# make docs            run the lessons of docs/course/, and build the documentation site, into build/docs/
# make bench           measure all models against ONNX Runtime Web, TF.js and wllama in one Chromium, and write README's figures (45 minutes; ARGS="--models ..." for some)
# make clean           remove what the commands above made
SHELL := /bin/bash -euo pipefail
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A driver without a display still wants a folder for its sockets.
export XDG_RUNTIME_DIR ?= $(CURDIR)/$(VENV)
# The tests start many processes. Without bytecode, each compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-chat demos test test-onnx test-browsers test-doors lint lint-python lint-javascript types types-python types-javascript npm docs bench gpu clean

demo: $(VENV)/.stamp gpu
	$(BIN)/python demos/digits/run.py

demo-chat: $(VENV)/.stamp
	$(BIN)/python demos/chat/run.py

demos: $(VENV)/.stamp node_modules/.stamp
	$(BIN)/python demos/run.py $(ARGS)

test: lint types gpu
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

test-onnx: $(VENV)/.stamp gpu
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/conformance

test-browsers: $(VENV)/.stamp node_modules/.stamp gpu
	@.ci/install-system-packages chromium firefox webkit
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/browser tests/hosts

# A process for each file: the frameworks do not share one well.
test-doors: .venv-doors/.stamp
	@ls tests/doors/test_*.py | \
		TF_CPP_MIN_LOG_LEVEL=3 xargs -P 2 -n 1 .venv-doors/bin/python -m pytest -q

lint: lint-python lint-javascript

lint-python: $(VENV)/.stamp
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

lint-javascript: node_modules/.stamp
	npx --no-install eslint .

types: types-python types-javascript

types-python: $(VENV)/.stamp
	$(BIN)/mypy

types-javascript: node_modules/.stamp
	npx --no-install tsc --project tsconfig.json

npm:
	@node runtime_js/npm/pack.mjs build

# Not --quiet: it hides the warnings that --strict counts.
docs: $(VENV)/.stamp .venv-docs/.stamp gpu
	$(BIN)/python -m docs.site.prepare build/docs-pages
	.venv-docs/bin/python -m docs.site.course build/docs-pages/course
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --config-file docs/site/mkdocs.yml

bench: $(VENV)/.stamp node_modules/.stamp gpu
	@.ci/install-system-packages chromium
ifdef ARGS
	$(BIN)/python -m benchmarks.run $(ARGS)
else
	$(BIN)/python -m benchmarks.run --json benchmarks/results.json
	$(BIN)/python -m benchmarks.llm --json benchmarks/llm_results.json
	$(BIN)/python -m benchmarks.figures
endif

$(VENV)/.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("webmlc needs Python 3.11 or later")'
	@echo "webmlc: setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

# Not compiled: the tests import few of the 18,000 modules.
.venv-doors/.stamp: pyproject.toml tests/doors/requirements.txt
	@echo "webmlc: setting up .venv-doors"
	@$(PYTHON) -m venv .venv-doors
	@.venv-doors/bin/python -m pip install -qq --disable-pip-version-check --no-compile -r tests/doors/requirements.txt -e .
	@touch $@

.venv-docs/.stamp: docs/site/requirements.txt
	@echo "webmlc: setting up .venv-docs"
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install -qq --disable-pip-version-check -r docs/site/requirements.txt
	@touch $@

node_modules/.stamp: package.json package-lock.json
	@echo "webmlc: setting up node_modules"
	@npm ci --silent || npm ci
	@touch $@

gpu:
	@.ci/install-system-packages gpu

clean:
	rm -rf $(VENV) .venv-doors .venv-docs node_modules .mypy_cache .ruff_cache .pytest_cache
	find build -mindepth 1 ! -name README.md -delete
