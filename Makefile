# `make demo` and `make test` do everything. Every target sets up .venv first, from pinned versions.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo demo-range-bearing demo-range-only docs notebooks dist reproduce test test-slow test-all fuzz lint types format bench-peers clean

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "nopf needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

# Both benchmarks at a time; what was run before is not run again.
DEMOS := demo-range-bearing demo-range-only
demo: $(READY)
	@echo "The bootstrap filter beside the best of nopf on two benchmarks. This takes about a minute."
	@$(MAKE) --no-print-directory -j2 $(DEMOS)
	@$(BIN)/nopf report demo/results --out demo/report.html
	@echo "Try next: $(BIN)/nopf bench sensor-bias --seeds 3 --against-paper, or your own model: README.md"

$(DEMOS): demo-%: $(READY)
	@mkdir -p demo
	@{ $(BIN)/nopf bench $* --filters bpf,mlpf --seeds 10 --particles 1000 --out demo/results \
		&& $(BIN)/nopf sweep $* --filters bpf --seeds 5 --particles 100000 --out demo/results; } \
		> demo/$*.txt 2>&1 || { cat demo/$*.txt; exit 1; }

# The documentation as a site. A link or a heading that is not there, or a docstring that does not fit
# its function, is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

$(VENV)/.docs: $(READY) requirements-docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

# Every notebook from the first cell to the last; with their outputs they are in demo/notebooks.
notebooks: $(VENV)/.notebooks
	@mkdir -p demo/notebooks
	for notebook in notebooks/*.ipynb; do \
		echo "$$notebook"; \
		$(BIN)/python -m notebooks "$$notebook" demo/notebooks || exit 1; \
	done

$(VENV)/.notebooks: $(READY) requirements-notebooks.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-notebooks.txt
	@touch $@

# What is published: the source archive, and the wheel that is built from it.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	@ls dist/*

# The paper's tables, figures and sweeps, and the pages of docs that show them. Stop it at any time and
# run it again to resume.
PAPERS := kf,enkf,enkf-paper,bpf,apf,upf,nupf,ispf,opf,lpf,alpf,nopf,anopf
SWEPT := enkf,bpf,apf,upf,nupf,ispf,opf,nopf
RESULTS ?= results/paper
reproduce: $(READY)
	@echo "On two cores this takes about six hours: two to train by the published recipe, four for filters that draw many samples a particle."
	@echo "Stop it with Ctrl-C and run it again to resume. For wall times that mean something, let nothing else run."
	$(BIN)/nopf bench all --filters $(PAPERS) --seeds 10 --against-paper --out $(RESULTS)
	$(BIN)/nopf bench all --filters nopf-paper --seeds 10 --against-paper --out $(RESULTS)
	$(BIN)/python benchmarks/variants.py --out $(RESULTS)/variants.csv
	$(BIN)/nopf sweep sensor-bias --filters kf,$(SWEPT) --particles 100,500,2000 --seeds 10 --out $(RESULTS)
	$(BIN)/nopf sweep range-bearing range-only --filters $(SWEPT) --particles 100,1000,10000 --seeds 10 --out $(RESULTS)
	$(BIN)/nopf sweep unordered-range --filters $(SWEPT) --particles 100,1000,10000,50000 --seeds 10 --out $(RESULTS)
	$(BIN)/nopf report $(RESULTS) --figures png
	$(BIN)/python benchmarks/reproduction.py $(RESULTS)

# The bootstrap filter beside that of other libraries, each in an environment of its own.
PEERS ?=
bench-peers: .venv-peers/.ready .venv-peers-numpy/.ready
	.venv-peers/bin/python benchmarks/peers/peers.py $(PEERS)

.venv-peers/.ready: requirements.txt benchmarks/peers/requirements-jax.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r benchmarks/peers/requirements-jax.txt
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.venv-peers-numpy/.ready: benchmarks/peers/requirements-numpy.txt
	$(PYTHON) -m venv --clear .venv-peers-numpy
	.venv-peers-numpy/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements-numpy.txt
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Compiling takes most of the time of a test run, so XLA does with less optimisation here; test-all
# compiles as users do.
QUICKLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
test: lint types
	$(QUICKLY) $(BIN)/python -m pytest

# The slow tests alone, or those of the folders given: make test-slow SLOW=tests/filters
SLOW ?= tests
test-slow: $(READY)
	$(QUICKLY) $(BIN)/python -m pytest -m slow $(SLOW)

test-all: lint types
	$(BIN)/python -m pytest -m ''

# What no user would do: odd and damaged inputs of every kind, and commands that are killed. Other
# inputs with another seed: make fuzz SEED=1
INPUTS ?= 10000
KILLS ?= 100
SEED ?= 0
fuzz: $(READY)
	$(QUICKLY) $(BIN)/python -m tests.fuzz --inputs $(INPUTS) --kills $(KILLS) --seed $(SEED)

clean:
	rm -rf $(VENV) .venv-peers .venv-peers-numpy demo results site dist .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
