# On a fresh machine each of these does everything: a virtual environment, its packages, the job.
#
#   make train                         train the main job; ARGS="--config=..." for another
#   make test                          pass the tests
#   make shapes                        check every public shape, in half a minute
#   make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
ARGS ?=

.PHONY: train test shapes smoke lint clean

# Large arrays in pages of 2 MiB, where Linux and its C library offer them: a step of multi30k makes
# and frees half a gigabyte, and a tenth of its time went to pages of 4 KiB (docs/STEPS.md).
train: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
train: $(VENV)/installed
	$(BIN)/python run.py $(ARGS)

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# Every public shape, traced and not computed: run it at every change.
shapes: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --tb=short tests/shapes $(ARGS)

# The part of the tests that another Python or jax is likeliest to break.
smoke: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/attention tests/door $(ARGS)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) .cache

# The stamp is written last, so that an interrupted installation starts again.
$(VENV)/installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@
