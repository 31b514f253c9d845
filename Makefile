# Everything happens in .venv: `make demo` and `make test` need only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two test processes fill two cores; each JAX process then needs no threads of its own.
WORKERS ?= 2
# Not --quiet: MkDocs counts only the warnings that it shows, so that --strict would let all of them pass.
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: install test-setup test check docs demo bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test-installed: $(VENV)/.installed requirements-test.txt
	$(BIN)/python -m pip install --quiet --editable '.[dev,minari,parquet,mujoco,onnx,frames,tensorboard,wandb,mlflow,ray,docs]' --requirement requirements-test.txt
	sh tools/install_chromium.sh
	touch $@

install: $(VENV)/.installed

test-setup: $(VENV)/.test-installed

check: test-setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests tools benchmarks mkdocs.yml

# Every page, every link and every anchor inside the site; a warning is an error. mkdocs.yml says what is built.
docs: test-setup
	$(SITE)

test: check
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

demo: install
	$(BIN)/kmifqe demo --out demo

bench: test-setup
	$(BIN)/python benchmarks/speed.py --quick

clean:
	rm -rf $(VENV) demo runs dist build site
