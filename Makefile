# Each command works on a fresh machine: it creates a virtual environment, installs the packages and
# runs.
#
#   make train                    train the main job; ARGS="--config=..." trains another one
#   make train JAX=cuda13         the same on NVIDIA GPUs; JAX=tpu on Google TPUs
#   make test                     run the tests
#   make test-slow                run the tests that take minutes: kills, a full disk, each config
#   make shapes                   check every public shape, in half a minute
#   make lint                     check style, format, and types of the programs in README.md
#   make results                  make all tables of results; ARGS=workdirs reads the runs there first
#   make notebooks                run the tutorial and write its pages as notebooks to build/notebooks
#   make docs                     build the site: tutorial, documents and API reference, in build/site/html
#   make test PYTHON=python3.13 VENV=.venv-3.13
#   make help                     show these lines

PYTHON ?= python3
VENV ?= .venv
# An extra of the package jax: cuda13, cuda12 or tpu. Empty: jax for CPUs.
JAX ?=
BIN = $(VENV)/bin
# One stamp for each value of JAX, so that another value installs its packages.
INSTALLED = $(VENV)/installed$(JAX:%=-%)
ARGS ?=

.PHONY: help train test test-slow shapes smoke lint notebooks docs results clean

# Memory pages of 2 MiB, where Linux and glibc have them: a training step of multi30k allocates and
# frees half a gigabyte, and page faults took a tenth of its time.
train: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
train: $(INSTALLED)
	$(BIN)/python run.py $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(ARGS)

# Shapes are traced and not computed. Run it at every change.
shapes: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile --tb=short tests/shapes $(ARGS)

# One or two files for each part of jax and Python that another version is most likely to break:
# tracing closures, derivatives, custom rules, meshes and `shard_map`, lowering for GPUs, the
# arguments of jax.nn and flax; scanned layers, modules as pytrees, loops of decoding; safetensors;
# flags, training, checkpoints and prediction. They take half of the time of all tests of these
# parts. The others run the same programs with other options or compare values.
tests_of = $(patsubst %,tests/$(1)/test_%.py,$(2))
SMOKE = $(call tests_of,attention/primitives,attend contract dispatch \
    dot_product_attention dropout errors functions kernels lowering masks ring sharding) \
  $(call tests_of,attention/modules,attention config dropout embedding layers linear lora models \
    recurrent_layer) \
  $(call tests_of,attention/decoding,beam loop) \
  $(call tests_of,attention/weights,files mistakes own tokenizer) \
  $(call tests_of,command_line,help predict train)
smoke: $(INSTALLED) $(SMOKE)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(SMOKE) $(ARGS)

help:
	@sed '/^$$/,$$d; s/^# \{0,1\}//' Makefile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build
	sed -n '/^```python/,/^```/{/^```/d;p}' README.md >build/readme.py
	$(BIN)/mypy --follow-imports=silent build/readme.py

results: $(INSTALLED)
	$(BIN)/python tools/results.py $(ARGS)

notebooks: $(INSTALLED)
	$(BIN)/python -m docs.tutorial.notebooks

# The page of --mode=explain is a part of the site if the main job was trained and explained before.
docs: notebooks
	$(BIN)/python -m docs.site $(wildcard workdirs/toy_translation/explain/test.html)

clean:
	rm -rf $(VENV) .cache build

# The stamp is written last: an interrupted installation starts again. setuptools warns of each
# installation of a folder.
$(INSTALLED): pyproject.toml requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -r requirements.txt $(if $(JAX),"jax[$(JAX)]")
	touch $@
