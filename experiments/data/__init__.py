"""Datasets, tokenizers and batches; importing this package registers the datasets."""

# The first dataset that serves a task is its default.
# ruff: noqa: F401
# isort: off
from experiments.data import toy, sentiment, text_file, sequences, summary, denoising, scan
from experiments.data import parallel, csv, tfds, digits
