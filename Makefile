# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Only Python 3.11 or 3.12, make and git need to be there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where the environment forbids it, every process would compile torch's modules anew, for many seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-pinned wheel demo test test-all mutants golden check format docs test-min clean

setup: $(READY)

# uv resolves torch and torchvision together, so that they fit each other. It compiles bytecode only if asked.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev]'
	touch $@

# The versions of .ci/constraints.txt, every file verified by its SHA-256; .ci/lock renews them.
PINNED := .ci/constraints.txt
setup-pinned:
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' $(PINNED) > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes --requirement $(PINNED)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $(READY)

# The wheel, in an environment that has nothing else than it needs, and the demo from there.
CONSTRAINTS ?= --constraint $(PINNED)
wheel: $(READY)
	rm -rf dist .venv-wheel
	$(BIN)/uv build --quiet --wheel --out-dir dist
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-wheel
	$(BIN)/uv pip install --quiet --python .venv-wheel/bin/python $(CONSTRAINTS) dist/*.whl
	cd .venv-wheel && bin/evenhand demo --out demo && test -s demo/report.html
	$(BIN)/python .ci/sbom.py dist/evenhand.cdx.json

demo: $(READY)
	$(BIN)/evenhand demo --out demo

test: $(READY)
	$(BIN)/python -m pytest tests src --doctest-modules -n auto

# What takes too long for every change: all tests, fuzzing, faults, and patches that a test must notice.
test-all: $(READY)
	$(BIN)/python -m pytest tests src --doctest-modules -n auto -m ""
	FUZZ_EXAMPLES=1000 $(BIN)/python -m pytest tests/reliability/test_fuzz.py -n auto -k "not mutated"
	$(BIN)/python tests/reliability/fuzz/fuzz.py --cases 1000
	$(BIN)/python tests/reliability/fault_matrix.py --sample 400
	$(MAKE) mutants

# Every patch of tests/mutants.toml must make the test that it names fail.
mutants: $(READY)
	$(BIN)/python tests/mutants.py --jobs 2

# Record the golden numbers and texts anew; tests/golden/make.py says when it refuses.
golden: $(READY)
	$(BIN)/python tests/golden/make.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python docs/prose.py --check
	$(BIN)/python -m pytest tests src --doctest-modules -n auto

# The site, into docs/_build; a warning, such as a link that leads nowhere, is an error.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The oldest versions that pyproject.toml admits, in an environment of their own.
test-min:
	$(PYTHON) -m venv .venv-min
	.venv-min/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-min/bin/uv pip install --quiet --python .venv-min/bin/python --resolution lowest-direct --editable '.[dev]'
	.venv-min/bin/python -m pytest tests src --doctest-modules -n auto

clean:
	rm -rf $(VENV) .venv-min .venv-wheel demo runs report.html docs/_build build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
