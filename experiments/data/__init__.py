"""What models learn from: importing this package registers the datasets."""

# The first dataset that serves a task is its default.
# isort: off
from experiments.data import (
    toy,
    sentiment,
    text_file,
    sequences,
    summary,
    denoising,
    scan,
    parallel,
    csv,
    tfds,
    digits,
)

__all__ = [
    "csv",
    "denoising",
    "digits",
    "parallel",
    "scan",
    "sentiment",
    "sequences",
    "summary",
    "text_file",
    "tfds",
    "toy",
]
